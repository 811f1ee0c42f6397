"""Attention decoders and their loss: equal to plain definitions, step by step as all at once, whatever is beside."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from toys.attention_decoders import Decoder

from nemo_asr.decoding.attention import AttentionRescoring
from nemo_asr.models.attention.decoder import TransformerDecoder
from nemo_asr.models.attention.loss import AttentionLoss
from nemo_asr.models.losses import AuxiliaryCTCLoss
from nemo_lite.base.errors import UsageError
from nemo_lite.core import Reference

SIZE, LABELS, EXTRA = 16, 6, 1
FRAMES, TEXTS = (9, 4, 7), ([1, 2, 2, 5], [3], [])


def toy() -> Decoder:
    torch.manual_seed(0)
    return Decoder(LABELS + 1 + EXTRA, LABELS, SIZE)


def decoder(of: Decoder, directions: int = 2, **arguments: Any) -> TransformerDecoder:
    made = TransformerDecoder(
        SIZE, LABELS, linear_units=24, num_blocks=2, r_num_blocks=2 * (directions - 1), num_extra_outputs=EXTRA,
        reverse_weight=0.3 * (directions - 1), **arguments,
    )  # fmt: skip
    made.load_state_dict(of.state_dict(), strict=directions == 2)
    return made.eval()


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Frames (B, D, T), labels (B, U) with rubbish behind the ends, and both lengths."""
    torch.manual_seed(1)
    encoded = torch.randn(len(FRAMES), SIZE, max(FRAMES))
    labels = torch.tensor([[*text, *[99] * (4 - len(text))] for text in TEXTS])
    return encoded, labels, torch.tensor(FRAMES), torch.tensor([len(text) for text in TEXTS])


def frames_of(encoded: Tensor, row: int) -> Tensor:
    return encoded[row, :, : FRAMES[row]].T


@pytest.mark.parametrize("directions", [1, 2])
def test_log_probabilities_are_those_of_the_definition_whatever_stands_beside_a_text(directions: int) -> None:
    wanted, (encoded, labels, num_frames, num_labels) = toy(), batch()
    outputs = decoder(wanted, directions)(encoded, labels, num_frames, num_labels)
    sides = outputs if directions == 2 else (outputs,)
    for row, text in enumerate(TEXTS):
        for got, side in zip(sides, (wanted.from_left, wanted.from_right), strict=False):
            torch.testing.assert_close(got[row, : len(text) + 1], side(frames_of(encoded, row), text))


def test_labels_step_by_step_have_the_probabilities_of_all_at_once_for_each_hypothesis() -> None:
    model, (encoded, _, num_frames, _) = decoder(toy()), batch()
    torch.manual_seed(2)
    texts = torch.randint(LABELS, (len(FRAMES), 3, 4))  # three hypotheses each
    state = model.begin(encoded, num_frames, 3)
    rows, state = model.step(torch.full((len(FRAMES), 3), model.end), state)
    steps = [rows]
    for place in range(4):
        rows, state = model.step(texts[:, :, place], state)
        steps.append(rows)
    got = torch.stack(steps, 2)
    for hypothesis in range(3):
        whole, _ = model(encoded, texts[:, hypothesis], num_frames, torch.full((len(FRAMES),), 4))
        torch.testing.assert_close(got[:, hypothesis], whole)


def test_chosen_hypotheses_go_on_as_if_they_had_been_alone() -> None:
    model, (encoded, _, num_frames, _) = decoder(toy()), batch()
    state = model.begin(encoded, num_frames, 2)
    _, state = model.step(torch.tensor([[0, 1], [2, 3], [4, 5]]), state)
    state = state.chosen(torch.tensor([0, 2]), torch.tensor([[1, 1], [1, 0]]))
    got, _ = model.step(torch.tensor([[3, 4], [5, 0]]), state)
    for row, (utterance, before, label) in enumerate([(0, 1, 3), (0, 1, 4), (2, 5, 5), (2, 4, 0)]):
        alone = model.begin(encoded[[utterance]], num_frames[[utterance]])
        _, alone = model.step(torch.tensor([[before]]), alone)
        wanted, _ = model.step(torch.tensor([[label]]), alone)
        torch.testing.assert_close(got.flatten(0, 1)[row], wanted[0, 0])


def test_heads_a_weight_and_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=r"its heads do not divide its channels: got 5 of 16 channels"):
        TransformerDecoder(SIZE, LABELS, attention_heads=5)
    with pytest.raises(UsageError, match=r"there is no second decoder: got reverse_weight 0.3, wanted r_num_blocks"):
        TransformerDecoder(SIZE, LABELS, reverse_weight=0.3)
    with pytest.raises(UsageError, match=r"TransformerDecoder: positions .* fit no odd number of channels: got 15"):
        TransformerDecoder(15, LABELS, attention_heads=3)
    with pytest.raises(UsageError, match="weights"):
        TransformerDecoder(65_536, LABELS, linear_units=65_536, num_blocks=256)


