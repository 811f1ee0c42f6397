"""jasper.py: every option has the effect that --help promises, in the spellings of both generations."""

import itertools
import json
import re

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toys.tone_corpus import read_manifest, run_process, run_script, write_manifest

import nemo_asr
from nemo_asr.argparse import AsrArgParser
from nemo_lite.core.trackers import read_metrics

NUMBERS = itertools.count()
# Options that the parser turns into others.
FOLDED = {
    *("beta1", "beta2", "disable_mixed_precision", "global_batch_size", "imports", "num_gpus", "work_dir"),
    *("exp_name", "log_level", "log_style", "label_smoothing"),
    "allow_feature_change",  # read with --init_from
}


@pytest.fixture
def base(corpus):
    """What every run needs, of 3 steps, each logged."""
    options = {"model_config": corpus / "tones.yaml", "train_dataset": corpus / "train.json", "max_steps": 3}
    return [*flat(options), "--batch_size", "4", "--log_freq", "1"]


def flat(options):
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def train(*args):
    """A run; in a folder of its own where the options name none."""
    if not {"--work_dir", "--exp_name", "--checkpoint_dir", "--logdir"} & set(args):
        args = (*args, "--work_dir", f"runs{next(NUMBERS)}")
    finished = run_script("jasper.py", *args)
    assert finished.code == 0, finished.err
    return finished


@pytest.mark.slow
def test_both_spellings_of_a_run_give_the_same_losses_to_the_last_bit(corpus):
    newer = train(
        *("--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json"),
        *("--eval_datasets", corpus / "dev.json", corpus / "other.json", "--num_epochs", 2, "--batch_size", 2),
        *("--iter_per_step", 2, "--work_dir", "newer", "--checkpoint_save_freq", 3, "--amp_opt_level", "O0"),
        *("--log_freq", 1),
    )
    older = train(
        *("--model_config", corpus / "tones.yaml", "--train_manifest", corpus / "train.json"),
        *("--val_manifest1", corpus / "dev.json", "--val_manifest2", corpus / "other.json", "--num_epochs", 2),
        *("--batch_size", 2, "--batch_per_step", 2, "--logdir", "older", "--save_freq", 3),
        *("--disable_mixed_precision", "--num_gpus", 1, "--log_freq", 1),
    )
    assert len(newer.losses) == 6
    assert newer.losses == older.losses
    evaluated = [re.findall(r"Evaluation (?:Loss|WER) .*", finished.out) for finished in (newer, older)]
    assert len(evaluated[0]) == 12  # before the first step and after both epochs
    assert evaluated[0] == evaluated[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 3),
        ("iter_per_step", 2),
        ("lr", 0.5),
        ("lr_policy", "WarmupPolicy"),
        ("warmup_steps", 2),
        ("min_lr", 0.01),
        ("grad_norm_clip", 0.001),
        ("weight_decay", 0.9),
        ("optimizer", "sgd"),
        ("beta1", 0.1),
        ("beta2", 0.9),
        ("random_seed", 7),
        ("amp_opt_level", "O1"),
        ("amp_dtype", "bfloat16"),
    ],
)
def test_what_shapes_the_training_changes_the_losses(option, value, base, plain_losses):
    changed = train(*base, f"--{option}", value).losses
    assert len(changed) == len(plain_losses) == 3
    assert changed[1:] != plain_losses[1:]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("option", [("--num_workers", 1), ("--placement", "CPU"), ("--num_gpus", 1)])
def test_what_is_only_about_machines_does_not(option, base, plain_losses):
    assert train(*base, *option).losses == plain_losses


@pytest.fixture(scope="module")
def plain_losses(corpus, tmp_path_factory):
    options = {"model_config": corpus / "tones.yaml", "train_dataset": corpus / "train.json", "max_steps": 3}
    folder = tmp_path_factory.mktemp("plain")  # a fixture of a module does not start in a folder of its own
    return train(*flat(options), "--batch_size", 4, "--log_freq", 1, "--work_dir", folder).losses


def test_every_option_is_read_by_the_script_or_folded_by_the_parser(base, corpus, monkeypatch):
    read = set()
    parse = AsrArgParser.parse_args

    def recording(self, args=None, namespace=None):
        parsed = parse(self, args, namespace)
        options.update(vars(parsed))

        class Recorder:
            def __getattr__(self, name):
                read.add(name)
                return getattr(parsed, name)

        return Recorder()

    options = {}
    monkeypatch.setattr(AsrArgParser, "parse_args", recording)
    train(*base, "--eval_datasets", corpus / "dev.json", "--work_dir", "runs")
    assert set(options) - read == FOLDED | {"find_batch", "rate", "device"}  # those of a plan alone


