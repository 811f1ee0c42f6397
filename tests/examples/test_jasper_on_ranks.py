"""The scripts, unchanged, on several processes: what they print and leave behind, and that results do not change."""

import os
import re

import pytest
from safetensors.numpy import load_file
from toys.launched import run_as_script, start_script
from toys.launchers import slurm_task
from toys.ranks import free_port, on_ranks, wait_all
from toys.tone_corpus import ASR, record, run_process, run_script

JASPER, EVAL, INFER = (str(ASR / name) for name in ("jasper.py", "jasper_eval.py", "jasper_infer.py"))
FILES = ["cab.wav", "bc.wav", "abba.wav", "ccb.wav", "a.wav"]


def training(corpus, folder, *more):
    """Command-line words: a model that has learnt something, but not all, after a few steps."""
    words = ["--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json"]
    words += ["--eval_datasets", corpus / "dev.json", "--num_epochs", 8, "--batch_size", 3, "--eval_batch_size", 1]
    words += ["--optimizer", "adam_w", "--lr", 0.02, "--work_dir", folder, "--log_freq", 1, *more]
    return [str(word) for word in words]


def weights_in(folder):
    """All numbers of the modules in a folder's checkpoint, by file and name."""
    files = sorted(folder.rglob("Jasper*-STEP-*.safetensors"))
    return {(path.name, name): tensor.tolist() for path in files for name, tensor in load_file(path).items()}


def losses(text):
    return re.findall(r"\] Loss: (\S+)", text)


def check_all_ended_well(ends):
    assert [end.code for end in ends] == [0] * len(ends), "\n".join(end.out + end.err for end in ends)


def run_with_words_of_its_own(script, words_of_ranks):
    run_as_script(script, words_of_ranks[int(os.environ["RANK"])])


def test_processes_of_different_commands_end_at_once_and_name_the_options_with_their_values(corpus, tmp_path):
    others = (["--eval_freq", "1"], ["--lr", "0.5", "--num_epochs", "9", "--eval_freq", "2", "--random_seed", "7"])
    words = [training(corpus, tmp_path, *more) for more in others]
    ends = on_ranks(2, run_with_words_of_its_own, JASPER, words)
    assert [end.code for end in ends] == [2, 2]
    for end in ends:
        assert "the ranks do not agree: --num_epochs: rank 0 has 8, rank 1 has 9\n" in end.err
        assert "\n--lr: rank 0 has 0.02, rank 1 has 0.5\n" in end.err
        assert "\n--random_seed: rank 0 has 0, rank 1 has 7\n" in end.err
        assert "\n--eval_freq (EvaluatorCallback.eval_step): rank 0 has 1, rank 1 has 2; " in end.err
        assert "Traceback" not in end.err


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """The folder of a run on two processes, and how they ended."""
    folder = tmp_path_factory.mktemp("trained")
    ends = on_ranks(2, run_as_script, JASPER, training(corpus, folder))
    check_all_ended_well(ends)
    return folder / "Jasper", ends


@pytest.fixture(scope="module")
def model(trained, corpus):
    """Options of a script that uses the model."""
    return ["--model_config", str(corpus / "tones.yaml"), "--load_dir", str(trained[0] / "checkpoints")]


def test_the_first_process_says_everything_once_and_the_second_nothing(trained):
    _, (first, second) = trained
    assert second.out == second.err == ""
    rows = [rf"{rank} +\S+ +cpu +\S+ \(127\.0\.0\.1\)\n" for rank in range(2)]
    table = rf"2 ranks on 1 machine, gloo\nrank +host +device +interface\n{''.join(rows)}"
    assert len(re.findall(table, first.out)) == 1
    assert first.out.count("3 x 2 ranks = 6 items per step") == 1
    assert len(losses(first.out)) == 16
    assert first.out.count("Evaluation before the first step") == 1


def test_checkpoints_are_saved_once_and_each_process_has_its_log(trained):
    folder, _ = trained
    saved = {path.name: {file.name for file in path.iterdir()} for path in (folder / "checkpoints").glob("check*")}
    kinds = ("JasperEncoder-{}.safetensors", "JasperDecoderForCTC-{}.safetensors", "trainer-{}.safetensors")
    tags = [f"STEP-{step}" for step in (10, 12, 14, 16)]  # the newest four epochs
    assert saved == {f"checkpoint-{tag}": {"record.json", *(kind.format(tag) for kind in kinds)} for tag in tags}
    assert {path.name for path in folder.glob("log_*")} == {f"log_globalrank-{i}_localrank-{i}.txt" for i in (0, 1)}
    assert len(list((folder / "tensorboard").iterdir())) == 1


