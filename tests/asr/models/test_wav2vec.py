"""Wav2VecEncoder: an utterance is encoded as if alone, training masks stretches, and convolutions of samples stay.

Its numbers are compared with those of transformers in `test_waveform_models.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_asr.models.conformer import self_attention
from nemo_asr.models.masks import Masks, masked
from nemo_asr.models.wav2vec import Wav2VecEncoder, _bucket
from nemo_lite.base.errors import UsageError
from nemo_lite.core.shapes import Expr, symbol

SMALL: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "conv_dim": [6] * 7,
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2,
    "num_buckets": 16,
    "max_bucket_distance": 20,
}
LARGE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
KINDS = [{}, LARGE, {"gated_positions": True}, {**LARGE, "gated_positions": True}]


def encoder_of(**settings: Any) -> Wav2VecEncoder:
    torch.manual_seed(0)
    return Wav2VecEncoder(**{**SMALL, **settings})


def noise(*lengths: int) -> tuple[Tensor, Tensor]:
    """(B, 1, T) that is zero behind each utterance, and the lengths."""
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(len(lengths), 1, max(lengths), generator=generator)
    return samples * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None, None]), torch.tensor(lengths)


def masked_by(encoder: Wav2VecEncoder, x: Tensor, lengths: list[int]) -> Tensor:
    """Frames (B, T, D) as training hides them."""
    masks = encoder._time_masks, encoder._feature_masks
    return masked(x, torch.tensor(lengths), encoder.masked_spec_embed, *masks)


@pytest.mark.parametrize("settings", KINDS)
@torch.no_grad()
def test_an_utterance_in_a_batch_is_encoded_as_alone(settings: dict[str, Any]) -> None:
    encoder = encoder_of(**settings).eval()
    samples, lengths = noise(9000, 4321, 17000, 400)
    together, frames = encoder(samples, lengths)
    assert frames.tolist() == [27, 13, 52, 1]
    for row, length in enumerate(lengths.tolist()):
        alone, _ = encoder(samples[row : row + 1, :, :length], lengths[row : row + 1])
        torch.testing.assert_close(together[row, :, : frames[row]], alone[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_what_is_shorter_than_a_frame_has_none() -> None:
    samples, lengths = noise(399, 12)
    encoded, frames = encoder_of().eval()(samples, lengths)
    assert (frames.tolist(), encoded.isfinite().all()) == ([0, 0], True)


@pytest.mark.parametrize("length", [400, 719, 720, 1039, 5000])
@torch.no_grad()
def test_the_symbolic_shape_is_that_of_the_frames(length: int) -> None:
    encoder = encoder_of()
    size = encoder.output_shapes({"audio_signal": (1, 1, symbol("T"))})["outputs"][2]
    assert isinstance(size, Expr)
    encoded, frames = encoder(*noise(length))
    assert size.value(T=length) == encoded.shape[2] == int(frames)


@torch.no_grad()
def test_queries_in_blocks_give_what_all_at_once_give(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of(gated_positions=True).eval()
    at_once = encoder(*noise(9000, 5000))[0]
    monkeypatch.setattr(self_attention, "_MOST_SCORES", 500)
    in_blocks = encoder(*noise(9000, 5000))[0]
    torch.testing.assert_close(in_blocks, at_once, rtol=0, atol=1e-6)


def test_near_distances_have_a_bucket_each_and_far_ones_share_by_logarithms() -> None:
    buckets = _bucket(torch.arange(-30, 31), 16, 20)
    assert buckets[30 - 3 : 30 + 4].tolist() == [3, 2, 1, 0, 9, 10, 11]
    assert buckets[:5].tolist() == [7] * 5
    assert buckets[-5:].tolist() == [15] * 5
    before = buckets[:30].flip(0)
    assert (before.diff() >= 0).all()
    assert torch.equal(buckets[31:], before + 8)


def test_masks_cover_their_share_within_the_utterance() -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([400, 100, 30])
    masks = torch.stack([Masks(0.2, 10, 0).draw(sizes, 400) for _ in range(200)])
    for row, size in enumerate(sizes.tolist()):
        assert not masks[:, row, size:].any()
        share = masks[:, row, :size].float().mean().item()
        assert 0.16 < share < 0.205, "stretches overlap a little"
    assert not (masks[0] == masks[1]).all(), "each batch has its own"


def test_a_stretch_has_its_length_and_the_fewest_are_drawn_where_there_is_room() -> None:
    torch.manual_seed(0)
    for _ in range(20):
        one, two, none = Masks(0.0, 5, 2).draw(torch.tensor([5, 40, 4]), 40)
        assert one.sum() == 5
        assert one[:5].all()
        assert 6 <= two.sum() <= 10
        assert not none.any()


def test_training_replaces_masked_frames_by_a_vector_that_is_trained() -> None:
    encoder = encoder_of(mask_time_prob=0.5, mask_time_length=4, hidden_dropout=0.0, layerdrop=0.0)
    assert encoder.masked_spec_embed is not None
    x = torch.randn(3, 30, 8)
    replaced = masked_by(encoder, x, [30, 30, 20])
    is_masked = (replaced != x).any(2)
    assert 0.2 < is_masked.float().mean() < 0.6
    assert not is_masked[2, 20:].any()
    assert torch.equal(replaced[is_masked], encoder.masked_spec_embed.expand(int(is_masked.sum()), 8))
    encoder(*noise(9000))[0].sum().backward()
    assert encoder.masked_spec_embed.grad is not None
    samples, lengths = noise(9000)
    torch.manual_seed(0)
    first = encoder.eval()(samples, lengths)[0]
    assert torch.equal(first, encoder(samples, lengths)[0]), "evaluation draws nothing"


def test_without_masks_there_is_no_vector_and_channels_are_masked_for_all_frames() -> None:
    encoder = encoder_of(mask_time_prob=0.0, mask_feature_prob=0.5, mask_feature_length=2)
    assert encoder.masked_spec_embed is None
    hidden = masked_by(encoder, torch.ones(4, 30, 8), [30] * 4)
    per_channel = hidden[:, 0]
    assert torch.equal(hidden, per_channel.unsqueeze(1).expand(4, 30, 8))
    assert 0 < int((per_channel == 0).sum()) < 32


def test_a_layer_that_is_dropped_gives_what_it_takes() -> None:
    settings: dict[str, Any] = dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout"), 0.0)
    encoder = encoder_of(**settings, final_dropout=0.0, mask_time_prob=0.0, layerdrop=1 - 1e-9)
    samples, lengths = noise(4000)
    dropped = encoder(samples, lengths)[0]
    encoder.encoder.layers = torch.nn.ModuleList([encoder.encoder.layers[0]])
    torch.testing.assert_close(encoder(samples, lengths)[0], dropped)
    encoder.eval()
    assert (encoder(samples, lengths)[0] - dropped).abs().max() > 0.1, "evaluation has all layers"


def test_the_convolutions_over_samples_are_trained_only_where_that_is_asked_for() -> None:
    encoder = encoder_of()
    frozen = {name for name, weight in encoder.named_parameters() if not weight.requires_grad}
    assert frozen == {f"feature_extractor.{name}" for name, _ in encoder.feature_extractor.named_parameters()}
    encoder.freeze()
    assert encoder.is_frozen()
    encoder.unfreeze()
    assert {name for name, weight in encoder.named_parameters() if not weight.requires_grad} == frozen
    assert all(weight.requires_grad for weight in encoder_of(freeze_feature_encoder=False).parameters())


@pytest.mark.parametrize("settings", KINDS)
def test_a_step_of_training_reads_no_value(settings: dict[str, Any]) -> None:
    """On the meta device there is none, and a GPU would wait for it."""
    with torch.device("meta"):
        encoder = encoder_of(**settings, mask_feature_prob=0.1)
        encoded, _ = encoder(torch.empty(2, 1, 8000), torch.empty(2, dtype=torch.int64))
    encoded.sum().backward()
    assert encoded.shape == (2, 8, 24)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_attention_heads": 3},
            "num_attention_heads must divide hidden_size: got hidden_size 8, num_attention_",
        ),
        ({"num_conv_pos_embedding_groups": 3}, "num_conv_pos_embedding_groups must divide hidden_size"),
        ({"conv_stride": [5, 2]}, "conv_dim, conv_kernel and conv_stride must be equally long: got 7, 7 and 2 numbers"),
        ({"feat_extract_norm": "batch"}, "feat_extract_norm is not known: got batch, wanted group or layer"),
        ({"hidden_size": 65_536, "num_hidden_layers": 256}, "the module is too large"),
    ],
)
def test_settings_that_contradict_each_other_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        encoder_of(**settings)
    assert "\n" not in str(caught.value)
