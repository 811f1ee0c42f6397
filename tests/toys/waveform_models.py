"""Small wav2vec 2.0, HuBERT, WavLM and omniASR in the layout of transformers, and the numbers of transformers for them.

Weights are by a formula. ``stored_cases`` are their shapes and what transformers 5.24 gives for one recording: scores
of the outputs, and the text. They are made anew where it is installed; ``compare`` prints how far twenty others differ:

    PYTHONPATH=tests python -m toys.waveform_models
    PYTHONPATH=tests python -m toys.waveform_models compare
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nemo_asr.trained.model import load_model
from toys.hugging_face import tokenizer_of
from toys.log_probs import log_probs_of
from toys.nemo_conformers import RATE, by_formula, signal_of
from toys.subwords import small_subwords

STORED = Path(__file__).parents[1] / "data" / "waveform_models.json"
SECONDS = 0.8
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
PIECES = len(small_subwords("bpe"))
LETTERS = "ETAONIHS'"
VOCABULARY = {token: number for number, token in enumerate([*SPECIAL, "|", *LETTERS])}
_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": [8] * 7,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
_LARGE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
_OF_DISTANCES = {"num_buckets": 16, "max_bucket_distance": 20}
# By name: the type, the class, what the configuration says beside the sizes, and which formula.
CASES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "wav2vec2": ("wav2vec2", "Wav2Vec2ForCTC", {}, 36),
    "wav2vec2 large": ("wav2vec2", "Wav2Vec2ForCTC", _LARGE, 34),
    "hubert": ("hubert", "HubertForCTC", {}, 13),
    "hubert large": ("hubert", "HubertForCTC", _LARGE, 4),
    "wavlm": ("wavlm", "WavLMForCTC", _OF_DISTANCES, 28),
    "wavlm large": ("wavlm", "WavLMForCTC", {**_LARGE, **_OF_DISTANCES}, 14),
    "omniasr_ctc": ("omniasr_ctc", "OmniASRForCTC", {}, 23),
}
CHARACTERS = [name for name in CASES if name != "omniasr_ctc"]


def config_of(name: str) -> dict[str, Any]:
    """``config.json``."""
    model_type, kind, more, _ = CASES[name]
    config = {"architectures": [kind], "model_type": model_type, "transformers_version": "5.24.0"}
    if model_type == "omniasr_ctc":
        return {**config, "audio_config": dict(_SIZES), "vocab_size": PIECES + 1, "blank_token_id": 0}
    return {**config, "vocab_size": len(VOCABULARY), "pad_token_id": 0, **_SIZES, **more}


def state_of(
    name: str, shapes: Mapping[str, Sequence[int]] | None = None, seed: int | None = None
) -> dict[str, Tensor]:
    """Weights by the formula."""
    shapes = stored_cases()[name]["shapes"] if shapes is None else shapes
    skipped = {f"skipped {i}": [1] for i in range(CASES[name][3] if seed is None else seed)}
    state = by_formula(skipped | dict(shapes))
    return {key: state[key] * _factor(key, shape) for key, shape in shapes.items()}


def _factor(key: str, shape: Sequence[int]) -> float:
    """Such that sounds are heard through all layers, and outputs differ."""
    if key.startswith(("lm_head.", "ctc_head.")):
        return 8.0 if len(shape) > 1 else 1.0
    if len(shape) == 1:
        return 0.1 if key.endswith("bias") else 1.0
    return 1.5 if "conv_layers" in key or "projection" in key else 0.5


def write_folder(
    folder: Path,
    name: str = "wav2vec2",
    changes: Mapping[str, Any] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> Path:
    """A folder; ``changes`` are made to ``config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config_of(name), **(changes or {})}))
    (folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": True, "sampling_rate": RATE}))
    if CASES[name][0] == "omniasr_ctc":
        (folder / "tokenizer.json").write_text(json.dumps(_tokenizer_with_first_blank()))
    else:
        (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Wav2Vec2CTCTokenizer"}))
    save_file(dict(state or state_of(name)), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tokenizer_with_first_blank() -> dict[str, Any]:
    """``tokenizer.json`` of `small_subwords`, behind a blank."""
    content = tokenizer_of("bpe")
    content["model"]["vocab"] = {piece: number + 1 for piece, number in content["model"]["vocab"].items()}
    added = content["added_tokens"]
    content["added_tokens"] = [{**each, "id": (each["id"] + 1) % (PIECES + 1)} for each in added]
    return content


def transformers_model(name: str) -> Any:
    """The model with weights of its own, in evaluation mode."""
    transformers = import_module("transformers")
    config = config_of(name)
    kind = getattr(transformers, CASES[name][1])
    config.pop("architectures")
    return kind(kind.config_class(**{key: config[key] for key in config if key != "model_type"})).eval()


def scores_of(model: Any, name: str, signal: Tensor) -> Tensor:
    """Scores (U, outputs) of one recording, with transformers' features."""
    transformers = import_module("transformers")
    kind = "OmniASR" if CASES[name][0] == "omniasr_ctc" else "Wav2Vec2"
    extractor = getattr(transformers, f"{kind}FeatureExtractor")()
    inputs = extractor([signal.numpy()], sampling_rate=RATE, return_tensors="pt").input_values
    with torch.no_grad():
        scores: Tensor = model(inputs).logits[0]
    return scores


def kept_outputs(name: str) -> list[int]:
    """The outputs of the labels, and last that of the blank."""
    if CASES[name][0] == "omniasr_ctc":
        return [*range(1, PIECES + 1), 0]
    return [*range(len(SPECIAL), len(VOCABULARY)), 0]


def text_of(scores: Tensor) -> str:
    """The greedy text of transformers' tokenizer, where no special token may win."""
    tokenizer = import_module("transformers").Wav2Vec2CTCTokenizer
    scores = scores.clone()
    scores[:, 1 : len(SPECIAL)] = -torch.inf
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(VOCABULARY, file)
        file.flush()
        text: str = tokenizer(file.name).decode(scores.argmax(-1).tolist())
    return " ".join(text.split())


def transformers_case(name: str) -> dict[str, Any]:
    """Shapes of the weights, scores and, of characters, the text, with the classes of transformers."""
    model = transformers_model(name)
    shapes = {key: list(value.shape) for key, value in sorted(model.state_dict().items())}
    model.load_state_dict(state_of(name, shapes))
    scores = scores_of(model, name, signal_of(SECONDS))
    rounded = [[round(value, 5) for value in row] for row in scores.tolist()]
    return {"shapes": shapes, "scores": rounded, "text": text_of(scores) if name in CHARACTERS else ""}


def stored_cases() -> dict[str, Any]:
    """What :func:`transformers_case` gave for each name."""
    cases: dict[str, Any] = json.loads(STORED.read_text())
    return cases


def compare(name: str, number: int = 20) -> str:
    """A line: the largest difference to transformers' log-probabilities, of which values, and how many texts differ."""
    model, signal, greatest, scale, equal = transformers_model(name), signal_of(SECONDS), 0.0, 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(number):
            model.load_state_dict(state_of(name, seed=seed))
            wanted = scores_of(model, name, signal)[:, kept_outputs(name)].log_softmax(-1)
            own = load_model(write_folder(Path(folder) / str(seed), name, state=state_of(name, seed=seed)))
            found = log_probs_of(own, signal)
            greatest = max(greatest, (found - wanted).abs().max().item())
            scale = max(scale, wanted.abs().max().item())
            best = [torch.unique_consecutive(each.argmax(-1)).tolist() for each in (found, wanted)]
            equal += best[0] == best[1]
    return f"{name}: {greatest:.6f} of values up to {scale:.0f}, {equal} of {number} texts equal"


if __name__ == "__main__":
    if "compare" in sys.argv:
        print(*map(compare, CASES), sep="\n")
    else:
        STORED.write_text(json.dumps({name: transformers_case(name) for name in CASES}) + "\n")
