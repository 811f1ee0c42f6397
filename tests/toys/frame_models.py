"""Small wav2vec2-BERT, LASR and Granite Speech in the layout of transformers, and transformers' numbers for them.

As in `waveform_models`: weights are by a formula, ``stored_cases`` are what transformers 5.24 gives, and ``compare``
prints how far twenty others differ. Granite's features need torchaudio there.

    PYTHONPATH=tests python -m toys.frame_models
    PYTHONPATH=tests python -m toys.frame_models compare
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
from toys.waveform_models import SPECIAL, VOCABULARY, text_of

STORED = Path(__file__).parents[1] / "data" / "frame_models.json"
SECONDS = 1.25  # an odd number of frames, and of pairs of them
PIECES = len(small_subwords("unigram"))
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_BERT = {
    **_SIZES,
    "left_max_position_embeddings": 6,
    "right_max_position_embeddings": 3,
    "conv_depthwise_kernel_size": 5,
}
_LASR = {**_SIZES, "conv_kernel_size": 6, "subsampling_conv_channels": 12}
_GRANITE = {**_SIZES, "num_hidden_layers": 4, "context_size": 20, "max_position_embeddings": 32, "conv_kernel_size": 5}
# By name: the type, the class, what the configuration says beside it, and which formula.
CASES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "wav2vec2-bert": ("wav2vec2-bert", "Wav2Vec2BertForCTC", _BERT, 0),
    "with an adapter": (
        "wav2vec2-bert",
        "Wav2Vec2BertForCTC",
        {**_BERT, "add_adapter": True, "num_adapter_layers": 2},
        0,
    ),
    "lasr": ("lasr_ctc", "LasrForCTC", {"encoder_config": _LASR}, 0),
    "granite": ("granite_speech5_ctc", "GraniteSpeech5ForCTC", {"encoder_config": _GRANITE}, 0),
}
CHARACTERS = ["wav2vec2-bert", "with an adapter"]


def config_of(name: str) -> dict[str, Any]:
    """``config.json``."""
    model_type, kind, more, _ = CASES[name]
    outputs = len(VOCABULARY) if name in CHARACTERS else PIECES + 2
    if name == "granite":
        more = {"encoder_config": {**more["encoder_config"], "vocab_size": outputs}}
    config = {"architectures": [kind], "model_type": model_type, "transformers_version": "5.24.0"}
    return {**config, "vocab_size": outputs, "pad_token_id": 0, **more}


def state_of(
    name: str, shapes: Mapping[str, Sequence[int]] | None = None, seed: int | None = None
) -> dict[str, Tensor]:
    """Weights by the formula, without Granite's head, which is one with its encoder's ``out``."""
    shapes = stored_cases()[name]["shapes"] if shapes is None else shapes
    skipped = {f"skipped {i}": [1] for i in range(CASES[name][3] if seed is None else seed)}
    state = by_formula(skipped | dict(shapes))
    return {key: state[key].mul(_factor(key, shape)).to(state[key].dtype) for key, shape in shapes.items()}


def _factor(key: str, shape: Sequence[int]) -> float:
    """Such that sounds are heard through all layers, and outputs differ."""
    if key.startswith(("lm_head.", "ctc_head.", "encoder.out.")):
        return 8.0 if len(shape) > 1 else 1.0
    if len(shape) == 1:
        return 0.1 if key.endswith("bias") else 1.0
    return 1.5 if "subsampler" in key or "projection" in key or "input_linear" in key else 0.5


def write_folder(
    folder: Path,
    name: str = "wav2vec2-bert",
    changes: Mapping[str, Any] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> Path:
    """A folder; ``changes`` are made to ``config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config_of(name), **(changes or {})}))
    (folder / "preprocessor_config.json").write_text(json.dumps({"sampling_rate": RATE, "padding_value": 1}))
    if name in CHARACTERS:
        (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Wav2Vec2CTCTokenizer"}))
    else:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_with_special_tokens()))
    save_file(dict(state or state_of(name)), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tokenizer_with_special_tokens() -> dict[str, Any]:
    """``tokenizer.json`` of `small_subwords` behind a blank and the end of a text, with LASR's wrong unknown piece."""
    content = tokenizer_of("unigram")
    first = [["<pad>", 0.0], ["</s>", 0.0]]
    content["model"]["vocab"] = [*first, *content["model"]["vocab"]]
    content["model"]["unk_id"] = next(i for i, (text, _) in enumerate(content["model"]["vocab"]) if text == "\u2581")
    added = [{**each, "id": each["id"] + 2} for each in content["added_tokens"] if each["content"] != "<pad>"]
    special = [{**added[0], "id": number, "content": text, "special": True} for number, (text, _) in enumerate(first)]
    content["added_tokens"] = [*special, *added]
    return content


def transformers_model(name: str) -> Any:
    """The model with weights of its own, in evaluation mode."""
    transformers = import_module("transformers")
    config = config_of(name)
    kind = getattr(transformers, config.pop("architectures")[0])
    return kind(kind.config_class(**{key: config[key] for key in config if key != "model_type"})).eval()


def inputs_of(name: str, signal: Tensor) -> dict[str, Tensor]:
    """What the model takes of one recording, with transformers' features."""
    kinds = {"lasr": "Lasr", "granite": "GraniteSpeech5"}
    extractor = getattr(import_module("transformers"), f"{kinds.get(name, 'SeamlessM4T')}FeatureExtractor")()
    return dict(extractor([signal.numpy()], sampling_rate=RATE, return_tensors="pt", return_attention_mask=True))


def scores_of(model: Any, name: str, signal: Tensor) -> Tensor:
    """Scores (U, outputs) of the valid frames of one recording."""
    inputs = inputs_of(name, signal)
    with torch.no_grad():
        scores: Tensor = model(**inputs).logits[0]
    number = int(inputs["attention_mask"].sum())
    if name in CHARACTERS:
        halvings = config_of(name).get("num_adapter_layers", 0)
        return scores[: -(-number // 2**halvings)]
    return scores[: int(model._get_subsampling_output_length(torch.tensor(number)))]


def kept_outputs(name: str) -> list[int]:
    """The outputs of the labels, and last that of the blank."""
    if name in CHARACTERS:
        return [*range(len(SPECIAL), len(VOCABULARY)), 0]
    return [*range(2, PIECES + 2), 0]


def transformers_case(name: str) -> dict[str, Any]:
    """Shapes of the weights, scores and, of characters, the text, with the classes of transformers."""
    model = transformers_model(name)
    shapes = {key: list(value.shape) for key, value in sorted(model.state_dict().items())}
    if name == "granite":
        shapes = {key: shape for key, shape in shapes.items() if not key.startswith("ctc_head.")}
    load(model, name, state_of(name, shapes))
    scores = scores_of(model, name, signal_of(SECONDS))
    rounded = [[round(value, 5) for value in row] for row in scores.tolist()]
    return {"shapes": shapes, "scores": rounded, "text": text_of(scores) if name in CHARACTERS else ""}


def load(model: Any, name: str, state: Mapping[str, Tensor]) -> None:
    """Give transformers' model these weights."""
    tied = {f"ctc_head.{key}": state[f"encoder.out.{key}"] for key in ("weight", "bias")} if name == "granite" else {}
    model.load_state_dict({**state, **tied})


def stored_cases() -> dict[str, Any]:
    """What :func:`transformers_case` gave for each name."""
    cases: dict[str, Any] = json.loads(STORED.read_text())
    return cases


def compare(name: str, number: int = 20) -> str:
    """A line: the largest difference to transformers' log-probabilities, of which values, and how many texts differ."""
    model, signal, greatest, scale, equal, lengths = transformers_model(name), signal_of(SECONDS), 0.0, 0.0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(number):
            load(model, name, state_of(name, seed=seed))
            wanted = scores_of(model, name, signal)[:, kept_outputs(name)].log_softmax(-1)
            own = load_model(write_folder(Path(folder) / str(seed), name, state=state_of(name, seed=seed)))
            found = log_probs_of(own, signal)
            greatest = max(greatest, (found - wanted).abs().max().item())
            scale = max(scale, wanted.abs().max().item())
            best = [torch.unique_consecutive(each.argmax(-1)).tolist() for each in (found, wanted)]
            equal, lengths = equal + (best[0] == best[1]), lengths + len(best[0])
    texts = f"{equal} of {number} texts equal, {lengths / number:.0f} labels each"
    return f"{name}: {greatest:.6f} of values up to {scale:.0f}, {texts}"


if __name__ == "__main__":
    if "compare" in sys.argv:
        print(*map(compare, CASES), sep="\n")
    else:
        STORED.write_text(json.dumps({name: transformers_case(name) for name in CASES}) + "\n")
