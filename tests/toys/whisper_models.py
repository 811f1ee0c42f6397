"""A small Whisper in the layout of transformers, and what transformers finds in a recording with it.

Weights are by a formula. ``stored_cases`` are their shapes, and tokens and text that ``generate`` of transformers 5.24
finds. They are made anew where it is installed; ``compare`` prints how many texts of twenty other models are equal:

    PYTHONPATH=tests python -m toys.whisper_models
    PYTHONPATH=tests python -m toys.whisper_models compare
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from nemo_asr.trained.model import TrainedModel, load_model
from toys.byte_pairs import pieces_and_merges
from toys.nemo_conformers import RATE, by_formula, signal_of

STORED = Path(__file__).parents[1] / "data" / "whisper_models.json"
SECONDS, WINDOW_SECONDS = 1.3, 2
PIECES = len(pieces_and_merges()[0])
LANGUAGES = {"en": PIECES + 2, "de": PIECES + 3, "zh": PIECES + 4}
TASKS = {"translate": PIECES + 5, "transcribe": PIECES + 6}
_SPECIAL = [
    "endoftext",
    "startoftranscript",
    *LANGUAGES,
    *TASKS,
    "startoflm",
    "startofprev",
    "nospeech",
    "notimestamps",
]
START, NO_TIMES = PIECES + 1, PIECES + len(_SPECIAL) - 1
TIMES = [f"{0.02 * number:.2f}" for number in range(50 * WINDOW_SECONDS + 1)]
SPECIAL = {f"<|{name}|>": PIECES + number for number, name in enumerate([*_SPECIAL, *TIMES])}
TOKENS = PIECES + len(SPECIAL)
_SIZES = {
    "num_mel_bins": 80,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_source_positions": 50 * WINDOW_SECONDS,
    "max_target_positions": 40,
}
_SUPPRESSED = [3, 5, *range(100, 240), *range(START, NO_TIMES)]  # most bytes that are no letters too
_MULTILINGUAL = {
    "is_multilingual": True,
    "lang_to_id": {f"<|{code}|>": token for code, token in LANGUAGES.items()},
    "task_to_id": TASKS,
    "forced_decoder_ids": [[1, None], [2, TASKS["transcribe"]]],
}
# By name: what `generation_config.json` says beside tokens that are never found, what `generate` is told, a formula.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "multilingual": (_MULTILINGUAL, {}, 4),
    "translating": (_MULTILINGUAL, {"language": "de", "task": "translate"}, 5),
    "with times": (_MULTILINGUAL, {"return_timestamps": True}, 1),
    "English": ({"is_multilingual": False, "forced_decoder_ids": [[1, NO_TIMES]]}, {}, 4),
    "tuned": ({**_MULTILINGUAL, "language": "german", "task": "transcribe", "forced_decoder_ids": None}, {}, 5),
}


def config_of() -> dict[str, Any]:
    """``config.json``."""
    tokens = dict.fromkeys(("eos_token_id", "pad_token_id", "bos_token_id"), PIECES)
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "transformers_version": "5.24.0",
        "vocab_size": TOKENS,
        "decoder_start_token_id": START,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
        **tokens,
        **_SIZES,
    }


def generation_of(name: str) -> dict[str, Any]:
    """``generation_config.json``. Times are not found where none are asked for, as in models that have learned it."""
    of_kind, told, _ = CASES[name]
    never = _SUPPRESSED if "return_timestamps" in told else [*_SUPPRESSED, *range(NO_TIMES, TOKENS)]
    return {
        **dict.fromkeys(("eos_token_id", "pad_token_id", "bos_token_id"), PIECES),
        "decoder_start_token_id": START,
        "no_timestamps_token_id": NO_TIMES,
        "max_initial_timestamp_index": 50,
        "suppress_tokens": never,
        "begin_suppress_tokens": [32, PIECES],
        "max_length": _SIZES["max_target_positions"],
        "return_timestamps": False,
        **of_kind,
    }


def tokenizer_of() -> dict[str, Any]:
    """``tokenizer.json``."""
    pieces, merges = pieces_and_merges()
    added = [{"id": i, "content": token, "special": token[2:3].isalpha()} for token, i in SPECIAL.items()]
    model = {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": [*map(list, merges)]}
    return {"version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "ByteLevel"}, "model": model}


def state_of(shapes: Mapping[str, Sequence[int]] | None = None, seed: int = 0) -> dict[str, Tensor]:
    """Weights by the formula."""
    shapes = stored_cases()["shapes"] if shapes is None else shapes
    state = by_formula({f"skipped {i}": [1] for i in range(seed)} | dict(shapes))
    return {key: state[key] * _factor(key, shape) for key, shape in shapes.items()}


def _factor(key: str, shape: Sequence[int]) -> float:
    """Such that sounds are heard through all layers, and outputs differ."""
    if len(shape) == 1:
        return 0.1 if key.endswith("bias") else 1.0
    return 4.0 if "embed_tokens" in key else 12.0 if "decoder.embed_positions" in key else 1.5


def write_folder(
    folder: Path,
    name: str = "multilingual",
    changes: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> Path:
    """A folder; ``changes`` are made to ``config.json``, others to ``generation_config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config_of(), **(changes or {})}))
    (folder / "generation_config.json").write_text(json.dumps({**generation_of(name), **(generation or {})}))
    features = {"feature_size": 80, "sampling_rate": RATE, "chunk_length": WINDOW_SECONDS}
    (folder / "preprocessor_config.json").write_text(json.dumps(features))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_of()))
    save_file(dict(state or state_of()), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def loaded(folder: Path, name: str) -> TrainedModel:
    """The model in a folder, told what the case tells ``generate``."""
    _, told, _ = CASES[name]
    overrides = ["WhisperDecoder.timestamps=true"] if "return_timestamps" in told else []
    for key, argument in (("language", "prompt_language"), ("task", "task")):
        overrides += [f"WhisperDecoder.{argument}={told[key]}"] if key in told else []
    return load_model(folder, overrides=overrides)


def transformers_model() -> Any:
    """The model with weights of its own, in evaluation mode."""
    transformers = import_module("transformers")
    config = {key: value for key, value in config_of().items() if key not in ("model_type", "architectures")}
    return transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**config)).eval()


