"""Small Canary models in the layout of NVIDIA's `.nemo` files, with weights by a formula, and NVIDIA's numbers.

``stored_cases`` are what NVIDIA's own classes of 3.0.0 give: log-probabilities of the labels of a text, and the texts
of their greedy search and of their search with a beam. They are made anew with its wheel (see `nemo_source.py`):

    NEMO_SOURCE=/tmp/nemo PYTHONPATH=tests python -m toys.nemo_prompted
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_asr.run.text.sentencepiece_file import ModelFile, Piece, PieceKind, decode, encode
from toys import nemo_conformers
from toys.nemo_archives import packed, write_tar
from toys.nemo_conformers import by_formula, nvidia_features, signal_of
from toys.nemo_source import nemo_module
from toys.prompted_models import SPECIAL, pieces, prompt_of, rounded
from toys.subwords import small_subwords

STORED = Path(__file__).parents[1] / "data" / "nemo_prompted.json"
BEAM = 4
TEXT = [20, 30, 25, 33, 39]  # ids of labels
_PAD, _END, _START = 2, 3, 4
# By name: whether there is a tokenizer for special labels, channels of the decoder, and of the formula, with which
# different labels are found.
CASES: dict[str, tuple[bool, int, int]] = {"canary": (True, 16, 82), "canary2": (False, 12, 294)}
_SPECIAL_PIECES = ["<unk>", *SPECIAL]


def content_of(name: str) -> list[str]:
    """The pieces of all outputs that have one, by id."""
    return [*_SPECIAL_PIECES, *small_subwords("bpe"), *small_subwords("unigram")] if CASES[name][0] else pieces()


def prompt(name: str, language: str = "en", target_language: str = "en", punctuation: bool = True) -> list[int]:
    """The ids of the prompt, as NVIDIA's formatters make them."""
    if not CASES[name][0]:
        return prompt_of("cohere_asr", language, target_language, punctuation)  # a space stands in front
    task = "<|transcribe|>" if language == target_language else "<|translate|>"
    mark = "<|pnc|>" if punctuation else "<|nopnc|>"
    labels = ["<|startoftranscript|>", f"<|{language}|>", task, f"<|{target_language}|>", mark]
    return [_SPECIAL_PIECES.index(label) for label in labels]


def _special_model() -> bytes:
    kinds = [PieceKind.UNKNOWN, *(PieceKind.USER_DEFINED for _ in SPECIAL)]
    return encode(
        ModelFile(2, tuple(Piece(text, 0.0, kind) for text, kind in zip(_SPECIAL_PIECES, kinds, strict=True)))
    )


def _single_model() -> bytes:
    """Special labels behind ``<unk>``, then the other pieces."""
    whole = decode(small_subwords("bpe").model, "tokenizer")
    special = (Piece(text, 0.0, PieceKind.USER_DEFINED) for text in SPECIAL)
    return encode(ModelFile(whole.algorithm, (whole.pieces[0], *special, *whole.pieces[1:])))


