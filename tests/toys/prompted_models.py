"""Small Canary and Cohere Transcribe models in the layout of transformers, with weights by a formula, and its numbers.

``stored_cases`` are what transformers 5.24 gives: encoded frames, log-probabilities of the labels of a text, and the
text that its ``generate`` finds. They are made anew where it is installed:

    PYTHONPATH=tests python -m toys.prompted_models
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from toys.hugging_face import ENCODER, tokenizer_of
from toys.nemo_conformers import RATE, by_formula, signal_of

STORED = Path(__file__).parents[1] / "data" / "prompted_models.json"
LANGUAGES = ["en", "de", "fr"]
SPECIAL = [
    *("<|nospeech|>", "<pad>", "<|endoftext|>", "<|startoftranscript|>", "<|pnc|>", "<|nopnc|>", "<|startofcontext|>"),
    *("<|emo:undefined|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>", "<|transcribe|>", "<|translate|>"),
    *(f"<|{language}|>" for language in LANGUAGES),
]
TEXT = [20, 30, 25, 33, 39]  # ids of labels
PADDING = 3  # outputs of no piece
_DECODER: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "hidden_act": "relu",
    "max_position_embeddings": 64,
    "attention_dropout": 0.0,
    "attention_bias": True,
    "bos_token_id": 4,
    "eos_token_id": 3,
    "pad_token_id": 2,
}
# By type: the class, its number of outputs, and of the formula, with which different labels are found.
CASES: dict[str, tuple[str, int]] = {
    "canary": ("CanaryForConditionalGeneration", 30),
    "cohere_asr": ("CohereAsrForConditionalGeneration", 12),
}


def tokenizer() -> dict[str, Any]:
    """``tokenizer.json``: the special labels behind ``<unk>``, then the other pieces."""
    content = tokenizer_of("bpe")
    vocabulary = content["model"]["vocab"]
    old = sorted(vocabulary, key=vocabulary.__getitem__)
    pieces = [old[0], *SPECIAL, *old[1:]]
    content["model"]["vocab"] = {piece: number for number, piece in enumerate(pieces)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content["added_tokens"] = [
        {"id": number, "content": piece, "special": piece in SPECIAL or piece == "<unk>", **flags}
        for number, piece in enumerate(pieces)
        if piece in SPECIAL or piece in ("<unk>", "<noise>")
    ]
    return content


def pieces() -> list[str]:
    """By id."""
    vocabulary = tokenizer()["model"]["vocab"]
    return sorted(vocabulary, key=vocabulary.__getitem__)


def prompt_of(
    model_type: str, language: str = "en", target_language: str = "en", punctuation: bool = True
) -> list[int]:
    """The ids of the prompt, as processors of transformers make them."""
    languages = [f"<|{language}|>", f"<|{target_language}|>"]
    labels = ["<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", *languages]
    labels += ["<|pnc|>" if punctuation else "<|nopnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"]
    by_text = pieces()
    return [by_text.index(label) for label in (["\u2581"] if model_type == "cohere_asr" else []) + labels]


def config_of(model_type: str) -> dict[str, Any]:
    """``config.json``."""
    outputs = len(pieces()) + PADDING
    decoder = {**_DECODER, "vocab_size": outputs, "hidden_size": 16 if model_type == "canary" else 12}
    decoder["head_dim"] = decoder["hidden_size"] // 2
    common = {
        "architectures": [CASES[model_type][0]],
        "model_type": model_type,
        "encoder_config": {**ENCODER, "layerdrop": 0.1},
        "vocab_size": outputs,
        "bos_token_id": 4,
        "eos_token_id": 3,
        "pad_token_id": 2,
        "transformers_version": "5.24.0",
    }
    if model_type == "canary":
        return {**common, "decoder_config": decoder, "decoder_start_token_id": 7, "tie_word_embeddings": True}
    return {**decoder, **common, "decoder_start_token_id": pieces().index("\u2581"), "tie_word_embeddings": False}


def state_of(model_type: str, shapes: Mapping[str, Sequence[int]], seed: int | None = None) -> dict[str, Tensor]:
    """Weights by the formula, those of the decoder so large that outputs differ."""
    state = by_formula(shapes)
    skipped = {f"skipped {i}": [1] for i in range(CASES[model_type][1] if seed is None else seed)}
    of_decoder = {key: shape for key, shape in shapes.items() if not key.startswith("model.encoder.")}
    for key, tensor in by_formula(skipped | of_decoder).items():
        if key in of_decoder:
            state[key] = tensor * 4 if tensor.dim() > 1 and "norm" not in key else tensor
    return state


def write_folder(
    folder: Path,
    model_type: str,
    changes: Mapping[str, Any] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> Path:
    """A folder; ``changes`` are made to ``config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config_of(model_type), **(changes or {})}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    processor = {"feature_extractor": {"feature_size": 80, "sampling_rate": RATE}}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    if state is None:
        state = state_of(model_type, stored_cases()[model_type]["shapes"])
    # Tied weights are stored once.
    kept = {key: value for key, value in state.items() if model_type != "canary" or key != "proj_out.weight"}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# What transformers gives.


