"""TerminalLines: what a person reads of a run."""

from __future__ import annotations

import pytest

from nemo_lite.core.trackers import TerminalLines, duration_text, number, percent, scientific

TRAIN = {
    **{"kind": "train", "step": 100, "epoch": 3, "loss": 29.6512345, "lr": 0.012, "amount_per_second": 243.7},
    **{"amount_unit": "audio-s", "data_wait_share": 0.0123, "step_seconds": 0.4},
}


def evaluation(step, wer, name="dev-clean", **more):
    values = {"loss": 3.5, "wer": wer, "cer": 0.0421, "num_items": 2703, "digest": "ab", "seconds": 1.5, **more}
    return {"kind": "evaluation", "step": step, "set": name, **values}


def end(reason="finished"):
    return {"kind": "end", "step": 145, "epoch": 4, "seconds": 250.0, "reason": reason}


@pytest.fixture
def told(capsys):
    """The lines that records give."""

    def tell(*records, **options):
        terminal = TerminalLines(rates=("wer", "cer"), **options)
        for record in records:
            terminal.write(record)
        return capsys.readouterr().out.splitlines()

    return tell


def test_a_step_is_one_line(told):
    start = {"kind": "start", "total_steps": 145}
    line = "epoch 3  step 100/145  loss 29.65  lr 1.2e-2  244 audio-s/s  data 1 %"
    assert told(start, TRAIN) == [line]
    assert told(TRAIN) == [line.replace("/145", "")]


def test_from_the_second_line_on_the_time_left_is_told(told):
    start, last = {"kind": "start", "total_steps": 145}, {**TRAIN, "step": 145}
    lines = told(start, {**TRAIN, "step": 1}, TRAIN, {**TRAIN, "step_seconds": 100.0}, last)
    assert [line.partition("data 1 %")[2] for line in lines] == ["", "  18.0 s left", "  1 h 15 min left", ""]
    assert not any("left" in line for line in told(TRAIN, TRAIN)), "the end is not known"


def test_an_evaluation_is_one_line_with_the_best_one_before(told):
    assert told(evaluation(0, 1.0), evaluation(900, 0.121), evaluation(1000, 0.124)) == [
        "dev-clean  WER 100.0 %  CER 4.2 %  n=2703",
        "dev-clean  WER 12.1 % (best)  CER 4.2 %  n=2703",
        "dev-clean  WER 12.4 % (best 12.1 % at 900)  CER 4.2 %  n=2703",
    ]


def test_a_run_that_starts_from_a_trained_model_can_have_its_best_step_at_the_start(told):
    model = {"kind": "model", "step": 0, "set": "dev-clean", "metric": "wer", "value": 0.0, "path": "RUN/model"}
    lines = told(evaluation(0, 0.0), model, evaluation(12, 0.04), end(), starts_trained=True)
    assert lines[1] == "dev-clean  WER 4.0 % (best 0.0 % at 0)  CER 4.2 %  n=2703"
    assert lines[-1] == "Best model (WER 0.0 % of dev-clean, step 0: training has not made it better): RUN/model"


def test_each_set_has_a_best_of_its_own_and_the_first_of_equals_stays(told):
    lines = told(
        evaluation(1, 0.2), evaluation(1, 0.5, "dev-other"), evaluation(2, 0.2), evaluation(2, 0.4, "dev-other")
    )
    assert lines[2:] == [
        "dev-clean  WER 20.0 % (ties best at 1)  CER 4.2 %  n=2703",
        "dev-other  WER 40.0 % (best)  CER 4.2 %  n=2703",
    ]


def test_of_equal_rates_the_other_rate_and_the_loss_decide_as_for_the_best_model(told):
    lines = told(evaluation(1, 0.2), evaluation(2, 0.2, cer=0.04), evaluation(3, 0.2, cer=0.04, loss=3.6))
    assert [line.partition("WER ")[2] for line in lines[1:]] == [
        "20.0 % (best)  CER 4.0 %  n=2703",
        "20.0 % (ties best at 2)  CER 4.0 %  n=2703",
    ]


def test_the_duration_of_a_run_is_that_of_all_its_starts(told):
    assert told(end(), earlier_seconds=3600.0) == [
        "Done: 145 steps, 4 epochs in 1 h 4 min (4 min 10 s of it since the last start)"
    ]


def test_a_run_that_goes_on_knows_what_was_the_best_before(told):
    model = {"kind": "model", "step": 900, "set": "dev-clean", "metric": "wer", "value": 0.121, "path": "RUN/model"}
    earlier = [evaluation(900, 0.121), evaluation(1000, 0.3), evaluation(900, 0.1, "gone"), model]
    assert told(evaluation(1000, 0.3), evaluation(1100, 0.2), end(), earlier=earlier) == [
        "dev-clean  WER 30.0 % (best 12.1 % at 900)  CER 4.2 %  n=2703",
        "dev-clean  WER 20.0 % (best 12.1 % at 900)  CER 4.2 %  n=2703",
        "Done: 145 steps, 4 epochs in 4 min 10 s",
        "  dev-clean  WER 20.0 % (best 12.1 % at 900)  CER 4.2 %",
        "Best model (WER 12.1 % of dev-clean, step 900): RUN/model",
    ]