def config_of(name: str) -> dict[str, Any]:
    """``model_config.yaml`` of a case."""
    has_several, size, _ = CASES[name]
    config = nemo_conformers.config_of("fast conformer of 3.0")
    config.pop("decoder")
    place = "nemo.collections.asr"
    model: dict[str, Any] = {"type": "bpe", "model_path": "nemo:tokenizer.model"}
    if has_several:
        langs = {
            language: {"type": "bpe", "model_path": f"nemo:{language}.model"} for language in ("spl_tokens", "en", "de")
        }
        model = {"type": "agg", "langs": langs, "custom_tokenizer": {"_target_": "CanaryTokenizer", "tokenizers": None}}
    return config | {
        "target": f"{place}.models.EncDecMultiTaskModel",
        "nemo_version": "3.0.0",
        "prompt_format": name,
        "prompt_defaults": [
            {"role": "user", "slots": {"source_lang": "<|en|>", "target_lang": "<|en|>", "pnc": "<|pnc|>"}}
        ],
        "tokenizer": model,
        "model_defaults": {"asr_enc_hidden": 16, "lm_enc_hidden": 16, "lm_dec_hidden": size},
        "transf_encoder": {"_target_": f"{place}.modules.transformer.get_nemo_transformer", "num_layers": 0},
        "transf_decoder": {
            "_target_": f"{place}.modules.transformer.get_nemo_transformer",
            "model_name": None,
            "pretrained": False,
            "pre_ln_final_layer_norm": True,
            "config_dict": {
                "max_sequence_length": 64,
                "num_token_types": 0,
                "embedding_dropout": 0.1,
                "learn_positional_encodings": False,
                "hidden_size": "${model_defaults.lm_dec_hidden}",
                "inner_size": 24,
                "num_layers": 2,
                "num_attention_heads": 2,
                "ffn_dropout": 0.1,
                "attn_score_dropout": 0.1,
                "attn_layer_dropout": 0.1,
                "hidden_act": "relu",
                "pre_ln": True,
                "vocab_size": None,
            },
        },
        "head": {"_target_": f"{place}.parts.submodules.token_classifier.TokenClassifier", "num_layers": 1},
        "decoding": {"strategy": "beam", "beam": {"beam_size": 1, "len_pen": 0.0, "max_generation_delta": 50}},
        "loss": {"_target_": "nemo.collections.common.losses.smoothed_cross_entropy.SmoothedCrossEntropyLoss"},
    }


def write_case(path: Path, name: str, state: Mapping[str, Tensor] | None = None, **changes: Any) -> Path:
    """A `.nemo` file of a case; of these tensors, or of those of its stored shapes."""
    members: dict[str, bytes | str] = {
        "./model_config.yaml": json.dumps({**config_of(name), **changes}),
        "./model_weights.ckpt": packed(state_of(name, stored_cases()[name]["shapes"]) if state is None else state),
    }
    if CASES[name][0]:
        models = {"spl_tokens": _special_model(), "en": small_subwords("bpe").model}
        models["de"] = small_subwords("unigram").model
        members |= {f"./{language}.model": model for language, model in models.items()}
    else:
        members["./tokenizer.model"] = _single_model()
    return write_tar(path, members, "w")


def state_of(name: str, shapes: Mapping[str, Sequence[int]], seed: int | None = None) -> dict[str, Tensor]:
    """Weights by the formula, those of the decoder so large that outputs differ; padding is never said."""
    state = by_formula(shapes)
    skipped = {f"skipped {i}": [1] for i in range(CASES[name][2] if seed is None else seed)}
    of_decoder = {key: shape for key, shape in shapes.items() if not key.startswith("encoder.")}
    for key, tensor in by_formula(skipped | of_decoder).items():
        if key in of_decoder:
            state[key] = tensor * 4 if tensor.dim() > 1 and "norm" not in key else tensor
    state["log_softmax.mlp.layer0.weight"] = state["transf_decoder._embedding.token_embedding.weight"]
    bias = state["log_softmax.mlp.layer0.bias"]
    bias[_PAD] = bias[len(content_of(name)) :] = -50.0
    return state


class _Classifier(torch.nn.Module):
    """Stands for NVIDIA's TokenClassifier of one layer."""

    def __init__(self, size: int, outputs: int) -> None:
        super().__init__()
        self.mlp = torch.nn.Module()
        self.mlp.layer0, self.mlp.layers = torch.nn.Linear(size, outputs), 1  # type: ignore[assignment]  # a number

    @contextmanager
    def with_log_softmax_enabled(self, value: bool) -> Iterator[_Classifier]:
        yield self

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.log_softmax(self.mlp.layer0(hidden_states), -1)  # type: ignore[operator]  # a layer


class _Decoder(torch.nn.Module):
    """NVIDIA's embedding and decoder under the names of its files."""

    def __init__(self, config: Mapping[str, Any], size: int, outputs: int) -> None:
        super().__init__()
        section = config["transf_decoder"]["config_dict"]
        modules, decoders = (nemo_module(f"modules.transformer.transformer_{name}") for name in ("modules", "decoders"))
        self._embedding = modules.TransformerEmbedding(outputs, size, section["max_sequence_length"], 0)
        self._decoder = decoders.TransformerDecoder(
            section["num_layers"], size, section["inner_size"], section["num_attention_heads"], pre_ln=True
        )