def test_an_evaluation_gives_the_same_on_any_number_of_processes_and_during_training(trained, model, corpus, tmp_path):
    _, (first, _) = trained
    words = [*model, "--eval_datasets", str(corpus / "dev.json"), str(corpus / "train.json"), "--batch_size", "1"]
    alone = run_script("jasper_eval.py", *words, "--out", tmp_path / "1")
    assert alone.code == 0, alone.err
    (told,) = re.findall(r"Evaluation WER dev: +(\S+)$", first.out, re.MULTILINE)[-1:]
    (ids,) = re.findall(r"Evaluated 4 items, ids (\w+)", first.out)[-1:]
    assert f"dev: WER {told} (" in alone.out
    assert f"dev: 4 utterances, ids {ids}, " in alone.out
    assert "0.00%" != told != "100.00%"
    for number in (2, 3):
        out = tmp_path / str(number)
        ends = on_ranks(number, run_as_script, EVAL, [*words, "--out", str(out)])
        check_all_ended_well(ends)
        results = [line for line in ends[0].out.splitlines() if line.startswith(("dev: ", "train: "))]
        assert "\n".join(results).replace(str(out), str(tmp_path / "1")) in alone.out
        assert len(results) == 8  # of each set: rates, items, where the transcripts and the files of sclite are
        assert not any(end.out for end in ends[1:])
        for name in ("dev.transcripts.jsonl", "train.transcripts.jsonl"):
            assert (out / name).read_bytes() == (tmp_path / "1" / name).read_bytes()


def test_transcripts_come_in_the_order_of_the_files(model, tmp_path):
    for name in FILES:
        record(tmp_path / name, name.removesuffix(".wav"))
    words = [*model, "--batch_size", "2", *FILES]
    alone = run_script("jasper_infer.py", *words)
    ends = on_ranks(2, run_as_script, INFER, words)
    check_all_ended_well(ends)
    assert ends[0].out.splitlines()[-len(FILES) :] == alone.out.splitlines()[-len(FILES) :]
    assert [line.partition(":")[0] for line in alone.out.splitlines()[-len(FILES) :]] == FILES
    assert ends[1].out == ""


@pytest.mark.long
def test_tasks_of_slurm_train_the_same_weights(trained, corpus, tmp_path):
    folder, (first, _) = trained
    job = {"SLURM_JOB_ID": str(free_port())}
    words = training(corpus, tmp_path, "--launcher", "slurm")
    tasks = [slurm_task(rank, "gpu08", 1, 2, **job) for rank in range(2)]
    ends = wait_all([start_script(JASPER, words, task) for task in tasks])
    check_all_ended_well(ends)
    assert losses(ends[0].out) == losses(first.out)
    assert weights_in(tmp_path) == weights_in(folder)


def test_another_number_than_num_gpus_is_one_line_on_each_process_and_leaves_nothing(corpus, tmp_path):
    for end in on_ranks(2, run_as_script, JASPER, training(corpus, tmp_path / "runs", "--num_gpus", 3)):
        assert end.code == 2
        assert end.out == ""
        assert re.fullmatch(r"jasper\.py: error: --num_gpus: 3 asked, the launcher started 2; .*\n", end.err)
    assert not (tmp_path / "runs").exists()


def test_a_run_goes_on_with_another_number_of_processes_where_that_is_allowed(trained, corpus, tmp_path):
    folder, _ = trained
    words = training(corpus, tmp_path, "--load_dir", folder / "checkpoints")
    words[words.index("--num_epochs") + 1] = "9"
    refused = on_ranks(3, run_as_script, JASPER, words)
    assert [end.code for end in refused] == [2, 2, 2]
    told = "".join(end.err for end in refused)  # by one of them
    assert "saved by another number of processes: got 2 saved it, 3 would go on, wanted as many; start 2;" in told
    ends = on_ranks(3, run_as_script, JASPER, [*words, "--allow_world_size_change"])
    check_all_ended_well(ends)
    assert "going on at step 16, at the start of epoch 9" in ends[0].out
    assert "2 processes saved the checkpoint, 3 will go on with it" in ends[0].out
    assert len(losses(ends[0].out)) == 2  # steps of nine utterances, of twelve


@pytest.mark.long
@pytest.mark.slow
def test_torchrun_started_as_users_start_it_trains_the_same_weights(trained, corpus, tmp_path):
    folder, (first, _) = trained
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2"]
    finished = run_process("jasper.py", *training(corpus, tmp_path), launcher=launcher)
    assert finished.code == 0, finished.err
    assert finished.losses == losses(first.out)
    assert weights_in(tmp_path) == weights_in(folder)
