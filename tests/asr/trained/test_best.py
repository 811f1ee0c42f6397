"""BestModelCallback: when it writes, what it writes, and that all ranks take the same decision."""

from __future__ import annotations

import hashlib
import math

import pytest
from toys.fake_action_state import FakeState
from toys.tone_corpus import CONFIG

import nemo_asr
from nemo_asr.trained.folder import read_model
from nemo_asr.trained.model import describe
from nemo_lite.base.errors import CheckpointError
from nemo_lite.base.files import temporary_name
from nemo_lite.core.callbacks import CallbackList
from nemo_lite.core.callbacks.action_state import EvaluationResult


@pytest.fixture(name="make")
def _make(tmp_path):
    """A function that gives the callback; ``manifests`` as names of sets."""
    (tmp_path / "tones.yaml").write_text(CONFIG)
    recipe = nemo_asr.load_recipe(tmp_path / "tones.yaml")
    model = recipe.model()

    def made(manifests=("dev", "other"), metric="wer", record=None, **options):
        for name in manifests:
            (tmp_path / f"{name}.json").write_text(f"{name}\n")
        paths = {name: str(tmp_path / f"{name}.json") for name in manifests}
        return nemo_asr.BestModelCallback(
            tmp_path / "model", model, describe(recipe), recipe.config.as_yaml(), paths, metric, record, **options
        )

    return made


def evaluate(state, callback, name, step, **values):
    state.evaluation = EvaluationResult(name, step, values, num_items=4, digest="abc")
    callback.on_evaluation_end(state)


def test_the_model_with_the_lowest_rate_of_the_first_set_is_kept(make, tmp_path):
    callback, state = make(), FakeState()
    callback.on_action_start(state)
    callback.on_epoch_start(state)
    written = []
    for step, (dev, other) in enumerate([(1.0, 1.0), (0.5, 0.1), (0.25, 0.9), (0.25, 0.0), (0.3, 0.0)]):
        state.step = step - 1 if step else 0
        evaluate(state, callback, "dev", step, wer=dev, cer=dev / 2, loss=3.0)
        assert state.collective.count(("save_module", state.step)) == 0, "the rates of other sets are to come"
        evaluate(state, callback, "other", step, wer=other)
        callback.on_step_end(state)
        if (tmp_path / "model/model.json").exists():
            written.append(read_model(tmp_path / "model").card.step)
    assert written == [1, 2, 2, 2]
    card = read_model(tmp_path / "model").card
    assert [(rate.set, rate.wer, rate.cer, rate.loss, rate.utterances) for rate in card.rates] == [
        ("dev", 0.25, 0.125, 3.0, 4),
        ("other", 0.9, None, None, 4),
    ]
    assert list(card.rates[0].manifests) == ["dev.json"]
    assert len(card.rates[0].manifests["dev.json"]) == 64
    assert card.parameters == sum(p.numel() for m in callback._modules.values() for p in m.parameters())


@pytest.mark.parametrize(("last", "kept"), [(0.3, 0), (0.1, 5)], ids=["worse", "better"])
def test_of_a_run_that_starts_from_a_trained_model_the_start_counts_too(make, tmp_path, last, kept):
    callback, state = make(starts_trained=True), FakeState()
    callback.on_action_start(state)
    evaluate(state, callback, "dev", 0, wer=0.2)
    callback.on_epoch_start(state)
    assert read_model(tmp_path / "model").card.step == 0
    state.step = 4
    evaluate(state, callback, "dev", 5, wer=last)
    callback.on_step_end(state)
    callback.on_action_end(state)
    card = read_model(tmp_path / "model").card
    assert (card.step, card.rates[0].wer) == (kept, min(last, 0.2))


@pytest.mark.slow
def test_a_run_that_goes_on_keeps_the_better_model_of_its_folder(make, tmp_path):
    first = make()
    CallbackList([first]).notify("on_action_start", FakeState())
    evaluate(FakeState(step=4), first, "dev", 5, wer=0.2)
    first.on_step_end(FakeState(step=4))
    for start, step_kept in ((5, 5), (0, 9)):  # one goes on at step 5, one starts anew
        callback, state = make(), FakeState()
        callback.on_action_start(state)
        state.step = start
        callback.on_epoch_start(state)
        state.step = 8
        evaluate(state, callback, "dev", 9, wer=0.3)
        callback.on_step_end(state)
        assert read_model(tmp_path / "model").card.step == step_kept


def test_an_evaluation_before_the_first_step_of_a_run_that_goes_on_costs_no_better_model(make, tmp_path):
    first = make()
    first.on_action_start(FakeState())
    evaluate(FakeState(step=4), first, "dev", 5, wer=0.2)
    first.on_step_end(FakeState(step=4))
    callback, state = make(), FakeState(step=9)
    callback.on_action_start(state)
    evaluate(state, callback, "dev", 9, wer=0.3)
    callback.on_epoch_start(state)
    callback.on_step_end(state)
    callback.on_action_end(state)
    assert read_model(tmp_path / "model").card.step == 5


def test_a_run_that_is_started_again_when_it_is_over_keeps_its_model(make, tmp_path):
    for wer in (0.2, 0.4):
        callback, state = make(), FakeState(step=9)
        callback.on_action_start(state)
        evaluate(state, callback, "dev", 9, wer=wer)
        callback.on_action_end(state)
    card = read_model(tmp_path / "model").card
    assert (card.step, card.rates[0].wer) == (9, 0.2)


