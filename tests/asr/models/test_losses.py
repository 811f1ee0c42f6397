"""The CTC loss, and the frames that it needs."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nemo_asr.models.losses import AuxiliaryCTCLoss, CTCLossNM
from nemo_lite.base.errors import UsageError
from nemo_lite.core import Reference


def batch(num_frames=8, num_classes=4):
    torch.manual_seed(0)
    log_probs = torch.randn(2, num_frames, num_classes + 1).log_softmax(2)
    return {
        "log_probs": log_probs,
        "targets": torch.tensor([[0, 1, 1], [2, 3, 0]]),
        "input_length": torch.tensor([num_frames, num_frames - 2]),
        "target_length": torch.tensor([3, 1]),
    }


def likelihood(log_probs, target, blank):
    """The probability of a target by listing every path: what CTC is defined to be."""
    total = 0.0
    for path in itertools.product(range(log_probs.shape[1]), repeat=log_probs.shape[0]):
        if [k for k, _ in itertools.groupby(path) if k != blank] == target:
            total += sum(log_probs[t, k] for t, k in enumerate(path)).exp()
    return total


def test_ctc_is_the_sum_over_all_paths():
    values = batch(num_frames=4, num_classes=2)
    values["targets"], values["target_length"] = torch.tensor([[0, 1], [1, 0]]), torch.tensor([2, 1])
    values["input_length"] = torch.tensor([4, 3])
    first = -likelihood(values["log_probs"][0], [0, 1], blank=2).log()
    second = -likelihood(values["log_probs"][1][:3], [1], blank=2).log()
    torch.testing.assert_close(CTCLossNM(num_classes=2)(**values), (first + second) / 2)


def test_ctc_is_the_plain_mean_over_the_batch_not_divided_by_target_length():
    values = batch()
    one_by_one = [{key: value[i : i + 1] for key, value in values.items()} for i in range(2)]
    each = [
        F.ctc_loss(v["log_probs"].transpose(0, 1), v["targets"], v["input_length"], v["target_length"], 4, "sum")
        for v in one_by_one
    ]
    torch.testing.assert_close(CTCLossNM(num_classes=4)(**values), sum(each) / 2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_ctc_takes_any_integer_type(dtype):
    values, loss = batch(), CTCLossNM(num_classes=4)
    wanted = loss(**values)
    given = {key: value if key == "log_probs" else value.to(dtype) for key, value in values.items()}
    torch.testing.assert_close(loss(**given), wanted)


def test_ctc_runs_in_float32_under_autocast():
    values, loss = batch(), CTCLossNM(num_classes=4)
    wanted = loss(**values)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(loss(**values), wanted)
        assert loss(**{**values, "log_probs": values["log_probs"].bfloat16()}).dtype == torch.float32


def with_a_target_that_does_not_fit():
    values = batch(num_frames=3)
    values["targets"], values["target_length"] = torch.tensor([[1, 1, 0], [2, 0, 0]]), torch.tensor([3, 1])
    values["input_length"] = torch.tensor([3, 3])
    values["log_probs"].requires_grad_()
    return values


def loss_and_gradient(loss, values):
    values["log_probs"].grad = None
    result = loss(**values)
    result.backward()
    return result.item(), values["log_probs"].grad


def test_a_target_that_does_not_fit_leaves_the_rest_of_its_batch_to_train():
    values, loss = with_a_target_that_does_not_fit(), CTCLossNM(num_classes=4)
    rest = {key: value[1:].detach().requires_grad_(key == "log_probs") for key, value in values.items()}
    mean, gradient = loss_and_gradient(loss, values)
    assert mean == loss_and_gradient(loss, rest)[0]
    assert torch.equal(gradient[1:], rest["log_probs"].grad)
    assert gradient[0].eq(0).all()


def test_a_batch_in_which_no_target_fits_is_infinite_and_so_is_any_such_batch_in_evaluation():
    values, loss = with_a_target_that_does_not_fit(), CTCLossNM(num_classes=4)
    alone = {key: value[:1].detach().requires_grad_(key == "log_probs") for key, value in values.items()}
    mean, gradient = loss_and_gradient(loss, alone)
    assert mean == math.inf
    assert gradient.eq(0).all()
    assert loss.eval()(**values).isinf()


def test_zero_infinity_counts_it_as_zero_in_the_mean_of_all():
    values = with_a_target_that_does_not_fit()
    mean, gradient = loss_and_gradient(CTCLossNM(num_classes=4, zero_infinity=True), values)
    assert mean == pytest.approx(loss_and_gradient(CTCLossNM(num_classes=4), values)[0] / 2)
    assert gradient[0].eq(0).all()


def test_a_loss_that_is_no_number_stays_one():
    values = with_a_target_that_does_not_fit()
    values["log_probs"] = values["log_probs"].detach().clone()
    values["log_probs"][1] = math.nan
    assert CTCLossNM(num_classes=4)(**values).isnan()


def test_value_and_gradient_are_to_the_bit_those_of_the_plain_mean_where_every_target_fits():
    values = batch()
    values["log_probs"].requires_grad_()
    mean, gradient = loss_and_gradient(CTCLossNM(num_classes=4), values)
    given = [values[key] for key in ("targets", "input_length", "target_length")]
    values["log_probs"].grad = None
    plain = F.ctc_loss(values["log_probs"].transpose(0, 1), *given, blank=4, reduction="none").mean()
    plain.backward()
    assert (mean, gradient.tolist()) == (plain.item(), values["log_probs"].grad.tolist())


@pytest.mark.parametrize(("target", "frames"), [([5], 1), ([1, 2], 2), ([1, 1], 3), ([1, 1, 1, 2, 2], 8)])
def test_ctc_needs_a_frame_for_each_label_and_a_blank_between_repeats(target, frames):
    values = {"targets": torch.tensor([target]), "target_length": torch.tensor([len(target)])}
    log_probs, loss = torch.zeros(1, frames, 7).log_softmax(2), CTCLossNM(num_classes=6)
    assert loss(log_probs=log_probs, input_length=torch.tensor([frames]), **values).isfinite()
    if frames > 1:
        assert loss(log_probs=log_probs, input_length=torch.tensor([frames - 1]), **values).isinf()


def test_ctc_ports_name_the_classes_with_the_blank():
    assert CTCLossNM(num_classes=28).input_ports["log_probs"].brief == "B T D=29 Logprobs"


def test_label_smoothing_adds_the_distance_of_each_valid_frame_from_equal_probabilities():
    values, smooth = batch(), CTCLossNM(num_classes=4, label_smoothing=0.2).train()
    uniform = torch.full((5,), 1 / 5)
    distances = [
        sum(F.kl_div(values["log_probs"][i, t], uniform, reduction="sum") for t in range(values["input_length"][i]))
        for i in range(2)
    ]
    wanted = 0.8 * CTCLossNM(num_classes=4)(**values) + 0.2 * sum(distances) / 2
    torch.testing.assert_close(smooth(**values), wanted)
    padded = {**values, "log_probs": F.pad(values["log_probs"], (0, 0, 0, 3), value=-9.0)}
    torch.testing.assert_close(smooth(**padded), wanted)


def test_label_smoothing_acts_in_training_only_and_0_is_bitwise_no_smoothing():
    values, plain = batch(), CTCLossNM(num_classes=4)
    assert torch.equal(CTCLossNM(num_classes=4, label_smoothing=0.2).eval()(**values), plain(**values))
    assert torch.equal(CTCLossNM(num_classes=4, label_smoothing=0.0).train()(**values), plain(**values))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_label_smoothing_out_of_range_is_refused(share):
    with pytest.raises(UsageError, match=f"label_smoothing is {share}, wanted float from 0, below 1"):
        CTCLossNM(num_classes=4, label_smoothing=share)


def test_skip_start_takes_each_number_of_first_frames_out_of_the_loss_and_its_gradient():
    values = {key: value[:1] for key, value in batch(num_frames=12).items()}
    log_probs, plain = values.pop("log_probs"), CTCLossNM(num_classes=4).train()
    numbers = range(4)  # of 12 frames the text 0 1 1 needs 4: up to half of the others may go
    wanted = {
        plain(log_probs=log_probs[:, k:], **{**values, "input_length": torch.tensor([12 - k])}).item(): k
        for k in numbers
    }
    loss, seen = CTCLossNM(num_classes=4, skip_start=3).train(), set()
    for _ in range(40):
        given = log_probs.clone().requires_grad_()
        mean = loss(log_probs=given, **values)
        mean.backward()
        seen.add(wanted[mean.item()])
        assert given.grad.ne(0).any(2)[0].tolist() == [t >= wanted[mean.item()] for t in range(12)]
    assert seen == set(numbers)


def test_skip_start_draws_for_each_utterance_and_leaves_half_of_the_frames_that_a_text_does_not_need():
    torch.manual_seed(0)
    targets, needed = torch.tensor([[0, 0, 0, 3], [1, 2, 3, 3], [1, 2, 3, 3]]), torch.tensor([5, 2, 5])
    log_probs, frames = torch.randn(3, 30, 5).log_softmax(2), torch.tensor([6, 9, 30])
    values = {"targets": targets, "target_length": torch.tensor([3, 2, 4]), "input_length": frames}
    seen = []
    for _ in range(60):
        given = log_probs.clone().requires_grad_()
        CTCLossNM(num_classes=4, skip_start=9).train()(log_probs=given, **values).backward()
        seen.append((~given.grad.ne(0).any(2)).long().cumprod(1).sum(1))
    assert torch.stack(seen).amax(0).tolist() == ((frames - needed) // 2).clamp(max=9).tolist() == [0, 3, 9]
    assert len({tuple(numbers.tolist()) for numbers in seen}) > 10


def test_skip_start_acts_in_training_only_and_follows_the_run_s_generator():
    values, plain, skips = batch(), CTCLossNM(num_classes=4), CTCLossNM(num_classes=4, skip_start=5)
    assert torch.equal(skips.eval()(**values), plain(**values))
    skips.train()
    state, losses = torch.get_rng_state(), [skips(**values) for _ in range(4)]
    torch.set_rng_state(state)
    assert torch.equal(torch.stack([skips(**values) for _ in range(4)]), torch.stack(losses))
    assert len({loss.item() for loss in losses}) > 1


@pytest.mark.parametrize("frames", [-1, 10_001])
def test_a_number_of_skipped_frames_out_of_range_is_refused(frames):
    with pytest.raises(UsageError, match=f"skip_start is {frames}, wanted int from 0 to 10000"):
        CTCLossNM(num_classes=4, skip_start=frames)


# The loss of a hybrid.


def auxiliary(of_transducer="mean_batch", **settings):
    transducer: Any = SimpleNamespace(reduction=of_transducer)
    return AuxiliaryCTCLoss(Reference(transducer), num_classes=3, **settings)


@pytest.mark.parametrize(
    ("reduction", "divided"),
    [
        ("mean_batch", lambda losses, lengths: losses.mean()),
        ("mean", lambda losses, lengths: (losses / lengths).mean()),
        ("mean_volume", lambda losses, lengths: losses.sum() / lengths.sum()),
        ("sum", lambda losses, lengths: losses.sum()),
    ],
)
def test_the_loss_of_a_hybrid_is_reduced_as_that_of_its_transducer_unless_it_says_otherwise(reduction, divided):
    log_probs = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0)).log_softmax(2)
    targets, frames, lengths = torch.tensor([[0, 1, 2], [1, 0, 0]]), torch.tensor([9, 7]), torch.tensor([3, 1])
    values = {"log_probs": log_probs, "targets": targets, "input_length": frames, "target_length": lengths}
    losses = F.ctc_loss(log_probs.transpose(0, 1), targets, frames, lengths, blank=3, reduction="none")
    for module in (auxiliary(reduction), auxiliary("sum", reduction=reduction)):
        torch.testing.assert_close(module(**values), divided(losses, lengths))


def test_a_loss_of_a_hybrid_without_labels_is_a_number_in_every_reduction():
    log_probs, none = torch.randn(1, 4, 4).log_softmax(2), torch.tensor([0])
    values = {"log_probs": log_probs, "targets": torch.zeros(1, 0, dtype=torch.long), "target_length": none}
    for reduction in ("mean_batch", "mean", "mean_volume", "sum"):
        loss = auxiliary(reduction=reduction)(**values, input_length=torch.tensor([4]))
        torch.testing.assert_close(loss, -log_probs[0, :, 3].sum())
