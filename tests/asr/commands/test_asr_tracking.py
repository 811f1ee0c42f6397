"""What a training of the speech scripts records."""

import json
from argparse import Namespace

import pytest
from toys.fake_action_state import Writer

import nemo_asr
from nemo_lite.core import Optimization, trackers


class Factory:
    """What is needed of a factory: rank 0 of a run."""

    tb_writer: Writer | None = None
    optim_level = Optimization.mxprO1
    is_first = True

    def on_first(self, make):
        return make() if self.is_first else None


@pytest.fixture
def args(tmp_path):
    given = {"run_dir": tmp_path, "checkpoint_dir": None, "track": [], "exp_name": "mine", "report": True}
    return Namespace(**given, eval_metric="wer", placement=object, init_from=None)


def test_a_run_that_goes_on_reads_its_records_and_says_how_to_make_the_report(args, tmp_path, capsys):
    values = {"wer": 0.25, "cer": 0.1}
    first = nemo_asr.trackers_of(args, Factory())
    first.record("evaluation", step=5, set="dev", **values)
    first.record("model", step=5, set="dev", metric="wer", value=0.25, path="RUN/model")
    capsys.readouterr()
    second = nemo_asr.trackers_of(args, Factory())
    second.record("evaluation", step=9, set="dev", **{**values, "wer": 0.5})
    second.record("end", step=9, epoch=2, seconds=1.0, reason="SIGTERM")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dev  WER 50.0 % (best 25.0 % at 5)  CER 10.0 %"
    assert "Best model (WER 25.0 % of dev, step 5): RUN/model" in lines
    assert lines[-1] == f"Report so far: nemo-lite report {tmp_path}"


def test_a_classifier_s_run_tells_its_error_rate_and_how_to_evaluate(args, capsys):
    args.eval_metric, args.report = "error", False
    trackers = nemo_asr.trackers_of(args, Factory())
    trackers.record("evaluation", step=5, set="dev", loss=0.5, error=0.125)
    trackers.record("model", step=5, set="dev", metric="error", value=0.125, path="RUN/model")
    trackers.record("end", step=5, epoch=1, seconds=1.0, reason="finished")
    out = capsys.readouterr().out
    assert "dev  ERROR 12.5 %" in out
    assert f"Evaluate: nemo-lite eval {args.run_dir} --eval_datasets MANIFEST" in out


def test_a_run_is_recorded_in_its_folder_on_the_terminal_and_in_its_events(args, tmp_path, capsys):
    factory, writer = Factory(), Writer()
    factory.tb_writer = writer
    trackers = nemo_asr.trackers_of(args, factory)
    numbers = {"loss": 2.0, "lr": 0.1, "amount_per_second": 1.0, "data_wait_share": 0.0, "step_seconds": 1.0}
    trackers.record("train", step=1, epoch=1, amount_unit="audio-s", **numbers)
    trackers.record("checkpoint", step=1, epoch=1, path="x")
    trackers.record("end", step=1, epoch=1, seconds=1.0, reason="finished")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert writer.of("loss") == [(2.0, 1)]
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("epoch 1  step 1  loss 2  ")
    assert told[-1] == f"Transcribe: nemo-lite transcribe {tmp_path} FILES"


def test_other_ranks_and_a_run_without_a_folder_write_no_file(args, tmp_path):
    factory = Factory()
    factory.is_first = False
    nemo_asr.trackers_of(args, factory).record("start", total_steps=1)
    args.run_dir = None
    nemo_asr.trackers_of(args, Factory()).record("start", total_steps=1)
    assert [*tmp_path.iterdir()] == []


def test_registered_trackers_get_the_runs_name_and_folder(args, monkeypatch):
    made = []

    def make(name, folder):
        made.append((name, folder))
        return trackers.Tracker()

    monkeypatch.setitem(trackers.TRACKERS, "file", None)
    trackers.register_tracker("file", make, help_text="a file")
    args.track = ["file"]
    assert isinstance(nemo_asr.trackers_of(args, Factory()), trackers.Trackers)
    assert made == [("mine", args.run_dir)]


def test_the_start_says_arguments_versions_and_precision(args):
    started = nemo_asr.start_record(args, Factory())
    assert json.loads(json.dumps(started)) == started
    assert started["arguments"]["run_dir"] == str(args.run_dir)
    assert started["precision"] == "O1"
    assert sorted(started["versions"]) == ["nemo_lite", "python", "torch"]
