"""Models of WeNet's, written anew from its definitions: a Conformer encoder with a CTC head, and its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    """Log-mel features of one utterance to logits of CTC. The weights are random."""

    def __init__(self, causal: bool = False, num_layers: int = 2, units: Sequence[str] = UNITS) -> None:
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
        self.decoder = nn.ModuleDict({"after_norm": nn.LayerNorm(SIZE)})
        for name, buffer in self.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)

    def forward(self, features: Tensor, chunk: int = 0) -> Tensor:
        """(T, MELS) to (T', units); frames see their own chunk and all before it, with 0 all."""
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
        return self.ctc["ctc_lo"](encoder.after_norm(x))  # type: ignore[no-any-return]


def texts(model: Model, features: Tensor, units: Sequence[str] = UNITS) -> str:
    """Greedy decoding: the best unit of each frame, repeats and blanks left out."""
    best = model(features).argmax(1).unique_consecutive().tolist()
    return "".join(units[unit] for unit in best if unit).replace("▁", " ")


def settings(causal: bool = False, **others: Any) -> dict[str, Any]:
    """A train.yaml of today's WeNet."""
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
        "encoder_conf": encoder, "decoder": "bitransformer", "decoder_conf": {"num_blocks": 3}, "ctc": "ctc",
        "ctc_conf": {"ctc_blank_id": 0}, "cmvn": "global_cmvn", "tokenizer": "char",
        "cmvn_conf": {"cmvn_file": "data/train/global_cmvn", "is_json_cmvn": True},
        "tokenizer_conf": {"symbol_table_path": "data/dict/lang_char.txt", "bpe_path": None},
        "dataset_conf": {
            "fbank_conf": {"num_mel_bins": MELS, "frame_length": 25, "frame_shift": 10, "dither": 1.0},
            "resample_conf": {"resample_rate": 16000},
        },
        "model_conf": {"ctc_weight": 0.3}, "optim": "adam", **others,
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
    torch.save(model.state_dict(), folder / "final.pt")
    (folder / "train.yaml").write_text(json.dumps(settings() if config is None else config))  # JSON is YAML
    lines = "".join(f"{unit} {number}\n" for number, unit in enumerate(units))
    (folder / "units.txt").write_text(lines, encoding="utf-8")
    return folder
