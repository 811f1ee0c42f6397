"""CheckpointCallback and ModuleSaverCallback: what is saved when, and what is restored."""

from __future__ import annotations

import pytest
from toys.fake_action_state import Encoder, FakeState, train

from nemo_lite.base.errors import CheckpointError, UnknownNameError, UsageError
from nemo_lite.core.callbacks import CheckpointCallback, ModuleSaverCallback, on_step_start


@pytest.fixture(autouse=True)
def _folders_are_made_elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_checkpoints_are_saved_by_steps_done_and_what_is_left_at_the_end():
    state = train(FakeState(), [CheckpointCallback("ck", step_freq=4, checkpoints_to_keep=2)], steps_per_epoch=10)
    assert state.saved == [("ck", "STEP", 4, 2), ("ck", "STEP", 8, 2), ("ck", "STEP", 10, 2)]


def test_a_checkpoint_is_told_in_a_line_or_recorded(capsys):
    train(FakeState(), [CheckpointCallback("ck", step_freq=5)], steps_per_epoch=5)
    assert "Saved checkpoint STEP-5 in ck\n" in capsys.readouterr().out
    records = []
    callback = CheckpointCallback("ck", step_freq=5, record=lambda kind, **fields: records.append((kind, fields)))
    train(FakeState(), [callback], steps_per_epoch=5)
    assert records == [("checkpoint", {"step": 5, "epoch": 1, "path": "ck/checkpoint-STEP-5"})]
    assert "Saved" not in capsys.readouterr().out


def test_a_checkpoint_that_holds_the_newest_state_is_not_written_again():
    state = train(FakeState(), [CheckpointCallback("ck", step_freq=5)], steps_per_epoch=10)
    assert [number for _, _, number, _ in state.saved] == [5, 10]


def test_checkpoints_are_saved_by_epochs():
    state = train(FakeState(), [CheckpointCallback("ck", epoch_freq=2)], num_epochs=5, steps_per_epoch=3)
    assert [(kind, number) for _, kind, number, _ in state.saved] == [("EPOCH", 6), ("EPOCH", 12), ("STEP", 15)]


@pytest.mark.parametrize("off", [None, -1])
def test_checkpoints_without_frequency_only_restore_and_say_so(off, capsys):
    state = train(FakeState(checkpoint="STEP-3"), [CheckpointCallback("ck", step_freq=off, epoch_freq=off)])
    assert (state.loaded, state.saved) == (["ck"], [])
    assert "CheckpointCallback saves nothing: neither step_freq, epoch_freq nor minutes" in capsys.readouterr().err


def test_a_callback_that_only_restores_from_elsewhere_gives_no_warning(capsys):
    state = train(FakeState(checkpoint="STEP-3"), [CheckpointCallback("ck", load_from_folder="pretrained")])
    assert state.loaded == ["pretrained"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("metric", "highest"),
    [("wer", False), ("CER", False), ("val_loss", False), ("accuracy", True), ("top1_acc", True), ("f1", True)],
)
def test_the_name_of_a_metric_says_which_values_are_good(metric, highest):
    callback = CheckpointCallback("ck", step_freq=1, best_of="dev", best_metric=metric)
    train(FakeState(), [callback])
    assert callback._best is not None
    assert callback._best.highest is highest


def test_of_a_metric_of_another_name_it_has_to_be_said_which_values_are_good():
    remedy = 'CheckpointCallback: it is not known whether a good mos is low or high; give best_is="lowest" or'
    with pytest.raises(UsageError, match=remedy):
        train(FakeState(), [CheckpointCallback("ck", step_freq=1, best_of="dev", best_metric="mos")])
    best = CheckpointCallback("ck", step_freq=1, best_of="dev", best_metric="mos", best_is="highest")._best
    assert best is not None
    assert best.highest


def test_nothing_is_saved_when_no_step_was_made():
    state = train(FakeState(), [CheckpointCallback("ck", step_freq=4)], num_epochs=0)
    assert state.saved == []


def test_an_empty_folder_is_told_in_one_line(capsys):
    train(FakeState(), [CheckpointCallback("ck", step_freq=100)], num_epochs=0)
    assert capsys.readouterr().out.count("No checkpoint in ck: training starts at step 0\n") == 1


def test_weights_that_were_asked_for_and_not_found_are_a_warning(capsys):
    train(FakeState(), [CheckpointCallback("ck", load_from_folder="pretrained")])
    assert "No checkpoint in pretrained" in capsys.readouterr().err


def test_force_load_makes_a_missing_checkpoint_an_error():
    with pytest.raises(CheckpointError, match="ck: there is no checkpoint to restore; check load_from_folder"):
        train(FakeState(), [CheckpointCallback("ck", step_freq=1, force_load=True)])