def test_the_precision_is_said_with_its_default(base):
    assert "Precision O0: float32 throughout" in train(*base, "--placement", "CPU").out
    assert "Precision O1: bfloat16 where torch.amp finds it safe" in train(*base, "--amp_opt_level", "O1").out


@pytest.mark.slow
def test_the_place_is_said_once_unless_it_was_asked_for(base):
    where = r"Running on .* \(no placement was asked for\)"
    assert len(re.findall(where, train(*base).out)) == 1
    assert not re.findall(where, train(*base, "--placement", "CPU").out)


@pytest.mark.slow
def test_frequencies_say_when_to_log_evaluate_and_save(base, corpus, tmp_path):
    finished = train(
        *(*base, "--max_steps", 6, "--log_freq", 2, "--eval_datasets", corpus / "dev.json", "--eval_freq", 4),
        *("--work_dir", "runs", "--checkpoint_save_freq", 2, "--exp_name", "mine"),
    )
    assert re.findall(r"Step: (\d+)", finished.out) == ["0", "2", "4"]
    assert len(re.findall("Evaluation WER dev", finished.out)) == 3  # at the start, at step 4, at the end
    saved = sorted(path.name for path in (tmp_path / "runs/mine/checkpoints").glob("checkpoint-*"))
    assert saved == [
        f"checkpoint-STEP-{step}" for step in (2, 3, 4, 6)
    ]  # the newest 4: 3 and 6 end epochs, 4 was evaluated


@pytest.mark.slow
def test_evaluations_come_after_every_so_many_steps_and_by_default_after_each_short_epoch(base, corpus, tmp_path):
    options = ("--max_steps", 8, "--eval_datasets", corpus / "dev.json", "--work_dir", "runs")
    for given, steps in (((), [0, 3, 6, 8]), (("--eval_freq", 4), [0, 4, 8])):
        name = f"every{len(given)}"
        finished = train(*base, *options, *given, "--exp_name", name)
        assert finished.code == 0, finished.err
        records = read_metrics(tmp_path / "runs" / name / "metrics.jsonl")
        assert [record["step"] for record in records if record["kind"] == "evaluation"] == steps


def test_the_log_is_one_line_a_logging_step_one_an_evaluation_and_a_summary(base, corpus, tmp_path):
    finished = train(
        *(*base, "--max_steps", 4, "--log_freq", 2, "--eval_datasets", corpus / "dev.json", "--eval_freq", 100),
        *("--work_dir", "runs", "--log_style", "plain"),
    )
    lines = [line for line in finished.out.splitlines() if line.startswith(("epoch ", "dev  ", "Done: ", "  dev  "))]
    rates = r"WER \d+\.\d %( \(best( .*)?\))?  CER \d+\.\d %"
    step = r"epoch \d  step {}/4  loss [\d.]+  lr \d\.\de-\d  [\d.]+ audio-s/s  data \d+ %(  [\d.]+ s left)?"
    wanted = [f"dev  {rates}  n=4", *(step.format(number) for number in (1, 2, 4)), f"dev  {rates}  n=4"]
    with_intervals = rates.replace(" %", r" % \[[\d.]+ to [\d.]+\]")
    wanted += [r"Done: 4 steps, 2 epochs in .* s", f"  dev  {with_intervals}"]
    assert [re.fullmatch(pattern, line) is not None for pattern, line in zip(wanted, lines, strict=True)] == [True] * 7
    assert not re.search(r"NeMo|\.py|=====|\d\.\d{6}|\w:\d+\]", finished.out)
    (log,) = (tmp_path / "runs/Jasper").glob("log*.txt")
    assert len(re.findall(r"^\[NeMo I .* rank:0\] epoch ", log.read_text(), re.MULTILINE)) == 3


@pytest.mark.slow
def test_a_run_leaves_its_records_and_the_transcripts_of_its_sets(base, corpus, tmp_path):
    options = (
        "--eval_datasets",
        corpus / "dev.json",
        corpus / "other.json",
        "--work_dir",
        "runs",
        "--track",
        "tensorboard",
    )
    finished = train(*base, *options)
    records = [*read_metrics(tmp_path / "runs/Jasper/metrics.jsonl")]
    assert [record["kind"] for record in records if record["kind"] in ("start", "end")] == ["start", "end"]
    assert [record["loss"] for record in records if record["kind"] == "train"] == [*map(float, finished.losses)]
    wers = [f"{100 * record['wer']:.2f}" for record in records if record["kind"] == "evaluation"]
    assert wers == re.findall(r"Evaluation WER \w+: +([\d.]+)%", finished.out)
    assert records[0]["arguments"]["batch_size"] == 4
    assert (records[0]["precision"], records[0]["total_steps"], records[-1]["reason"]) == ("O0", 3, "finished")
    for name in ("dev", "other"):
        rows = (tmp_path / f"runs/Jasper/transcripts/{name}.transcripts.jsonl").read_text().splitlines()
        assert [json.loads(row)["reference"] for row in rows] == [
            line["text"] for line in read_manifest(corpus / f"{name}.json")
        ]