def shapes_of(model: Any) -> dict[str, list[int]]:
    """Of the weights that a folder has: outputs are tied to the tokens' vectors."""
    return {key: list(value.shape) for key, value in sorted(model.state_dict().items()) if key != "proj_out.weight"}


def found_by_transformers(model: Any, name: str, signal: Tensor) -> dict[str, Any]:
    """The tokens that ``generate`` finds in one recording, their log-probabilities, and the text."""
    transformers = import_module("transformers")
    extractor = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=WINDOW_SECONDS)
    features = extractor(signal.numpy(), sampling_rate=RATE, return_tensors="pt").input_features
    generation = generation_of(name)
    model.generation_config = transformers.GenerationConfig(**generation)
    _, told, _ = CASES[name]
    # One window, as it is: no search for further parts behind its times.
    found = model.generate(features, **told, force_unique_generate_call=True)[0].tolist()
    tokens = [token for token in found if token != PIECES]
    pieces, merges = pieces_and_merges()
    tokenizer = transformers.WhisperTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges)
    text = tokenizer.decode([token for token in tokens if token < PIECES])
    return {"tokens": tokens, "text": " ".join(text.split())}


def transformers_cases() -> dict[str, Any]:
    """Shapes of the weights, and by case what is found."""
    model = transformers_model()
    shapes = shapes_of(model)
    cases: dict[str, Any] = {"shapes": shapes}
    for name, (_, _, seed) in CASES.items():
        model.load_state_dict(state_of(shapes, seed), strict=False)
        cases[name] = found_by_transformers(model, name, signal_of(SECONDS))
    return cases


def stored_cases() -> dict[str, Any]:
    """What :func:`transformers_cases` gave."""
    cases: dict[str, Any] = json.loads(STORED.read_text())
    return cases


def compare(name: str, number: int = 20) -> str:
    """A line: how many texts are equal."""
    model, signal, equal, lengths = transformers_model(), signal_of(SECONDS), 0, []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(number):
            state = state_of(shapes_of(model), seed)
            model.load_state_dict(state, strict=False)
            wanted = found_by_transformers(model, name, signal)["text"]
            own = loaded(write_folder(Path(folder) / str(seed), name, state=state), name)
            (found,) = own.transcribe([signal.numpy()], RATE, cutting=None)
            equal += found.text == wanted
            lengths.append(len(wanted))
    return f"{name}: {equal} of {number} texts equal, of {min(lengths)} to {max(lengths)} characters"


if __name__ == "__main__":
    if "compare" in sys.argv:
        print(*map(compare, CASES), sep="\n")
    else:
        STORED.write_text(json.dumps(transformers_cases()) + "\n")
