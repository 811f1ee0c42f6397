"""Which batch fits: the search, its answer in a plan, and what is refused."""

import io
import json
import re

import numpy as np
import pytest
import soundfile
from toys.tone_corpus import make_corpus

import nemo_asr
from nemo_asr.argparse import AsrArgParser
from nemo_asr.commands import batch_finding
from nemo_asr.commands.batch_finding import Bucket, find, largest_batch, rate_of, time_told
from nemo_asr.commands.cli import train
from nemo_asr.commands.training import TrainingRun
from nemo_asr.data.dataset import BatchShape
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.features import spectra
from nemo_asr.models.transducer import lattice, sliced_joint
from nemo_lite.backends.pytorch.iterations import iterations
from nemo_lite.base.errors import UsageError
from nemo_lite.base.launch import ProcessInfo
from nemo_lite.core.trackers import MetricsFile


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("tones"))


@pytest.mark.parametrize(
    ("bytes_of", "limit", "most"),
    [
        (lambda items: 100 + 10 * items, 1000, 4096),
        (lambda items: 100 + 10 * items, 105, 4096),
        (lambda items: 100 + 10 * items, 10**9, 4096),
        (lambda items: 100 + 10 * items, 10**9, 1),
        (lambda items: 50 + items * items, 100_000, 4096),
        (lambda items: 1000 + 7 * min(items, 20) + 3 * items, 2000, 4096),
        (lambda items: 1000 + 100 * -(-items // 16), 5000, 4096),
        (lambda items: 1000 + 100 * min(items, 20), 3000, 4096),  # at the limit, and no growth
        (lambda items: 1000 + 100 * -(-items // 500), 1100, 4096),
    ],
)
def test_the_largest_batch_is_found_in_a_few_counts(bytes_of, limit, most):
    counts = []

    def counted(items):
        counts.append(items)
        return bytes_of(items)

    items, taken = largest_batch(counted, limit, most)
    best = max((number for number in range(1, most + 1) if bytes_of(number) <= limit), default=0)
    assert items <= best <= items + max(1, items // 50)
    assert taken == bytes_of(max(items, 1))
    assert len(counts) <= 24  # 3 or 4 where bytes are in proportion


def test_the_longest_utterances_come_first_and_one_that_does_not_fit_is_told():
    buckets = [Bucket(BatchShape(8, 16.0, 100), 500), Bucket(BatchShape(8, 4.0, 30), 500)]
    fits = find(buckets, lambda shape: int(1000 + shape.items * shape.seconds * 10), 20_000)
    assert [fit.items for fit in fits] == [118, 475]
    with pytest.raises(UsageError, match=r"not even one utterance fits: got 0 MiB for one of 16.0 s and 100 labels"):
        find(buckets, lambda shape: 10**5, 20_000)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_tells_on_a_terminal_alone_which_bucket_and_batch_is_counted(is_terminal, monkeypatch):
    err = io.StringIO()
    err.isatty = lambda: is_terminal
    monkeypatch.setattr("sys.stderr", err)
    buckets = [Bucket(BatchShape(8, seconds, 100), 500) for seconds in (16.0, 4.0)]
    shown = []
    find(buckets, lambda shape: shown.append(err.getvalue()) or 1000 * shape.items, 20_000)
    assert ("finding batches:   0%" in shown[0] and "batch of 1]" in shown[0]) == is_terminal
    assert ("| 1/2 [" in shown[-1] and "batch of 21]" in shown[-1]) == is_terminal
    if not is_terminal:
        assert err.getvalue() == ""


def test_the_time_follows_from_the_rate_given_or_measured(tmp_path):
    assert time_told(36_000, 10.0, "as given").startswith("1 h 0 min to the end, at 10 seconds of audio a second")
    assert time_told(1_200, 10.0, "as given").startswith("2 min 0 s to the end, at 10 seconds of audio a second")
    assert "at 0.0123 seconds of audio a second" in time_told(36, 0.01234, "as given")
    assert "at 1235 seconds of audio a second" in time_told(36_000, 1234.6, "as given")
    assert time_told(36_000, None, "").startswith("time to the end: not known; give --rate")
    records = [{"kind": "train", "amount_per_second": rate} for rate in (0.0, 4.0, 6.0)] + [{"kind": "end"}]
    assert rate_of(records) == 5.0
    assert rate_of([]) is None


def plan(corpus, *more):
    data = ["--train_dataset", str(corpus / "train.json"), "--num_epochs", "2", "--batch_size", "5"]
    train.plan(["--model_config", str(corpus / "tones.yaml"), *data, *more])


def test_a_plan_shows_the_memory_of_the_largest_batch(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    plan(corpus)
    line = r"memory of the largest batch \(5 items of 0\.7 s with 4 labels\): \d+ MiB of tensors: weights \d+ MiB, "
    assert re.search(line + r"optimizer \d+ MiB, the step \d+ MiB\n", capsys.readouterr().out)


@pytest.mark.slow
def test_a_transducer_is_counted_without_most_iterations_of_its_loss_and_to_the_byte(corpus, monkeypatch):
    options = ["--model_config", "tdt_digits", "--train_dataset", str(corpus / "train.json"), "--num_epochs", "1"]
    run = TrainingRun(AsrArgParser(prog="plan").parse_args([*options, "--plan"]))
    finding = run.batch_finding(nemo_asr.connect(run.model, run.training_data, training=True).scored[0], {})
    shape, left_out = BatchShape(120, 0.7, 6), []  # slices of two sizes

    def all_of(items, tensor, needed):
        left_out.append(len(items) - len(iterations(items, tensor, needed)))
        return items

    counted = finding.counted(shape)
    for module in (lattice, sliced_joint):
        monkeypatch.setattr(module, "iterations", all_of)
    assert finding.counted(shape) == counted
    assert min(left_out) > 3
    assert len(left_out) == 4  # two passes of the lattice and two of the joint


def test_a_plan_finds_the_batch_for_a_device_and_the_hours(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    plan(corpus, "--find_batch", "--device", "34MiB", "--rate", "0.01")
    said = capsys.readouterr().out
    assert "largest batch on 34MiB (34 MiB, 2 MiB of them for tensors), counted by shapes:\n" in said
    (batch,) = re.findall(r"give --batch_size (\d+);", said)
    assert 1 <= int(batch) < 12
    assert re.search(r"\d+ min \d+ s to the end, at 0\.01 seconds of audio a second \(as given\)", said)


def test_processes_of_a_machine_share_its_memory(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nemo_asr.options.own_memory", lambda: 4 << 30)
    of_two, of_all = (ProcessInfo(0, 4, 0, number, None, "pytorch", ("a", 1)) for number in (2, None))
    for processes, told in ((None, "cpu (4.0 GiB, "), (of_two, "cpu (2.0 GiB, "), (of_all, "cpu (1.0 GiB, ")):
        monkeypatch.setattr(batch_finding, "who_am_i", lambda processes=processes, **_: processes)
        plan(corpus, "--find_batch", "--rate", "1")
        assert f"largest batch on {told}" in capsys.readouterr().out


def test_a_batch_that_is_counted_takes_the_memory_of_one_item(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    made = []
    make = SpeechDataLayer.made_up_batch
    monkeypatch.setattr(SpeechDataLayer, "made_up_batch", lambda self, shape: made.append(shape) or make(self, shape))
    plan(corpus, "--find_batch", "--device", "h200", "--rate", "1")
    assert "give --batch_size" in capsys.readouterr().out
    assert {shape.items for shape in made} == {1}


def test_a_large_batch_is_counted_without_most_blocks_of_its_features_and_to_the_byte(corpus, monkeypatch):
    options = ["--model_config", str(corpus / "tones.yaml"), "--train_dataset", str(corpus / "train.json")]
    run = TrainingRun(AsrArgParser(prog="plan").parse_args([*options, "--num_epochs", "1", "--plan"]))
    finding = run.batch_finding(nemo_asr.connect(run.model, run.training_data, training=True).scored[0], {})
    shape, left_out = BatchShape(100, 4.0, 6), []

    def all_of(items, tensor, needed):
        left_out.append(len(items) - len(iterations(items, tensor, needed)))
        return items

    counted = finding.counted(shape)
    monkeypatch.setattr(spectra, "iterations", all_of)
    assert finding.counted(shape) == counted
    assert max(left_out) > 3


@pytest.fixture
def long_set(tmp_path):
    """An evaluation set of twenty utterances, each much longer than those of the corpus."""
    soundfile.write(tmp_path / "long.wav", np.zeros(8 * 16000), 16000)
    line = json.dumps({"audio_filepath": "long.wav", "duration": 8.0, "text": "ab"})
    (tmp_path / "long.json").write_text(f"{line}\n" * 20)
    return str(tmp_path / "long.json")


def test_a_plan_tells_of_an_evaluation_that_takes_more_than_a_step(corpus, long_set, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    plan(corpus, "--eval_datasets", long_set, "--eval_batch_size", "9")
    said = capsys.readouterr().out
    assert re.search(r"^memory of an evaluation of long \(9 items of 8\.0 s with 2 labels\): \d+ MiB", said, re.M)
    plan(corpus, "--eval_datasets", long_set, "--find_batch", "--device", "40MiB")
    (items,) = re.findall(
        r"^give --eval_batch_size (\d+); the 8\.0 s of the longest utterance of long decide",
        capsys.readouterr().out,
        re.M,
    )
    assert 1 <= int(items) < 12
    plan(corpus, "--eval_datasets", long_set, "--find_batch", "--device", "40MiB", "--eval_batch_size", items)
    assert "--eval_batch_size" not in capsys.readouterr().out
    plan(corpus, "--eval_datasets", long_set, "--find_batch", "--device", "34MiB")
    said = capsys.readouterr().out
    assert "\n8.0 s of the longest utterance of long take 4 MiB in an evaluation: shorten it, or leave long out" in said


def test_on_a_cpu_an_evaluation_is_counted_beside_the_steps(corpus, long_set, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = ["--model_config", str(corpus / "tones.yaml"), "--train_dataset", str(corpus / "train.json")]
    options += ["--eval_datasets", long_set, "--plan", "--num_epochs", "1"]
    run = TrainingRun(AsrArgParser(prog="plan").parse_args(options))
    evaluations = {tag: nemo_asr.connect(run.model, layer) for tag, layer in run.evaluation_data.items()}
    finding = run.batch_finding(nemo_asr.connect(run.model, run.training_data, training=True).scored[0], evaluations)
    step = finding.counted(run.training_data.largest_shape()._replace(items=5))
    of_two = finding.evaluation_counted("long", run.evaluation_data["long"].largest_shape()._replace(items=2))
    monkeypatch.setattr(batch_finding, "share_of", lambda name: 1.0)
    size = (128 << 20) + step.peak + step.kept + of_two + 1000
    monkeypatch.setattr(batch_finding, "memory", lambda _: ("cpu", size))
    data = "--eval_datasets", long_set, "--find_batch"
    plan(corpus, *data, "--eval_batch_size", "2")
    said = capsys.readouterr().out
    assert "give --batch_size 5;" in said
    assert "--eval_batch_size" not in said
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # what the steps free is there for an evaluation
    plan(corpus, *data)
    trimmed = capsys.readouterr().out
    assert int(re.findall(r"give --batch_size (\d+);", trimmed)[0]) > 5
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")
    plan(corpus, *data)  # room for one is left, whatever more there is goes to training
    said = capsys.readouterr().out
    assert int(re.findall(r"give --batch_size (\d+);", said)[0]) > 5
    assert "give --eval_batch_size 1; the 8.0 s of the longest utterance of long decide" in said
    assert "give --eval_batch_size 1;" not in trimmed
    of_one = finding.counted(run.training_data.largest_shape()._replace(items=1))
    size = (128 << 20) + of_one.peak + of_one.kept + 1000
    plan(corpus, *data)
    assert "of the longest utterance of long take" in capsys.readouterr().out


def test_on_a_cpu_a_checkpoint_that_is_written_beside_the_steps_is_counted(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = ["--model_config", str(corpus / "tones.yaml"), "--train_dataset", str(corpus / "train.json")]
    run = TrainingRun(AsrArgParser(prog="plan").parse_args([*options, "--plan", "--num_epochs", "1"]))
    finding = run.batch_finding(nemo_asr.connect(run.model, run.training_data, training=True).scored[0], {})
    bytes_of_five = finding.counted(run.training_data.largest_shape()._replace(items=5)).peak
    found = {}
    monkeypatch.setattr(batch_finding, "share_of", lambda name: 1.0)
    for name in ("cpu", "gpu"):
        size = ((128 if name == "cpu" else 32) << 20) + bytes_of_five + 1000
        monkeypatch.setattr(batch_finding, "memory", lambda _, name=name, size=size: (name, size))
        plan(corpus, "--find_batch")
        said = capsys.readouterr().out
        found[name] = re.findall(r"give --batch_size (\d+);", said)
    assert found == {"cpu": ["4"], "gpu": ["5"]}
    assert re.search(r"^while a checkpoint is written, \d+ MiB more$", said, re.M)


def test_in_bfloat16_a_plan_says_what_kernels_keep(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    plan(corpus)
    assert "kernels" not in capsys.readouterr().out
    plan(corpus, "--amp_opt_level", "O1", "--amp_dtype", "bfloat16")
    assert re.search(r"^kernels of bfloat16 products keep \d+ MiB more$", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            "--find_batch --device h900",
            "argument --device: 'h900' is none of h200, h100, a100, a100_40, l4, t4, ",
        ),
        ("--device cuda", "where a run computes is --placement CPU, GPU or AllGpu"),
        ("--find_batch --device 0GiB", "argument --device: '0GiB' is none of"),
        ("--device h200", "--device has no effect without --find_batch; leave it out"),
        ("--rate 3", "--rate has no effect without --find_batch; leave it out"),
        ("--find_batch --rate 0", "argument --rate: '0' is not a number"),
        ("--find_batch --device 1KiB", "argument --device: '1KiB' is none of"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(corpus, capsys, options, line):
    with pytest.raises(SystemExit) as stopped:
        plan(corpus, *options.split())
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_less_memory_than_the_weights_is_refused_in_a_line(corpus, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"not even one utterance fits: got .* for one of 0\.7 s and 4 labels, wanted"):
        plan(corpus, "--find_batch", "--device", "0.01MiB")


def test_the_rate_of_the_run_is_taken(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "x").mkdir(parents=True)
    MetricsFile(tmp_path / "runs" / "x" / "metrics.jsonl").write({"kind": "train", "amount_per_second": 2.0})
    plan(corpus, "--find_batch", "--device", "34MiB", "--work_dir", "runs", "--exp_name", "x")
    assert "at 2 seconds of audio a second (measured in runs/x)" in capsys.readouterr().out