@pytest.mark.parametrize("wrong", [{"step_freq": 0}, {"epoch_freq": 0}, {"checkpoints_to_keep": 0}])
def test_checkpoint_numbers_below_one_are_refused(wrong):
    with pytest.raises(UsageError, match=rf"CheckpointCallback\.{next(iter(wrong))} is 0, wanted int from 1 on"):
        CheckpointCallback("ck", **wrong)


def test_modules_are_saved_under_class_or_name_and_the_newest_stay(tmp_path):
    callback = ModuleSaverCallback([Encoder(), Encoder("second")], 2, tmp_path / "new", checkpoints_to_keep=2)
    train(FakeState(), [callback], steps_per_epoch=7)
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == [f"{name}-STEP-{step}.safetensors" for name in ("Encoder", "second") for step in (6, 7)]


def test_files_that_the_run_did_not_save_are_left_alone(tmp_path):
    others = [tmp_path / "Encoder-STEP-1.safetensors", tmp_path / "Encoder2-STEP-2.safetensors"]
    for path in others:
        path.touch()
    train(FakeState(), [ModuleSaverCallback([Encoder()], 2, tmp_path, 1)], steps_per_epoch=4)
    assert all(path.exists() for path in others)
    assert sorted(path.name for path in tmp_path.iterdir() if path not in others) == ["Encoder-STEP-4.safetensors"]


def test_minus_one_saves_at_the_end_only(tmp_path):
    saver = ModuleSaverCallback([Encoder()], step_frequency=-1, folder=tmp_path)  # type: ignore[call-arg]  # older name
    train(FakeState(), [saver], steps_per_epoch=3)
    assert [path.name for path in tmp_path.iterdir()] == ["Encoder-STEP-3.safetensors"]


def test_a_second_run_into_the_same_files_keeps_them(tmp_path):
    callback = ModuleSaverCallback([Encoder()], -1, tmp_path, checkpoints_to_keep=1)
    for _ in range(3):
        train(FakeState(), [callback], steps_per_epoch=3)
    assert [path.name for path in tmp_path.iterdir()] == ["Encoder-STEP-3.safetensors"]


def test_two_modules_of_one_name_are_refused():
    with pytest.raises(CheckpointError, match='two modules would be saved as "Encoder"; give each its own name='):
        ModuleSaverCallback([Encoder(), Encoder()])


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="there is a file where a folder is wanted"):
        train(FakeState(), [ModuleSaverCallback([Encoder()], folder=tmp_path / "file")])


def test_an_epoch_and_a_step_that_fall_together_are_saved_once():
    state = train(FakeState(), [CheckpointCallback("ck", step_freq=2, epoch_freq=1)], steps_per_epoch=4)
    assert [(kind, number) for _, kind, number, _ in state.saved] == [("STEP", 2), ("EPOCH", 4)]
    saves = CheckpointCallback("ck", epoch_freq=1, epoch_names=False)
    assert train(FakeState(), [saves], steps_per_epoch=4).saved == [("ck", "STEP", 4, 4)]


def test_a_checkpoint_is_saved_when_the_last_is_old(monkeypatch):
    now = iter(range(0, 10**6, 25))
    monkeypatch.setattr("nemo_lite.core.callbacks.checkpoint.time.monotonic", lambda: next(now))
    state = train(FakeState(), [CheckpointCallback("ck", minutes=1.0)], steps_per_epoch=7)
    assert [number for _, _, number, _ in state.saved] == [3, 6, 7]


def test_a_checkpoint_that_another_callback_asks_for_is_saved_where_saving_is_on():
    @on_step_start
    def ask(state):
        if state.step == 2:
            state.request_save()

    saving, loading = CheckpointCallback("ck", epoch_freq=100), CheckpointCallback("other", load_from_folder="old")
    state = train(FakeState(checkpoint="old/STEP-1"), [ask, saving, loading])
    assert [(folder, number) for folder, _, number, _ in state.saved] == [("ck", 3), ("ck", 5)]


@pytest.mark.parametrize("about", [{"rate": float("inf")}, {"labels": object()}])
def test_what_json_cannot_hold_is_refused_before_training(about):
    with pytest.raises(UsageError, match=r"CheckpointCallback: about cannot be stored as JSON: got .*, wanted texts"):
        CheckpointCallback("ck", step_freq=1, about=about)


def test_an_unknown_format_is_answered_with_the_known_ones():
    with pytest.raises(UnknownNameError, match='format "pth" is not known; known: pt, safetensors') as caught:
        CheckpointCallback("ck", step_freq=1, format="pth")
    assert isinstance(caught.value, ValueError)
