"""jasper.py against overfitting: decay of weights alone, label smoothing, intermediate CTC; and going on with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toys.tone_corpus import Finished, run_script

from nemo_asr.options import Optimisation, policy_of, policy_problem
from nemo_lite.base.options import OneLineParser
from nemo_lite.utils.lr_policies import get_all_lr_classes

ALL = ("--decay_weights_only", "--label_smoothing", "0.1", "--intermediate_ctc", "0.3", "--set", "loss.skip_start=3")


def train(corpus: Path, name: str, *more: object, script: str = "jasper.py") -> Finished:
    data = ["--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json"]
    common = ["--batch_size", 4, "--log_freq", 1, "--optimizer", "adam_w", "--lr", 0.02, "--weight_decay", 0.01]
    return run_script(script, *map(str, [*data, *common, "--work_dir", "runs", "--exp_name", name, *more]))


def weights(name: str, step: int) -> dict[str, torch.Tensor]:
    files = sorted(Path("runs", name, "checkpoints").glob(f"*/[JI]*-STEP-{step}.safetensors"))
    return {f"{file.name}.{key}": value for file in files for key, value in load_file(file).items()}


@pytest.mark.slow
def test_a_run_with_all_options_goes_on_bit_by_bit_and_its_model_needs_none_of_them(corpus: Path) -> None:
    # With 12 utterances and batches of 4 an epoch is 3 steps; this policy knows no end of the run.
    rate = ("--lr_policy", "InverseSquareRootAnnealing", "--warmup_steps", 1)
    for name, epochs in (("whole", 2), ("parts", 1), ("parts", 2)):
        finished = train(corpus, name, *ALL, *rate, "--num_epochs", epochs)
        assert finished.code == 0, finished.err
    last = weights("whole", 6)
    assert any(name.startswith("IntermediateDecoderForCTC") for name in last)
    torch.testing.assert_close(weights("parts", 6), last, rtol=0, atol=0)
    scored = run_script("jasper_eval.py", "--load_dir", "runs/whole", "--eval_datasets", str(corpus / "dev.json"))
    assert scored.code == 0, scored.err


@pytest.mark.slow
def test_a_plan_and_the_first_step_say_how_the_parts_of_the_loss_are_balanced(corpus: Path) -> None:
    lines = []
    for more in ((), ("--plan",)):
        finished = train(corpus, "balanced", "--intermediate_ctc", "0.3", "--num_epochs", 1, *more)
        assert finished.code == 0, finished.err
        lines += [line.partition("Gradients")[2] for line in finished.out.splitlines() if "Gradients" in line]
    assert len(lines) == 2
    assert lines[0] == lines[1]
    where = "on jasper_encoder.outputs, jasper_encoder.intermediate, each times its weight: ctc"
    assert lines[0].startswith(f" of the parts of the loss {where}")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--label_smoothing", "1"), "argument --label_smoothing: '1' is not a number from 0, below 1"),
        (("--intermediate_ctc", "-0.1"), "argument --intermediate_ctc: '-0.1' is not a number from 0"),
        (("--average_last", "2", "--ema_decay", "0.9"), "--average_last contradicts --ema_decay"),
        (
            ("--average_last", "2", "--average_best", "2", "--eval_datasets", "x.json"),
            "--average_last contradicts --average_best",
        ),
        (("--average_best", "1", "--eval_datasets", "x.json"), "argument --average_best: 1 checkpoint is no average"),
        (("--average_last", "1"), "argument --average_last: 1 checkpoint is no average; give 2 or more"),
        (("--decay_weights_only", "--weight_decay", "0"), "--decay_weights_only has no effect with --weight_decay 0"),
    ],
)
def test_options_that_cannot_be_or_do_nothing_are_one_line(corpus: Path, words: tuple[str, ...], told: str) -> None:
    finished = train(corpus, "refused", "--num_epochs", 1, *words)
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert told in finished.err


def test_a_classifier_has_no_options_of_transcription(corpus: Path) -> None:
    finished = train(corpus, "refused", "--num_epochs", 1, "--intermediate_ctc", 0.3, script="classify.py")
    assert finished.code == 2
    assert "--intermediate_ctc is for models that transcribe; leave it out" in finished.err


def test_a_loss_that_the_family_has_not_is_refused_before_there_is_a_run_folder(corpus: Path) -> None:
    data = ["--model_config", "transducer_digits", "--train_dataset", str(corpus / "train.json")]
    words = [*data, "--num_epochs", "1", "--intermediate_ctc", "0.3", "--work_dir", "new", "--exp_name", "refused"]
    finished = run_script("jasper.py", *words)
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert "family transducer has no loss in the middle of its encoder" in finished.err
    assert not Path("new").exists()


def model_weights(folder: str) -> dict[str, torch.Tensor]:
    """Of a model folder, whose files are named by the module and a digest."""
    files = Path(folder).glob("*.safetensors")
    return {f"{file.name.partition('-')[0]}.{key}": each for file in files for key, each in load_file(file).items()}


@pytest.mark.long
@pytest.mark.slow
def test_the_last_checkpoints_are_averaged_into_a_model_of_its_own(corpus: Path) -> None:
    words = ("--num_epochs", 6, "--eval_datasets", corpus / "dev.json", "--log_style", "plain")
    finished = train(corpus, "mean", *words, "--average_last", 3)
    assert finished.code == 0, finished.err
    assert "Averaged: mean of the checkpoints of 12, 15, 18 steps" in finished.out
    assert "averaged_dev  WER" in finished.out
    assert "averaged_dev at step" not in finished.out  # the trackers tell it
    averaged, last = model_weights("runs/mean/averaged"), weights("mean", 18)
    name = "JasperDecoderForCTC.decoder_layers.0.bias"
    sets = [
        weights("mean", step)[f"JasperDecoderForCTC-STEP-{step}.safetensors.decoder_layers.0.bias"]
        for step in (12, 15, 18)
    ]
    torch.testing.assert_close(averaged[name], sum(sets) / 3)
    assert len(averaged) == len(last)
    assert train(corpus, "plain", *words).code == 0
    torch.testing.assert_close(weights("plain", 18), last, rtol=0, atol=0)
    scored = run_script(
        "jasper_eval.py", "--load_dir", "runs/mean/averaged", "--eval_datasets", str(corpus / "dev.json")
    )
    assert scored.code == 0, scored.err


@pytest.mark.long
@pytest.mark.slow
def test_a_moving_average_goes_on_bit_by_bit(corpus: Path) -> None:
    rate = ("--lr_policy", "InverseSquareRootAnnealing", "--warmup_steps", 1, "--ema_decay", 0.9)
    for name, epochs in (("whole", 2), ("parts", 1), ("parts", 2)):
        finished = train(corpus, name, *rate, "--num_epochs", epochs)
        assert finished.code == 0, finished.err
    whole = model_weights("runs/whole/averaged")
    torch.testing.assert_close(model_weights("runs/parts/averaged"), whole, rtol=0, atol=0)
    assert any(not torch.equal(whole[name], each) for name, each in model_weights("runs/whole/model").items())


def parsed(*options):
    parser = OneLineParser()
    parser.add_options(Optimisation)
    parser.set_defaults(lr=1.0, lr_policy="PolynomialHoldDecayAnnealing")
    return parser.parse_args(list(options))


def rates(*options, total_steps=20):
    policy = policy_of(parsed(*options), total_steps)
    return [policy(1.0, step, 0) for step in range(total_steps + 1)]


def test_a_hold_policy_decays_from_the_end_of_the_warm_up_without_a_drop():
    found = rates("--warmup_steps", "10")
    assert found[9:13] == pytest.approx([10 / 11, 1.0, 0.9, 0.8])
    assert found[20] == 0.0


def test_it_holds_the_rate_and_ends_at_the_least_one_on_request():
    found = rates("--warmup_steps", "4", "--hold_steps", "6", "--min_lr", "0.1")
    assert found[4:11] == [1.0] * 7
    assert found[15] == pytest.approx(0.55)
    assert found[20] == pytest.approx(0.1)


@pytest.mark.parametrize("name", get_all_lr_classes())
def test_every_policy_takes_the_options_that_are_absent(name):
    assert policy_problem(parsed("--lr_policy", name)) is None
    assert type(policy_of(parsed("--lr_policy", name), 20)) is get_all_lr_classes()[name]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--lr_policy", "CosineAnnealing", "--hold_steps", "3"], "--hold_steps has no effect with --lr_policy Cosine"),
        (["--lr_policy", "WarmupAnnealing", "--min_lr", "0.1"], "--min_lr has no effect with --lr_policy WarmupAnn"),
        (["--min_lr", "2"], "--min_lr 2 is above --lr 1; lower it, or raise --lr"),
    ],
)
def test_an_option_without_effect_is_told(options, problem):
    found = policy_problem(parsed(*options))
    assert found is not None
    assert found.startswith(problem)


def test_a_run_in_which_the_rate_never_falls_is_warned_of(capsys):
    policy_of(parsed("--warmup_steps", "30"), 20)
    policy_of(parsed("--warmup_steps", "10", "--hold_steps", "10"), 20)
    told = capsys.readouterr().err
    assert "The run has 20 steps, and the learning rate rises in all of them; give --warmup_steps 2" in told
    assert "The run has 20 steps, and the learning rate never falls; lower --hold_steps" in told