def nvidia_modules(name: str) -> dict[str, Any]:
    """NVIDIA's modules of a case, by how the names of their tensors begin."""
    config, size = config_of(name), CASES[name][1]
    outputs = -(-len(content_of(name)) // 8) * 8
    head = {"vocabulary": ["a"], "num_classes": 1}
    made: dict[str, Any] = {
        "encoder": nemo_conformers.nvidia_modules({"encoder": config["encoder"], "decoder": head})[0],
        "transf_decoder": _Decoder(config, size, outputs),
        "log_softmax": _Classifier(size, outputs),
    }
    if size != config["encoder"]["d_model"]:
        made["encoder_decoder_proj"] = torch.nn.Linear(config["encoder"]["d_model"], size)
    return made


def fill(modules: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Give them weights."""
    for prefix, module in modules.items():
        start = f"{prefix}."
        own = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        module.eval().load_state_dict(own)


def nvidia_case(name: str) -> dict[str, Any]:
    """Shapes of the weights, and what NVIDIA's classes find."""
    modules = nvidia_modules(name)
    shapes = {
        f"{prefix}.{key}": list(value.shape)
        for prefix, module in modules.items()
        for key, value in module.state_dict().items()
        if not key.endswith(".pos_enc")
    }
    state = state_of(name, shapes)
    table = modules["transf_decoder"]._embedding.position_embedding.pos_enc
    fill(modules, {**state, "transf_decoder._embedding.position_embedding.pos_enc": table})
    return {"shapes": shapes, **found_by(modules, name)}


@torch.no_grad()
def found_by(modules: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Log-probabilities of a text, and by prompt the texts of greedy search and with a beam."""
    features, lengths = nvidia_features(config_of(name), signal_of())
    encoded, encoded_lengths = modules["encoder"](audio_signal=features, length=lengths)
    frames = encoded.transpose(1, 2)[:, : int(encoded_lengths[0])]
    if "encoder_decoder_proj" in modules:
        frames = modules["encoder_decoder_proj"](frames)
    mask = torch.ones(frames.shape[:2])
    generators = nemo_module("modules.transformer.transformer_generators")
    decoder = modules["transf_decoder"]
    parts = decoder._embedding, decoder._decoder, modules["log_softmax"]
    settings = {
        "pad": _PAD,
        "bos": _START,
        "eos": _END,
        "max_sequence_length": config_of(name)["transf_decoder"]["config_dict"]["max_sequence_length"],
        "max_delta_length": 50,
    }
    given = torch.tensor([[*prompt(name), *TEXT]])
    states, _ = decoder._decoder(decoder._embedding(given), torch.ones(given.shape), frames, mask)
    log_probs = modules["log_softmax"](states)[0, len(prompt(name)) - 1 :]
    texts = {}
    for case, wanted in PROMPTS.items():
        start = torch.tensor([prompt(name, **wanted)])
        greedy, *_ = generators.GreedySequenceGenerator(*parts, **settings)(start, frames, mask)
        beam = generators.BeamSearchSequenceGenerator(*parts, beam_size=BEAM, len_pen=0.0, **settings)
        texts[case] = {
            "greedy": _text(greedy, start),
            "beam": _text(beam(start, frames, mask), start),
        }
    return {"log_probs": rounded(log_probs), "texts": texts}


def _text(found: Any, start: Tensor) -> list[int]:
    ids = (found[0] if isinstance(found, tuple) else found)[0].tolist()[start.shape[1] :]
    return [each for each in ids if each != _PAD]


PROMPTS: dict[str, dict[str, Any]] = {
    "en": {},
    "de to en": {"language": "de", "target_language": "en"},
    "without punctuation": {"punctuation": False},
}


def stored_cases() -> dict[str, Any]:
    """What :func:`nvidia_case` gave for each case."""
    cases: dict[str, Any] = json.loads(STORED.read_text())
    return cases


if __name__ == "__main__":
    STORED.write_text(json.dumps({name: nvidia_case(name) for name in CASES}) + "\n")
