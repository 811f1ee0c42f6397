"""The word error rate as a metric of an evaluation."""

import math

import pytest
from toys.evaluated_texts import LABELS, batch, transcripts, wires
from toys.fake_action_state import FakeState, Source, Writer, train

from nemo_asr import WordErrorRate
from nemo_asr.compat.callbacks import process_evaluation_batch, score_evaluation
from nemo_asr.scoring.intervals import bootstrap_interval, utterance_errors
from nemo_lite.core import EvaluatorCallback

HEARD, SAID = (["ab", "cc b"], ["a", "ba"]), (["ab", "ca b"], ["a b", "b"])


def values_of(heard, said):
    ids, ends = transcripts(said)
    return {"predictions": batch(heard)[0], "transcripts": ids, "transcript_length": ends}


@pytest.fixture
def made():
    def make(**options):
        return WordErrorRate(*(Source().connect()[0] for _ in range(3)), labels=LABELS, **options)

    return make


@pytest.mark.parametrize("use_cer", [False, True])
def test_it_is_the_rate_that_the_functions_of_nemo_give(made, use_cer):
    metric, collected = made(use_cer=use_cer), {}
    for heard, said in zip(HEARD, SAID, strict=True):
        metric.update(**values_of(heard, said))
        process_evaluation_batch(wires(heard, said), collected, LABELS)
    assert metric.value() == score_evaluation(collected)["cer" if use_cer else "wer"]
    ends = bootstrap_interval(utterance_errors([*HEARD[0], *HEARD[1]], [*SAID[0], *SAID[1]], use_cer))
    assert metric.interval() == (ends.low, ends.high)


def test_without_utterances_there_is_no_interval_and_a_new_evaluation_begins_with_none(made):
    metric = made()
    assert (metric.value(), metric.interval()) == (math.inf, None)
    metric.update(**values_of(HEARD[0], SAID[0]))
    assert metric.value() == 1 / 3
    metric.reset()
    assert metric.interval() is None


def test_padding_that_the_decoder_does_not_blank_is_left_out(made):
    (end,) = Source().connect()[:1]
    metric = made(predictions_length=end)
    assert metric.wires["predictions_length"] is end
    paths, ends = batch(["ab", "c"])
    for row, length in zip(paths, ends, strict=True):
        row[length:] = LABELS.index("a")
    metric.update(**values_of(["ab", "c"], ["ab", "c"]) | {"predictions": paths, "predictions_length": ends})
    assert metric.value() == 0.0


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_evaluation_is_the_same_on_one_rank_and_on_two(made, world_size):
    rows = [list(values_of(heard, said).values()) for heard, said in zip(HEARD, SAID, strict=True)]
    state = FakeState(world_size=world_size, tb_writer=Writer(), batches=rows)
    train(state, [EvaluatorCallback(metrics={"wer": made()}, eval_step=9, name="dev")], num_epochs=0)
    assert state.tb_writer.of("dev/wer") == [(0.5, 0)]
    assert state.evaluation.higher_is_better == {"wer": False}