def transformers_case(model_type: str) -> dict[str, Any]:
    """Shapes of the weights, encoded frames, log-probabilities of a text, and the texts of greedy search by prompt."""
    model = transformers_model(model_type)
    shapes = {key: list(value.shape) for key, value in sorted(model.state_dict().items())}
    load(model, model_type, state_of(model_type, shapes))
    return {"shapes": shapes, **found_by(model, model_type)}


def load(model: Any, model_type: str, state: Mapping[str, Tensor]) -> None:
    """Fill the weights; a tied one is the embedding's."""
    given = dict(state)
    if model_type == "canary":
        given["proj_out.weight"] = given["model.decoder.embed_tokens.weight"]
    model.load_state_dict(given)


def transformers_model(model_type: str) -> Any:
    """The model with weights of its own, in evaluation mode."""
    transformers = import_module("transformers")
    config = config_of(model_type)
    cls = getattr(transformers, CASES[model_type][0])
    made = cls.config_class(**{key: value for key, value in config.items() if key != "model_type"})
    return cls(made).eval()


def transformers_inputs(*signals: Tensor) -> dict[str, Any]:
    """What the model takes of recordings."""
    extractor = import_module("transformers").ParakeetFeatureExtractor(feature_size=80)
    return dict(extractor([signal.numpy() for signal in signals], sampling_rate=RATE, return_tensors="pt"))


@torch.no_grad()
def found_by(model: Any, model_type: str) -> dict[str, Any]:
    """Of one recording."""
    inputs = transformers_inputs(signal_of())
    encoder = model.model.encoder(**inputs)
    number = int(encoder.attention_mask[0].sum()) if encoder.attention_mask is not None else encoder[0].shape[1]
    prompt = prompt_of(model_type)
    logits = model(**inputs, decoder_input_ids=torch.tensor([[*prompt, *TEXT]])).logits
    log_probs = logits.log_softmax(-1)[0, len(prompt) - 1 :]
    frames = encoder.last_hidden_state[0, :number]
    texts = {}
    for name, wanted in PROMPTS.items():
        given = prompt_of(model_type, **wanted)
        most = min(number + 50, _DECODER["max_position_embeddings"]) - len(given)
        made = model.generate(
            **inputs, decoder_input_ids=torch.tensor([given]), max_new_tokens=most, num_beams=1, do_sample=False
        )
        texts[name] = made[0].tolist()[len(given) :]
    return {"frames": rounded(frames), "log_probs": rounded(log_probs), "texts": texts}


PROMPTS: dict[str, dict[str, Any]] = {
    "en": {},
    "de to fr": {"language": "de", "target_language": "fr"},
    "without punctuation": {"punctuation": False},
}


def rounded(values: Tensor) -> list[list[float]]:
    """For a file."""
    return [[round(value, 5) for value in row] for row in values.tolist()]


def stored_cases() -> dict[str, Any]:
    """What :func:`transformers_case` gave for each type."""
    cases: dict[str, Any] = json.loads(STORED.read_text())
    return cases


if __name__ == "__main__":
    STORED.write_text(json.dumps({name: transformers_case(name) for name in CASES}) + "\n")
