"""The encoders of wav2vec2-BERT, LASR and Granite Speech: an utterance is encoded as if alone; what training hides.

Their numbers are compared with those of transformers in `test_frame_models.py`.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

from nemo_asr.models.conformer import other_attention, self_attention
from nemo_asr.models.conformer.other_attention import ShawAttention, distances, rotations
from nemo_asr.models.granite import GraniteSpeechEncoder
from nemo_asr.models.lasr import LasrEncoder
from nemo_asr.models.wav2vec_bert import Wav2VecBertEncoder
from nemo_lite.base.errors import UsageError
from nemo_lite.core.shapes import Expr, symbol

Encoder: TypeAlias = Wav2VecBertEncoder | LasrEncoder | GraniteSpeechEncoder
_SIZES = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
_BERT = {**_SIZES, "feature_projection_input_dim": 12, "num_hidden_layers": 2, "left_max_position_embeddings": 4}
SMALL: dict[str, tuple[type[Encoder], dict[str, Any]]] = {
    "bert": (Wav2VecBertEncoder, _BERT),
    "adapter": (Wav2VecBertEncoder, {**_BERT, "num_adapter_layers": 2}),
    "lasr": (LasrEncoder, {**_SIZES, "num_mel_bins": 6, "num_hidden_layers": 2, "conv_kernel_size": 5}),
    "granite": (
        GraniteSpeechEncoder,
        {**_SIZES, "feat_in": 6, "vocab_size": 5, "num_hidden_layers": 4, "context_size": 8},
    ),
}
DROPOUTS: dict[str, Any] = {
    "bert": dict.fromkeys(
        ("feat_proj_dropout", "hidden_dropout", "activation_dropout", "attention_dropout", "conformer_conv_dropout"),
        0.0,
    )
    | {"final_dropout": 0.0, "mask_time_prob": 0.0},
    "lasr": dict.fromkeys(("dropout", "activation_dropout", "attention_dropout"), 0.0),
}


def encoder_of(name: str, **settings: Any) -> Encoder:
    torch.manual_seed(0)
    kind, small = SMALL[name]
    return kind(**{**small, **settings})


def noise(*lengths: int) -> tuple[Tensor, Tensor]:
    """(B, 6, T) with other noise behind each utterance, and the lengths."""
    features = torch.randn(len(lengths), 6, max(lengths), generator=torch.Generator().manual_seed(1))
    return features, torch.tensor(lengths)


@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_an_utterance_in_a_batch_is_encoded_as_alone(name: str) -> None:
    encoder = encoder_of(name).eval()
    features, lengths = noise(70, 41, 99, 24)
    together, frames = encoder(features, lengths)
    assert frames.min() > 0
    for row, length in enumerate(lengths.tolist()):
        alone, number = encoder(features[row : row + 1, :, :length], lengths[row : row + 1])
        assert number == frames[row]
        own = slice(0, int(number))
        torch.testing.assert_close(together[row, :, own], alone[0, :, own], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "frames"),
    [("bert", [35, 20, 0, 0]), ("adapter", [9, 5, 0, 0]), ("lasr", [15, 8, 0, 0]), ("granite", [17, 10, 0, 0])],
)
@torch.no_grad()
def test_frames_are_counted_and_what_is_too_short_has_none(name: str, frames: list[int]) -> None:
    encoded, found = encoder_of(name).eval()(*noise(70, 41, 1, 0))
    assert found.tolist() == frames
    assert encoded.isfinite().all()
    short, none = encoder_of(name).eval()(*noise(1, 0))
    assert (none.tolist(), short.isfinite().all()) == ([0, 0], True)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("length", [13, 14, 15, 16, 17, 50, 51])
@torch.no_grad()
def test_the_symbolic_shape_is_that_of_the_frames(name: str, length: int) -> None:
    encoder = encoder_of(name).eval()
    size = encoder.output_shapes({"audio_signal": (1, 6, symbol("T"))})["outputs"][2]
    assert isinstance(size, Expr)
    assert size.value(T=length) == encoder(*noise(length))[0].shape[2]


@torch.no_grad()
def test_queries_in_blocks_give_what_all_at_once_give(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of("bert").eval()
    at_once = encoder(*noise(90, 50))[0]
    monkeypatch.setattr(self_attention, "_MOST_SCORES", 500)
    torch.testing.assert_close(encoder(*noise(90, 50))[0], at_once, rtol=0, atol=1e-6)


@torch.no_grad()
def test_shaws_scores_follow_from_their_definition() -> None:
    torch.manual_seed(0)
    attention, x = ShawAttention(2, 8, 6, 0.0).double(), torch.randn(1, 9, 8, dtype=torch.float64)
    query, key, value = (
        projection(x)[0].view(9, 2, 4) for projection in (attention.linear_q, attention.linear_k, attention.linear_v)
    )
    heads = []
    for head in range(2):
        scores = torch.zeros(9, 9, dtype=torch.float64)
        for i in range(9):
            for j in range(9):
                vector = attention.distance_embedding.weight[min(max(j - i, -3), 2) + 3]
                scores[i, j] = query[i, head] @ (key[j, head] + vector) / 2
        heads.append(scores.softmax(1) @ value[:, head])
    wanted = attention.linear_out(torch.cat(heads, dim=1))
    found = attention(x, distances(9, 3, 2, x.device), None)[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_rotated_queries_and_keys_know_only_how_far_they_are_apart() -> None:
    positions = rotations(50, 8, 10_000.0, torch.device("cpu")).double()
    query, key = torch.randn(1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 50, 8)
    turned = [other_attention._rotated(x[None], positions)[0, 0] for x in (query, key)]
    scores = turned[0] @ turned[1].T
    for apart in (-20, -3, 0, 5):
        same = scores.diagonal(apart)
        torch.testing.assert_close(same, same[:1].expand_as(same), rtol=0, atol=1e-5)
    assert scores[0, 0] == pytest.approx(float(query[0, 0] @ key[0, 0]))
    assert (scores[0, 0] - scores[0, 30]).abs() > 1e-2
    assert positions[1, 1, 0] == pytest.approx(math.sin(1.0), abs=1e-6)


@torch.no_grad()
def test_a_frame_of_granite_sees_its_own_block_and_the_reach_of_convolutions() -> None:
    encoder = encoder_of("granite", subsample_layers=(), conv_kernel_size=1).eval()
    features, lengths = noise(24)
    changed = features.clone()
    changed[:, :, 8:16] += 1.0
    differ = (encoder(changed, lengths)[0] != encoder(features, lengths)[0]).any(1)[0]
    assert differ.tolist() == [False] * 8 + [True] * 8 + [False] * 8


@torch.no_grad()
def test_the_middle_of_granite_hears_what_it_would_write() -> None:
    encoder: Any = encoder_of("granite").eval()
    before = encoder(*noise(50))[0]
    encoder.out_mid.bias[0] += 1.0  # of all channels alike, norms would take it away again
    assert (encoder(*noise(50))[0] - before).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["bert", "lasr"])
def test_a_layer_that_is_dropped_gives_what_it_takes(name: str) -> None:
    encoder: Any = encoder_of(name, **DROPOUTS[name], layerdrop=1 - 1e-9)
    for layer in encoder.layers:
        layer.conv.eval()  # batch normalisation of its own statistics
    dropped = encoder(*noise(50))[0]
    encoder.layers = torch.nn.ModuleList([encoder.layers[0]])
    torch.testing.assert_close(encoder(*noise(50))[0], dropped)
    encoder.eval()
    assert (encoder(*noise(50))[0] - dropped).abs().max() > 0.1, "evaluation has all layers"


def test_training_masks_frames_by_a_vector_that_is_trained() -> None:
    encoder = encoder_of("adapter", mask_time_prob=0.6, mask_time_length=3)
    assert isinstance(encoder, Wav2VecBertEncoder)
    assert encoder.masked_spec_embed is not None
    encoder(*noise(90, 60))[0].sum().backward()
    assert encoder.masked_spec_embed.grad is not None
    assert encoder.masked_spec_embed.grad.abs().max() > 0
    assert encoder_of("bert", mask_time_prob=0.0).masked_spec_embed is None
    encoder.eval()
    assert torch.equal(encoder(*noise(90))[0], encoder(*noise(90))[0]), "evaluation draws nothing"


@pytest.mark.parametrize("name", SMALL)
def test_a_step_of_training_reads_no_value_and_reaches_all_weights(name: str) -> None:
    """On the meta device there is none, and a GPU would wait for it."""
    with torch.device("meta"):
        encoder = encoder_of(name)
        encoder(torch.empty(2, 6, 80), torch.empty(2, dtype=torch.int64))[0].sum().backward()
    assert [key for key, weight in encoder.named_parameters() if weight.grad is None] == []


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("bert", {"num_attention_heads": 3}, "num_attention_heads must divide hidden_size: got hidden_size 8, num_att"),
        ("bert", {"feature_projection_input_dim": 5}, "feature_projection_input_dim is odd: got 5, wanted features of"),
        ("bert", {"conv_depthwise_kernel_size": 4}, "conv_depthwise_kernel_size is even: got 4, wanted an odd number"),
        ("bert", {"hidden_size": 65_536, "num_hidden_layers": 256}, "the module is too large"),
        ("lasr", {"num_attention_heads": 8}, "num_attention_heads does not fit: got hidden_size 8, 8 heads, wanted an"),
        ("lasr", {"conv_kernel_size": 4}, "conv_kernel_size is even: got 4, wanted an odd number of frames"),
        ("lasr", {"intermediate_size": 65_536, "hidden_size": 65_536}, "the module is too large"),
        ("granite", {"num_attention_heads": 3}, "num_attention_heads must divide hidden_size"),
        ("granite", {"conv_kernel_size": 4}, "conv_kernel_size is even: got 4"),
        ("granite", {"context_size": 600}, "context_size is too large: got 600, wanted at most max_position_embedding"),
        ("granite", {"vocab_size": 1_000_000, "hidden_size": 65_536}, "the module is too large"),
    ],
)
def test_settings_that_contradict_each_other_are_one_line(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        encoder_of(name, **settings)
    assert "\n" not in str(caught.value)
