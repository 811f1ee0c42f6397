"""Small transducers in the layout of transformers, with weights by a formula, and the numbers of transformers for them.

``stored_cases`` are what transformers 5.24 gives: projected frames, and the labels, frames and durations that its
``generate`` finds. They are made anew where it is installed:

    PYTHONPATH=tests python -m toys.hugging_face_transducers
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
from toys.subwords import small_subwords

STORED = Path(__file__).parents[1] / "data" / "hugging_face_transducers.json"
BLANK = len(small_subwords("bpe"))
LOOKAHEADS = [1, 0]
LANGUAGES = {"en-US": 0, "de-DE": 3, "auto": 5}
_STREAMING = {"model_type": "nemotron_asr_streaming_encoder", "sliding_window": 5, "default_num_lookahead_tokens": 1}
# By type: the class, what the configuration says beside it, and of the formula, with which different labels are found.
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "parakeet_rnnt": ("ParakeetForRNNT", {"num_decoder_layers": 2}, 26),
    "parakeet_tdt": ("ParakeetForTDT", {"durations": [0, 1, 2, 3, 4]}, 24),
    "nemotron_asr_streaming": ("NemotronAsrStreamingForRNNT", {"max_symbols_per_step": 4}, 21),
    "nemotron3_5_asr": (
        "Nemotron3_5AsrForRNNT",
        {"num_prompts": 8, "prompt_intermediate_size": 24, "default_prompt_id": 5},
        26,
    ),
}


def config_of(model_type: str) -> dict[str, Any]:
    """``config.json``."""
    name, more, _ = CASES[model_type]
    return {
        "architectures": [name],
        "model_type": model_type,
        "encoder_config": {**ENCODER, "layerdrop": 0.1, **(_STREAMING if "nemotron" in model_type else {})},
        "vocab_size": BLANK + 1,
        "blank_token_id": BLANK,
        "decoder_hidden_size": 12,
        "num_decoder_layers": 1,
        "hidden_act": "relu",
        "max_symbols_per_step": 10,
        "pad_token_id": 2,
        "transformers_version": "5.24.0",
        **more,
    }


def processor_of(model_type: str) -> dict[str, Any]:
    """``processor_config.json``."""
    config: dict[str, Any] = {"feature_extractor": {"feature_size": 80, "sampling_rate": RATE}}
    if "nemotron" in model_type:
        config["supported_num_lookahead_tokens"] = LOOKAHEADS
    if model_type == "nemotron3_5_asr":
        config |= {"prompt_dictionary": LANGUAGES, "num_prompts": 8}
    return config


def state_of(model_type: str, shapes: Mapping[str, Sequence[int]], seed: int | None = None) -> dict[str, Tensor]:
    """Weights by the formula, large enough for outputs that differ; the embedding of the blank is not zero."""
    state = by_formula(shapes)
    skipped = {f"skipped {i}": [1] for i in range(CASES[model_type][2] if seed is None else seed)}
    of_heads = {key: shape for key, shape in shapes.items() if key.startswith(("decoder.", "joint."))}
    for key, tensor in by_formula(skipped | of_heads).items():
        if key in of_heads:
            state[key] = tensor * (5 if key.startswith("joint.") else 3) if tensor.dim() > 1 else tensor
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
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_of("bpe")))
    (folder / "processor_config.json").write_text(json.dumps(processor_of(model_type)))
    if state is None:
        state = state_of(model_type, stored_cases()[model_type]["shapes"])
    save_file(dict(state), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def transformers_case(model_type: str) -> dict[str, Any]:
    """Shapes of the weights, projected frames, and what greedy search finds, with the classes of transformers."""
    model = transformers_model(model_type)
    shapes = {key: list(value.shape) for key, value in sorted(model.state_dict().items())}
    model.load_state_dict(state_of(model_type, shapes))
    return {"shapes": shapes, **found_by(model, model_type, **transformers_inputs(model_type))}


def transformers_model(model_type: str) -> Any:
    """The model with weights of its own, in evaluation mode."""
    transformers = import_module("transformers")
    config = config_of(model_type)
    name = CASES[model_type][0]
    made = getattr(transformers, name).config_class(**{key: config[key] for key in config if key != "model_type"})
    return getattr(transformers, name)(made).eval()


def transformers_inputs(model_type: str) -> dict[str, Any]:
    """What the model takes of one recording."""
    transformers = import_module("transformers")
    name = "NemotronAsrStreaming" if "nemotron" in model_type else "Parakeet"
    extractor = getattr(transformers, f"{name}FeatureExtractor")(feature_size=80)
    inputs = dict(extractor([signal_of().numpy()], sampling_rate=RATE, return_tensors="pt"))
    if "nemotron" in model_type:
        inputs["num_lookahead_tokens"] = _STREAMING["default_num_lookahead_tokens"]
    if model_type == "nemotron3_5_asr":
        inputs["prompt_ids"] = torch.tensor([LANGUAGES["de-DE"]])
    return inputs


@torch.no_grad()
def found_by(model: Any, model_type: str, **inputs: Any) -> dict[str, Any]:
    """Projected frames, and labels with their frames and durations."""
    encoded = model.get_audio_features(**inputs, output_attention_mask=True)
    number = int(encoded.attention_mask[0].sum())
    durations = config_of(model_type).get("durations", [])
    settings = model.generation_config
    settings.decoder_start_token_id, settings.pad_token_id = BLANK, 2
    settings.eos_token_id = settings.bos_token_id = None
    settings.suppress_tokens = list(range(BLANK + 1, BLANK + 1 + len(durations))) or None
    made = model.generate(**inputs, max_new_tokens=1000)  # the encoder's end ends it
    found: dict[str, Any] = {"labels": [], "starts": [], "durations": []}
    frame = 0
    for label, steps in zip(made.sequences[0].tolist()[1:], made.durations[0].tolist()[1:], strict=True):
        if label != BLANK and frame < number:
            for key, value in zip(found, (label, frame, steps if durations else 0), strict=True):
                found[key].append(value)
        frame += steps
    frames = encoded.pooler_output[0, :number].tolist()
    return {"frames": [[round(value, 6) for value in row] for row in frames], **found}


def stored_cases() -> dict[str, Any]:
    """What :func:`transformers_case` gave for each type."""
    cases: dict[str, Any] = json.loads(STORED.read_text())
    return cases


if __name__ == "__main__":
    STORED.write_text(json.dumps({name: transformers_case(name) for name in CASES}) + "\n")