@pytest.mark.parametrize("style", ["plain", "nemo"])
def test_both_styles_of_the_log_write_the_same_curves(style, base, corpus, tmp_path):
    train(*base, "--eval_datasets", corpus / "dev.json", "--work_dir", "runs", "--log_style", style)
    events = EventAccumulator(str(tmp_path / "runs/Jasper/tensorboard")).Reload()
    assert {"loss", "param/lr", "misc/step_time", "misc/epoch", "dev/loss", "dev/wer", "dev/cer"} <= {
        *events.Tags()["scalars"]
    }
    assert len(events.Scalars("loss")) == 3


@pytest.mark.slow
def test_the_level_hides_lines_or_shows_where_they_come_from(base):
    assert train(*base, "--log_level", "warning", "--log_style", "plain").out == ""
    assert re.search(
        r"^\[trackers:\d+\] epoch 1", train(*base, "--log_level", "debug", "--log_style", "plain").out, re.M
    )


@pytest.mark.slow
def test_max_steps_and_num_epochs_end_the_run(base, corpus):
    assert len(train(*base, "--max_steps", 5).losses) == 5
    epochs = [part if part != "--max_steps" else "--num_epochs" for part in base]
    assert len(train(*epochs).losses) == 9  # 12 utterances, 4 in a batch


def test_a_run_leaves_its_model_a_checkpoint_its_records_and_a_page_about_it(base, tmp_path):
    train(*base, "--work_dir", "runs")
    folder = tmp_path / "runs/Jasper"
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    left = {re.sub(r"_2\d{3}-.*?\.|(?<=-)[0-9a-f]{8}(?=\.)|\.tfevents.*", ".", path) for path in paths}
    assert left == {
        "log_globalrank-0_localrank-0.txt",
        "cmd-args.log",
        "tones.yaml",
        "metrics.jsonl",
        "report.html",
        ".nemo_lite_outputs",
        "training.svg",
        "tensorboard/events.out.",
        "checkpoints/checkpoint-STEP-3/JasperEncoder-STEP-3.safetensors",
        "checkpoints/checkpoint-STEP-3/JasperDecoderForCTC-STEP-3.safetensors",
        "checkpoints/checkpoint-STEP-3/trainer-STEP-3.safetensors",
        "checkpoints/checkpoint-STEP-3/record.json",
        "checkpoints/.lock",
        "model/JasperEncoder-..safetensors",
        "model/JasperDecoderForCTC-..safetensors",
        "model/config-..yaml",
        "model/model.json",
    }
    (log,) = folder.glob("log*.txt")
    assert "Precision O0" in log.read_text()


@pytest.mark.slow
def test_folders_can_be_chosen_one_by_one(base, tmp_path):
    train(*base, "--checkpoint_dir", "checkpoints", "--tensorboard_dir", "events")
    assert (tmp_path / "checkpoints" / "checkpoint-STEP-3" / "record.json").is_file()
    assert len(list((tmp_path / "events").glob("events.*"))) == 1
    train(*base, "--work_dir", "runs", "--no-create_tb_writer")
    assert not (tmp_path / "runs/Jasper/tensorboard").exists()


@pytest.mark.slow
def test_without_a_folder_the_results_go_to_runs_and_a_plan_leaves_nothing(base, tmp_path):
    assert run_script("jasper.py", *base, "--plan").code == 0
    assert list(tmp_path.iterdir()) == []
    assert run_script("jasper.py", *base).code == 0
    assert (tmp_path / "runs/Jasper/model/model.json").is_file()
    again = run_script("jasper.py", *base)
    assert again.code == 0
    assert "There is nothing left to train: got 3 steps (1 epoch) done" in again.err
    assert "or another --exp_name" in again.err