def test_a_run_that_starts_anew_knows_nothing_of_an_older_one(told):
    assert told(evaluation(0, 1.0), evaluation(100, 0.5), earlier=[evaluation(900, 0.121)]) == [
        "dev-clean  WER 100.0 %  CER 4.2 %  n=2703",
        "dev-clean  WER 50.0 % (best)  CER 4.2 %  n=2703",
    ]


def test_the_summary_of_a_run_that_was_stopped_ends_with_a_line_of_its_own(told):
    assert told(end("SIGTERM"), if_stopped="Report so far: x")[-1] == "Report so far: x"
    assert "Report so far: x" not in told(end(), if_stopped="Report so far: x")


def test_the_rate_that_counts_comes_first(capsys):
    terminal = TerminalLines(rates=("cer", "wer"))
    terminal.write(evaluation(1, 0.2))
    assert capsys.readouterr().out == "dev-clean  CER 4.2 %  WER 20.0 %  n=2703\n"


def test_other_values_are_shown_as_they_are_and_an_infinite_rate_is_no_best(told):
    other = {"kind": "evaluation", "step": 1, "set": "points", "mse": 0.123456, "note": "x", "num_items": None}
    assert told(other, evaluation(1, float("inf"), num_items=None)) == [
        "points  mse 0.1235",
        "dev-clean  WER inf %  CER 4.2 %",
    ]


def test_the_end_is_a_summary_with_the_way_to_use_the_model(told):
    model = {"kind": "model", "step": 900, "set": "dev-clean", "metric": "wer", "value": 0.121, "path": "runs/a/model"}
    checkpoint = {"kind": "checkpoint", "step": 145, "epoch": 4, "path": "runs/a/checkpoints/checkpoint-STEP-145"}
    lines = told(
        evaluation(900, 0.121),
        model,
        evaluation(145, 0.124),
        checkpoint,
        end(),
        use="Transcribe: nemo-lite transcribe runs/a FILES",
    )
    assert lines[2:] == [
        "Done: 145 steps, 4 epochs in 4 min 10 s",
        "  dev-clean  WER 12.4 % (best 12.1 % at 900)  CER 4.2 %",
        "Last checkpoint: runs/a/checkpoints/checkpoint-STEP-145",
        "Best model (WER 12.1 % of dev-clean, step 900): runs/a/model",
        "Transcribe: nemo-lite transcribe runs/a FILES",
    ]


def test_the_summary_shows_the_intervals_of_the_rates(told):
    model = {"kind": "model", "step": 900, "set": "dev-clean", "metric": "wer", "value": 0.121, "path": "runs/a/model"}
    ends = {"wer_low": 0.104, "wer_high": 0.1392, "cer_low": 0.0, "cer_high": 0.009}
    lines = told(
        evaluation(900, 0.121, **ends),
        model,
        evaluation(145, 0.124, **{**ends, "wer_low": 0.11, "cer_high": None}),
        end(),
    )
    assert lines[:2] == [
        "dev-clean  WER 12.1 %  CER 4.2 %  n=2703",
        "dev-clean  WER 12.4 % (best 12.1 % at 900)  CER 4.2 %  n=2703",
    ]
    assert lines[3:] == [
        "  dev-clean  WER 12.4 % [11.0 to 13.9] (best 12.1 % at 900)  CER 4.2 %",
        "  [...]: the 95 % interval of a rate, how far other utterances of this kind would move it",
        "Best model (WER 12.1 % [10.4 to 13.9] of dev-clean, step 900): runs/a/model",
    ]


def test_a_model_that_no_set_chose_is_the_last(told):
    model = {"kind": "model", "step": 145, "set": "", "metric": "wer", "value": None, "path": "runs/a/model"}
    assert told(model, end())[1:] == ["Model of step 145: runs/a/model"]


def test_a_run_that_saved_nothing_has_nothing_to_use(told):
    assert told(end(), use="Transcribe: ...") == ["Done: 145 steps, 4 epochs in 4 min 10 s"]


def test_a_run_that_was_stopped_says_why_and_one_that_failed_has_no_summary(told):
    assert told(end("no progress")) == ["Stopped: no progress; 145 steps, 4 epochs in 4 min 10 s"]
    assert told(end("failed")) == []
    assert told({**end(), "step": 1, "epoch": 1}) == ["Done: 1 step, 1 epoch in 4 min 10 s"]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (number(29.6512345), "29.65"),
        (number(1234.56), "1235"),
        (number(0.000123456), "0.0001235"),
        (number(45678.9, 3), "45679"),
        (number(float("nan")), "nan"),
        (scientific(0.012), "1.2e-2"),
        (scientific(0.0), "0.0e0"),
        (scientific(2.5), "2.5e0"),
        (percent(0.1239), "12.4 %"),
        (percent(0.00351), "0.35 %"),
        (percent(0.0), "0.0 %"),
        (duration_text(3.21), "3.2 s"),
        (duration_text(250), "4 min 10 s"),
        (duration_text(7501), "2 h 5 min"),
        (duration_text(59.97), "1 min 0 s"),
    ],
)
def test_numbers_are_short(shown, text):
    assert shown == text
