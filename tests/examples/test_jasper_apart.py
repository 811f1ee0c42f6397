"""The scripts on processes that share no disk: what each must have, and what each leaves behind."""

import os
import re

import pytest
import torch
from toys.launched import run_as_script
from toys.ranks import on_ranks
from toys.tone_corpus import ASR, read_manifest, run_script, write_manifest

from nemo_lite.base.outputs import RECORD


def run_apart(folder, script, words):
    """As that script, in a folder of this process's own: relative paths are on its disk."""
    own = folder / os.environ["RANK"]
    own.mkdir(exist_ok=True)
    os.chdir(own)
    run_as_script(str(ASR / script), [str(word) for word in words])


def left_in(folder):
    """The files below a folder, but for the records of what was written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != RECORD]
    return {str(path.relative_to(folder)) for path in files}


@pytest.fixture
def options(corpus):
    return ["--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json", "--max_steps", 1]


def test_only_the_first_process_keeps_results_and_needs_the_checkpoints(options, corpus, tmp_path):
    (tmp_path / "1/runs/Jasper").mkdir(parents=True)
    for name in ("checkpoints", "tensorboard"):  # in their places nothing could be written
        (tmp_path / "1/runs/Jasper" / name).touch()
    ends = on_ranks(2, run_apart, tmp_path, "jasper.py", [*options, "--work_dir", "runs"])
    assert [end.code for end in ends] == [0, 0], ends[0].err + ends[1].err
    kept = {"checkpoints", "tensorboard", "log_globalrank-1_localrank-1.txt"}
    assert left_in(tmp_path / "1/runs/Jasper") == kept
    assert (tmp_path / "0/runs/Jasper/checkpoints/checkpoint-STEP-1/record.json").is_file()
    words = [*options[:2], "--load_dir", "runs/Jasper/checkpoints", "--eval_datasets", corpus / "dev.json"]
    ends = on_ranks(2, run_apart, tmp_path, "jasper_eval.py", [*words, "--out", "results", "--shard_weights"])
    assert [end.code for end in ends] == [0, 0], ends[0].err + ends[1].err
    assert ends[0].out.count("dev: WER ") == 1
    of_sclite = {f"sclite/dev.{name}" for name in ("ref.trn", "hyp.trn", "ref.stm", "hyp.ctm")}
    assert left_in(tmp_path / "0/results") == {"dev.transcripts.jsonl", "dev.scores.json", "report.html"} | of_sclite
    assert not (tmp_path / "1/results").exists()


def test_a_plan_is_printed_and_saved_once(options, tmp_path):
    ends = on_ranks(2, run_apart, tmp_path, "jasper.py", [*options, "--plan", "--work_dir", "runs"])
    assert [end.code for end in ends] == [0, 0], ends[0].err + ends[1].err
    assert "1 step in all" in ends[0].out
    assert ends[1].out == ""
    assert left_in(tmp_path / "0") == {"runs/Jasper/plan.txt", "runs/Jasper/training.svg"}
    assert left_in(tmp_path / "1") == set()


def test_the_plan_counts_the_steps_that_the_leftover_policy_gives(options, corpus, tmp_path):
    options[3] = write_manifest(tmp_path / "odd.json", read_manifest(corpus / "train.json")[:11])
    words = [*options[:4], "--num_epochs", 1, "--batch_size", 5, "--plan", "--uneven", "drop"]
    first, _ = on_ranks(2, run_apart, tmp_path, "jasper.py", words)  # with pad, two
    assert "1 step an epoch, 1 step in all" in first.out


def test_all_gpus_can_be_asked_for_and_the_line_that_starts_them_is_printed(options, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Volta")
    finished = run_script("jasper.py", *options, "--placement", "AllGpu", "--plan", "--amp_opt_level", "O0")
    line = f"torchrun --nproc-per-node=2 {ASR / 'jasper.py'} --model_config "
    assert f"so it runs on one GPU; for all: {line}" in finished.err


def test_an_evaluation_with_too_many_damaged_files_fails_alike_on_any_number_of_processes(options, corpus, tmp_path):
    config, lines = tmp_path / "lenient.yaml", read_manifest(corpus / "dev.json")
    config.write_text((corpus / "tones.yaml").read_text().replace("eval: {", "eval: {max_corrupt: 1, "))
    (tmp_path / "damaged.wav").write_bytes(b"damaged" * 100)
    manifest = tmp_path / "dev.json"
    write_manifest(manifest, [{**line, "audio_filepath": "damaged.wav"} for line in lines[:2]] + lines[2:])
    run_script("jasper.py", *options, "--checkpoint_dir", tmp_path / "saved")
    words = ["--model_config", config, "--load_dir", tmp_path / "saved", "--eval_datasets", manifest]
    words += ["--batch_size", 1]
    alone = run_script("jasper_eval.py", *words)
    assert (alone.code, alone.err.count("2 utterances cannot be used and max_corrupt allows 1")) == (2, 1)
    for end in on_ranks(2, run_apart, tmp_path, "jasper_eval.py", words):  # each reads one of them
        assert end.code == 2
        assert re.sub(r"^rank \d \(\w+\): ", "", end.err, flags=re.MULTILINE) == alone.err  # whose disk is damaged
        assert "WER" not in end.out