@pytest.mark.slow
def test_a_run_of_another_configuration_under_the_same_name_is_refused_and_changes_nothing(base, corpus, tmp_path):
    train(*base, "--work_dir", "runs")
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    text = (corpus / "tones.yaml").read_text().replace("model: Tones", "model: Chords")
    (tmp_path / "chords.yaml").write_text(text)
    for more in ((), ("--plan",)):
        options = ("--model_config", "chords.yaml", "--max_steps", 5, "--work_dir", "runs", *more)
        again = run_script("jasper.py", *base, *options)
        assert again.code == 2
        told = 'chords.yaml:1:1: the configuration is not the one with which this run began: got model "Chords", wanted'
        assert told in again.err
        assert "or another --exp_name; to start anew from its weights use --init_from" in again.err
    assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()} == before
    train(*base, "--max_steps", 5, "--work_dir", "runs", "--lr", 0.001, "--label_smoothing", 0.1)


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_and_from_another_runs_checkpoints(base, tmp_path):
    first = train(*base, "--work_dir", "runs")
    again = train(*base, "--max_steps", 5, "--work_dir", "runs")
    assert "going on at step 3" in again.out
    assert len(again.losses) == 2
    over = run_script(
        "jasper.py", *base, "--max_steps", 5, "--load_dir", "runs/Jasper/checkpoints", "--work_dir", "other"
    )
    assert over.code == 2
    assert "there is nothing left to train: got 5 steps" in over.err
    assert "--max_steps is a total; use --max_steps 10, --init_from or another --exp_name" in over.err
    assert not (tmp_path / "other").exists(), "told before the folder is made"
    finished = train(*base, "--max_steps", 5, "--work_dir", "runs")
    assert "There is nothing left to train: got 5 steps" in finished.err
    assert "going on at step" not in finished.out
    unsaved = train(*base, "--max_steps", 6, "--load_dir", "runs/Jasper/checkpoints")
    assert len(unsaved.losses) == 1
    assert first.losses[0] not in unsaved.losses


@pytest.mark.slow
def test_loading_and_evaluation_options_reach_the_data_layers(base, corpus, monkeypatch):
    seen = {}
    make = nemo_asr.Recipe.data_layer

    def recording(self, manifest, training, **overrides):
        seen["train" if training else "eval"] = overrides
        return make(self, manifest, training, **overrides)

    monkeypatch.setattr(nemo_asr.Recipe, "data_layer", recording)
    train(*base, "--eval_datasets", corpus / "dev.json", "--eval_batch_size", 2, "--num_workers", 0)
    assert seen == {
        "train": {"batch_size": 4, "num_workers": 0},
        "eval": {"batch_size": 2, "num_workers": 0},
    }
    train(*base, "--eval_datasets", corpus / "dev.json")
    assert seen["eval"] == {"batch_size": 4}


def test_cudnn_times_its_algorithms_if_asked_to(base):
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    try:
        train(*base, "--cudnn_benchmark")
        assert torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before


@pytest.mark.slow
def test_validation_sets_of_the_same_stem_have_different_tags(base, corpus, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_manifest(tmp_path / folder / "dev.json", read_manifest(corpus / "dev.json"))
    out = train(*base, "--eval_datasets", "one/dev.json", "two/dev.json", "--work_dir", "runs").out
    assert re.findall(r"WER (\S+):", out) == ["one_dev", "two_dev"] * 2


def test_more_processes_than_were_started_is_one_line(base):
    finished = run_script("jasper.py", *base, "--num_gpus", 8)
    assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1)
    assert "--num_gpus: 8 asked, no launcher started this process" in finished.err


@pytest.mark.slow
def test_hold_and_momentum_shape_the_training_and_what_has_no_effect_is_one_line(base, plain_losses):
    held = train(*base, "--lr_policy", "PolynomialHoldDecayAnnealing", "--hold_steps", 2)
    kept = train(*base, "--lr_policy", "WarmupPolicy")
    assert held.losses == kept.losses != plain_losses
    assert train(*base, "--bn_momentum", 0.5).losses == plain_losses  # running statistics act in evaluation only
    for options, told in (
        (["--hold_steps", 2], "--hold_steps has no effect with --lr_policy CosineAnnealing; leave it out"),
        (["--bn_momentum", 2], "argument --bn_momentum: '2' is not a number above 0, up to 1"),
        (["--grad_norm_clip", 0], "argument --grad_norm_clip: '0' is not a number above 0"),
    ):
        finished = run_script("jasper.py", *base, *options)
        assert (finished.code, finished.err.count("\n")) == (2, 1)
        assert told in finished.err


def test_a_warm_up_longer_than_the_run_is_said(base):
    assert "The run has 3 steps, and the learning rate rises in all of them" in train(*base, "--warmup_steps", 30).err


@pytest.mark.long
@pytest.mark.slow
def test_a_process_of_its_own_trains(base):
    finished = run_process("jasper.py", *base, "--max_steps", 1)
    assert finished.code == 0, finished.err
    assert len(finished.losses) == 1


@pytest.mark.slow
def test_recordings_of_the_training_set_in_an_evaluation_set_are_warned_of(corpus):
    options = ["--model_config", corpus / "tones.yaml", "--max_steps", 1, "--train_dataset", corpus / "train.json"]
    finished = run_script("jasper.py", *options, "--eval_datasets", corpus / "train.json", corpus / "other.json")
    assert finished.code == 0, finished.err
    assert "train: 12 of 12 recordings are in the training set as well" in finished.err
    assert "other: " not in finished.err
