"""Models of WeNet's, written anew from its definitions: Conformer encoder, CTC head, attention decoder, the folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toys.attention_decoders import Decoder

SIZE, HEADS, UNITS_OF_LAYER, KERNEL, CAUSAL_KERNEL, MELS = 32, 4, 64, 5, 4, 20
UNITS = ("<blank>", "<unk>", "天", "地", "人", "和", "▁", "A", "<sos/eos>")


class Layer(nn.Module):
    """A layer of WeNet's encoder, with its names."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        for name in ("feed_forward", "feed_forward_macaron"):
            layers = {"w_1": nn.Linear(SIZE, UNITS_OF_LAYER), "w_2": nn.Linear(UNITS_OF_LAYER, SIZE)}
            setattr(self, name, nn.ModuleDict(layers))
        names = ("linear_q", "linear_k", "linear_v", "linear_out")
        self.self_attn = nn.ModuleDict({name: nn.Linear(SIZE, SIZE) for name in names})
        self.self_attn["linear_pos"] = nn.Linear(SIZE, SIZE, bias=False)
        for name in ("pos_bias_u", "pos_bias_v"):
            self.self_attn.register_parameter(name, nn.Parameter(torch.randn(HEADS, SIZE // HEADS)))
        self.conv_module = nn.ModuleDict(
            {
                "pointwise_conv1": nn.Conv1d(SIZE, 2 * SIZE, 1),
                "depthwise_conv": nn.Conv1d(SIZE, SIZE, CAUSAL_KERNEL if causal else KERNEL, groups=SIZE),
                "norm": nn.LayerNorm(SIZE) if causal else nn.BatchNorm1d(SIZE),
                "pointwise_conv2": nn.Conv1d(SIZE, SIZE, 1),
            }
        )
        for name in ("norm_ff", "norm_mha", "norm_ff_macaron", "norm_conv", "norm_final"):
            setattr(self, name, nn.LayerNorm(SIZE))

    def forward(self, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """One utterance (T, SIZE)."""
        x = x + 0.5 * self._feed_forward(self.feed_forward_macaron, self.norm_ff_macaron(x))
        x = x + self._attention(self.norm_mha(x), positions, visible)
        x = x + self._convolution(self.norm_conv(x))
        x = x + 0.5 * self._feed_forward(self.feed_forward, self.norm_ff(x))
        return self.norm_final(x)  # type: ignore[no-any-return]

    @staticmethod
    def _feed_forward(layers: Any, x: Tensor) -> Tensor:
        return layers["w_2"](F.silu(layers["w_1"](x)))  # type: ignore[no-any-return]

    def _attention(self, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        attn: Any = self.self_attn
        heads = lambda y: y.view(len(y), HEADS, -1).transpose(0, 1)  # noqa: E731
        q, k, v = (heads(attn[name](x)) for name in ("linear_q", "linear_k", "linear_v"))
        p = heads(attn["linear_pos"](positions))
        content = (q + attn.pos_bias_u[:, None]) @ k.transpose(1, 2)
        place = (q + attn.pos_bias_v[:, None]) @ p.transpose(1, 2)
        scores = ((content + place) / math.sqrt(SIZE // HEADS)).masked_fill(~visible, -math.inf)
        weights = scores.softmax(-1).masked_fill(~visible, 0.0)
        return attn["linear_out"]((weights @ v).transpose(0, 1).reshape(len(x), SIZE))  # type: ignore[no-any-return]

    def _convolution(self, x: Tensor) -> Tensor:
        conv: Any = self.conv_module
        y = x.T[None]
        if self.causal:  # zeros before pointwise_conv1, whose bias passes the gate there
            y = F.pad(y, (CAUSAL_KERNEL - 1, 0))
        y = F.glu(conv["pointwise_conv1"](y), dim=1)
        if not self.causal:
            y = F.pad(y, (KERNEL // 2, KERNEL // 2))
        y = conv["depthwise_conv"](y)
        norm = conv["norm"]
        y = norm(y.transpose(1, 2)).transpose(1, 2) if self.causal else norm(y)
        return conv["pointwise_conv2"](F.silu(y))[0].T  # type: ignore[no-any-return]


class Model(nn.Module):
    """Log-mel features of one utterance to logits of CTC. The weights are random.

    Args:
        causal: as U2++.
        num_layers: of the encoder.
        units: outputs of both heads.
        decoder: bitransformer, transformer, or "" for none.
        end: the unit that begins and ends texts of the decoder; None: the last one.
    """

    def __init__(
        self,
        causal: bool = False,
        num_layers: int = 2,
        units: Sequence[str] = UNITS,
        decoder: str = "bitransformer",
        end: int | None = None,
    ) -> None:
        super().__init__()
        out = nn.Sequential(nn.Linear(SIZE * (((MELS - 1) // 2 - 1) // 2), SIZE))
        conv = nn.Sequential(nn.Conv2d(1, SIZE, 3, 2), nn.ReLU(), nn.Conv2d(SIZE, SIZE, 3, 2), nn.ReLU())
        self.encoder = nn.Module()
        self.encoder.embed = nn.ModuleDict({"conv": conv, "out": out})
        self.encoder.encoders = nn.ModuleList(Layer(causal) for _ in range(num_layers))
        self.encoder.after_norm = nn.LayerNorm(SIZE)
        self.encoder.global_cmvn = nn.Module()
        self.encoder.global_cmvn.register_buffer("mean", 10 + torch.randn(MELS))
        self.encoder.global_cmvn.register_buffer("istd", 0.2 + 0.1 * torch.rand(MELS))
        self.ctc = nn.ModuleDict({"ctc_lo": nn.Linear(SIZE, len(units))})
        with torch.no_grad():  # so that frames differ, and, as training makes it, none is the end of a sentence
            for layer in [
                self.ctc["ctc_lo"],
                out[0],
                *(each.conv_module["depthwise_conv"] for each in self.encoder.encoders),
            ]:
                layer.weight.mul_(4.0)
            self.ctc["ctc_lo"].bias.zero_()
            self.ctc["ctc_lo"].bias[-1] = -100.0
        for name, buffer in self.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
        self.both = Decoder(len(units), len(units) - 1 if end is None else end, SIZE)  # of which a transformer has one
        with torch.no_grad():  # so that texts differ and end, and, as training makes it, none has a blank
            for name, parameter in self.both.named_parameters():
                parameter.mul_(0.2 if "bias" in name else 3.0 if "output_layer" in name else 1.0)
            for side in (self.both.left_decoder, self.both.right_decoder):
                side.output_layer.bias[[0, self.both.end]] = torch.tensor([-100.0, 1.8])
        if decoder:
            self.decoder: Any = self.both.left_decoder if decoder == "transformer" else self.both

    def forward(self, features: Tensor, chunk: int = 0) -> Tensor:
        """(T, MELS) to (T', units)."""
        return self.ctc["ctc_lo"](self.encoded(features, chunk))  # type: ignore[no-any-return]

    def encoded(self, features: Tensor, chunk: int = 0) -> Tensor:
        """(T, MELS) to (T', SIZE); frames see their own chunk and all before it, with 0 all."""
        encoder: Any = self.encoder
        x = (features - encoder.global_cmvn.mean) * encoder.global_cmvn.istd
        x = encoder.embed["conv"](x[None, None])
        x = encoder.embed["out"](x.transpose(1, 2).flatten(2))[0] * math.sqrt(SIZE)
        number = len(x)
        angles = torch.arange(number)[:, None] * torch.exp(torch.arange(0, SIZE, 2) * (-math.log(1e4) / SIZE))
        positions = torch.stack([angles.sin(), angles.cos()], 2).flatten(1)
        of_frame = torch.arange(number) // chunk if chunk else torch.zeros(number)
        for layer in encoder.encoders:
            x = layer(x, positions, of_frame[:, None] >= of_frame)
        return encoder.after_norm(x)  # type: ignore[no-any-return]


def attention_ids(model: Model, features: Tensor, beam: int) -> tuple[list[int], float]:
    """What the decoder from the left says, and its logarithm: in each step the most probable of all continuations.

    A text has at most as many units as there are frames.
    """
    frames, end = model.encoded(features), model.both.end
    hypotheses: list[tuple[float, list[int]]] = [(0.0, [])]
    for number in range(len(frames) + 1):
        found: list[tuple[float, list[int]]] = []
        for score, ids in hypotheses:
            if ids[-1:] == [end]:
                found.append((score, ids))
                continue
            rows = model.both.from_left(frames, ids)[-1].tolist()
            found += [
                (score + row, [*ids, unit]) for unit, row in enumerate(rows) if number < len(frames) or unit == end
            ]
        hypotheses = sorted(found, key=lambda one: -one[0])[:beam]
        if all(ids[-1:] == [end] for _, ids in hypotheses[:1]):
            break
    score, ids = hypotheses[0]
    return ids[:-1], score


def written(ids: Sequence[int], units: Sequence[str] = UNITS) -> str:
    """The text of units."""
    return "".join(units[unit] for unit in ids).replace("▁", " ")


def texts(model: Model, features: Tensor, units: Sequence[str] = UNITS) -> str:
    """Greedy decoding: the best unit of each frame, repeats and blanks left out."""
    return written([unit for unit in model(features).argmax(1).unique_consecutive().tolist() if unit], units)


def settings(causal: bool = False, decoder: str = "bitransformer", **others: Any) -> dict[str, Any]:
    """A train.yaml of today's WeNet."""
    of_decoder = {"attention_heads": 4, "linear_units": 24, "num_blocks": 2}
    of_model = {"ctc_weight": 0.3, "lsm_weight": 0.1}
    if decoder == "bitransformer":
        of_decoder, of_model = {**of_decoder, "r_num_blocks": 2}, {**of_model, "reverse_weight": 0.3}
    encoder = {
        "activation_type": "swish", "attention_heads": HEADS, "cnn_module_kernel": KERNEL, "input_layer": "conv2d",
        "linear_units": UNITS_OF_LAYER, "num_blocks": 2, "output_size": SIZE, "pos_enc_layer_type": "rel_pos",
        "selfattention_layer_type": "rel_selfattn", "use_cnn_module": True, "normalize_before": True,
    }  # fmt: skip
    if causal:
        encoder |= {
            "causal": True,
            "cnn_module_kernel": CAUSAL_KERNEL,
            "cnn_module_norm": "layer_norm",
            "use_dynamic_chunk": True,
        }
    return {
        "input_dim": MELS, "output_dim": len(UNITS), "model": "asr_model", "encoder": "conformer",
        "encoder_conf": encoder, "decoder": decoder, "decoder_conf": of_decoder, "ctc": "ctc",
        "ctc_conf": {"ctc_blank_id": 0}, "cmvn": "global_cmvn", "tokenizer": "char",
        "cmvn_conf": {"cmvn_file": "data/train/global_cmvn", "is_json_cmvn": True},
        "tokenizer_conf": {"symbol_table_path": "data/dict/lang_char.txt", "bpe_path": None},
        "dataset_conf": {
            "fbank_conf": {"num_mel_bins": MELS, "frame_length": 25, "frame_shift": 10, "dither": 1.0},
            "resample_conf": {"resample_rate": 16000},
        },
        "model_conf": of_model, "optim": "adam", **others,
    }  # fmt: skip


def older_settings(**others: Any) -> dict[str, Any]:
    """A train.yaml of WeNet 1 and 2: without the sections of tokenizer, CTC and CMVN."""
    newer = ("model", "ctc", "ctc_conf", "cmvn", "cmvn_conf", "tokenizer", "tokenizer_conf")
    kept = {key: value for key, value in settings().items() if key not in newer}
    return {**kept, "cmvn_file": "exp/conformer/global_cmvn", "is_json_cmvn": True, **others}


def write_folder(
    folder: Path, model: Model, config: dict[str, Any] | None = None, units: Sequence[str] = UNITS
) -> Path:
    """A folder as WeNet publishes it."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("both.")}
    torch.save(state, folder / "final.pt")
    (folder / "train.yaml").write_text(json.dumps(settings() if config is None else config))  # JSON is YAML
    lines = "".join(f"{unit} {number}\n" for number, unit in enumerate(units))
    (folder / "units.txt").write_text(lines, encoding="utf-8")
    return folder