def test_a_second_decoder_without_a_share_is_neither_computed_nor_trained() -> None:
    made = TransformerDecoder(SIZE, LABELS, linear_units=24, num_blocks=2, r_num_blocks=2)
    assert made.right_decoder is not None
    made.right_decoder.forward = None  # type: ignore[assignment, method-assign]  # a call would fail
    log_probs = made(*batch())
    assert log_probs.shape == (len(FRAMES), 5, LABELS + 1)
    assert [*made.output_ports] == ["log_probs"]
    log_probs.sum().backward()
    trained = {name.partition(".")[0] for name, weight in made.named_parameters() if weight.requires_grad}
    assert trained == {"left_decoder"}
    assert all(weight.grad is not None for weight in made.parameters() if weight.requires_grad)
    with pytest.raises(UsageError, match=r"AttentionRescoring: no second decoder was trained: got reverse_weight 0\.3"):
        AttentionRescoring(Reference(made), ["a"] * LABELS, reverse_weight=0.3)


# The loss


def loss_of(log_probs: Tensor, training: bool = True, **arguments: Any) -> float:
    module = AttentionLoss(Reference(decoder(toy())), **arguments).train(training)
    _, labels, _, num_labels = batch()
    return module(labels=labels, log_probs=log_probs, num_labels=num_labels).item()  # type: ignore[no-any-return]


def plain_loss(log_probs: Tensor, smoothing: float) -> float:
    """The sum over labels and ends of KL(truth || probabilities)."""
    total, outputs = 0.0, log_probs.shape[2]
    for row, text in enumerate(TEXTS):
        for place, label in enumerate([*text, LABELS]):
            for output in range(outputs):
                truth = 1 - smoothing if output == label else smoothing / (outputs - 1)
                if truth:
                    total += truth * (math.log(truth) - log_probs[row, place, output].item())
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_divergence_from_smoothed_truth_by_utterance_or_by_label(smoothing: float) -> None:
    torch.manual_seed(3)
    log_probs = torch.randn(3, 5, LABELS + 1 + EXTRA).log_softmax(2)
    total, num_outputs = plain_loss(log_probs, smoothing), sum(len(text) + 1 for text in TEXTS)
    assert loss_of(log_probs, smoothing=smoothing) == pytest.approx(total / 3, rel=1e-6)
    by_label = loss_of(log_probs, smoothing=smoothing, reduction="mean_volume")
    assert by_label == pytest.approx(total / num_outputs, rel=1e-6)
    # NeMo's, which torch computes with another number for the same smoothing.
    outputs = LABELS + 1 + EXTRA
    targets = torch.tensor([[*text, LABELS, *[-100] * (4 - len(text))] for text in TEXTS])
    of_torch = torch.nn.functional.cross_entropy(
        log_probs.flatten(0, 1), targets.flatten(), label_smoothing=smoothing * outputs / (outputs - 1)
    )
    of_nemo = loss_of(log_probs, smoothing=smoothing, reduction="mean_volume", subtract_entropy=False)
    assert of_nemo == pytest.approx(of_torch.item(), rel=1e-6)


def test_evaluation_does_not_smooth_so_that_losses_can_be_compared() -> None:
    log_probs = torch.randn(3, 5, LABELS + 1 + EXTRA, generator=torch.Generator().manual_seed(3)).log_softmax(2)
    assert loss_of(log_probs, training=False) == pytest.approx(plain_loss(log_probs, 0.0) / 3, rel=1e-6)


def test_what_stands_behind_a_text_changes_neither_loss_nor_gradient() -> None:
    module = AttentionLoss(Reference(decoder(toy()))).train()
    _, labels, _, num_labels = batch()
    rows = torch.randn(3, 5, LABELS + 1 + EXTRA, generator=torch.Generator().manual_seed(3)).log_softmax(2)
    rows.requires_grad_()
    module(labels=labels, log_probs=rows, num_labels=num_labels).backward()
    assert rows.grad is not None
    behind = torch.arange(5) > num_labels.unsqueeze(1)
    assert rows.grad[behind].abs().max() == 0
    assert rows.grad[~behind].abs().amin() > 0


def test_both_losses_of_a_hybrid_are_divided_by_the_same_number() -> None:
    of_attention = AttentionLoss(Reference(decoder(toy())), reduction="mean_volume")
    of_ctc = AuxiliaryCTCLoss(Reference(of_attention), LABELS)
    log_probs, targets = torch.full((1, 4, LABELS + 1), -math.log(LABELS + 1)), torch.tensor([[1, 2]])
    got = of_ctc(log_probs=log_probs, targets=targets, input_length=torch.tensor([4]), target_length=torch.tensor([2]))
    # 15 of the 7 ** 4 paths of four frames say the two labels; they count as two labels and an end.
    assert got.item() == pytest.approx(-(math.log(15) - 4 * math.log(7)) / 3, rel=1e-6)