def test_a_model_is_written_with_the_weights_that_were_evaluated(make, tmp_path):
    """A run that goes on evaluates before its first step; its folder may have no model yet."""
    callback, state = make(), FakeState(step=9)
    callback.on_action_start(state)
    evaluate(state, callback, "dev", 9, wer=0.3)
    callback.on_epoch_start(state)
    assert read_model(tmp_path / "model").card.step == 9


def test_a_run_without_a_step_writes_no_model(make, tmp_path):
    callback, state = make(), FakeState()
    callback.on_action_start(state)
    callback.on_action_end(state)
    assert not (tmp_path / "model/model.json").exists()


def test_rates_of_other_weights_are_left_out(make, tmp_path):
    """A signal ends an evaluation: the second set has no new rate then."""
    callback, state = make(), FakeState(step=3)
    callback.on_action_start(state)
    evaluate(state, callback, "other", 2, wer=0.6)
    evaluate(state, callback, "dev", 4, wer=0.5)
    callback.on_step_end(state)
    assert [rate.set for rate in read_model(tmp_path / "model").card.rates] == ["dev"]


def test_a_rate_that_is_no_number_decides_nothing(make, tmp_path):
    callback, state = make(), FakeState()
    callback.on_action_start(state)
    for step, wer in ((1, math.nan), (2, 0.5)):
        state.step = step - 1
        evaluate(state, callback, "dev", step, wer=wer)
        callback.on_step_end(state)
    assert read_model(tmp_path / "model").card.step == 2


def test_a_damaged_card_is_named_before_training(make, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"model\.json: the model card cannot be read: invalid JSON"):
        make().on_action_start(FakeState())


def test_the_character_rate_may_decide(make, tmp_path):
    callback, state = make(metric="cer"), FakeState()
    callback.on_action_start(state)
    for step, cer in ((1, 0.5), (2, 0.4)):
        state.step = step - 1
        evaluate(state, callback, "dev", step, wer=1.0, cer=cer)
        callback.on_step_end(state)
    assert read_model(tmp_path / "model").card.step == 2


def test_without_evaluation_sets_the_last_weights_are_kept(make, tmp_path):
    callback, state = make(manifests=()), FakeState(step=6)
    callback.on_action_start(state)
    callback.on_step_end(state)
    assert not (tmp_path / "model/model.json").exists()
    callback.on_action_end(state)
    assert read_model(tmp_path / "model").card.step == 7


def test_another_rank_saves_at_the_same_moments_and_writes_nothing(make, tmp_path):
    callback, state = (
        make(),
        FakeState(world_size=2, local_rank=1, global_rank=1, step=5, shared=[(True, (0.2, 0.1, 3.0))]),
    )
    callback.on_action_start(state)
    callback.on_epoch_start(state)
    for step, wer in ((6, 0.3), (7, 0.1)):
        state.step = step - 1
        evaluate(state, callback, "dev", step, wer=wer)
        callback.on_step_end(state)
    assert [step for what, step in state.collective if what == "save_module"] == [6, 6]
    assert not (tmp_path / "model").exists()


def test_a_model_that_is_written_is_recorded(make, tmp_path):
    records = []
    callback, state = make(record=lambda kind, **fields: records.append((kind, fields))), FakeState(step=6)
    callback.on_action_start(state)
    evaluate(state, callback, "dev", 7, wer=0.5)
    callback.on_step_end(state)
    model = {"step": 7, "set": "dev", "metric": "wer", "value": 0.5, "path": str(tmp_path / "model")}
    assert records == [("model", model)]


def test_among_equal_rates_the_other_rate_decides_then_the_loss(make, tmp_path):
    callback, state = make(), FakeState()
    callback.on_action_start(state)
    kept = []
    for step, (cer, loss) in enumerate([(0.9, 5.0), (0.9, 4.0), (0.8, 6.0), (0.8, 6.0), (0.9, 1.0)], 1):
        state.step = step - 1
        evaluate(state, callback, "dev", step, wer=1.0, cer=cer, loss=loss)
        callback.on_step_end(state)
        kept.append(read_model(tmp_path / "model").card.step)
    assert kept == [1, 2, 3, 3, 3]


def test_what_a_killed_run_left_is_swept_when_the_run_starts_again(make, tmp_path):
    callback, state = make(), FakeState()
    callback.on_action_start(state)
    callback.on_epoch_start(state)
    evaluate(state, callback, "dev", 1, wer=0.5)
    callback.on_step_end(state)
    folder = tmp_path / "model"
    kept = {path.name for path in folder.iterdir()}
    for name, content in (("JasperEncoder", b"other weights"), ("config", b"other: yes")):
        end = "yaml" if name == "config" else "safetensors"
        (folder / f"{name}-{hashlib.sha256(content).hexdigest()[:8]}.{end}").write_bytes(content)
    (folder / temporary_name("JasperDecoderForCTC", "safetensors")).write_bytes(b"half")
    others = ["notes-01234567.yaml", ".notes.yaml", ".Encoder.safetensors"]
    for name in others:
        (folder / name).write_text("of somebody else")
    make().on_action_start(state)
    assert {path.name for path in folder.iterdir()} == {*kept, *others}
    read_model(folder)
