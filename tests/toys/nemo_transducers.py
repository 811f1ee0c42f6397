"""Small transducers in the layout of NVIDIA's `.nemo` files, with weights by a formula, and NVIDIA's numbers for them.

``stored_cases`` are what NVIDIA's own classes of 3.0.0 give: projected frames, and the labels, frames and durations of
their greedy search. They are made anew with its wheel (see `nemo_source.py`):

    NEMO_SOURCE=/tmp/nemo PYTHONPATH=tests python -m toys.nemo_transducers
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from toys import nemo_conformers
from toys.nemo_archives import packed, write_tar
from toys.nemo_conformers import LABELS, by_formula, nvidia_features, signal_of
from toys.nemo_source import nemo_module

STORED = Path(__file__).parents[1] / "data" / "nemo_transducers.json"
MODULES = "nemo.collections.asr.modules"
_STATES, _PROMPTS = 12, 8
# By name: the encoder's case in `nemo_conformers`, what the sections say, and the model's class.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "rnnt": (
        "conformer of 1.20",
        {"prednet": {"pred_rnn_layers": 1}, "jointnet": {"activation": "tanh"}},
        "EncDecRNNTModel",
    ),
    "rnnt of two layers": (
        "fast conformer of 3.0",
        {"prednet": {"pred_rnn_layers": 2, "dropout": 0.2}, "jointnet": {"dropout": 0.2}},
        "EncDecRNNTModel",
    ),
    "rnnt with batch norm": (
        "fast conformer of 3.0",
        {"decoder": {"normalization_mode": "batch"}, "prednet": {"pred_rnn_layers": 2, "dropout": 0.2}},
        "EncDecRNNTModel",
    ),
    "rnnt with layer norm": (
        "fast conformer of 3.0",
        {"decoder": {"normalization_mode": "layer"}, "prednet": {"pred_rnn_layers": 2}},
        "EncDecRNNTModel",
    ),
    "stateless": (
        "fast conformer of 3.0",
        {"decoder": {"context_size": 2, "normalization_mode": "layer"}, "jointnet": {"dropout": 0.2}},
        "EncDecRNNTModel",
    ),
    "streaming rnnt": ("streaming", {}, "EncDecRNNTModel"),
    "tdt": ("fast conformer of 3.0", {"durations": [0, 1, 2, 3, 4], "jointnet": {"dropout": 0.2}}, "EncDecRNNTModel"),
    "tdt of other durations": ("fast conformer of 3.0", {"durations": [1, 3]}, "EncDecRNNTModel"),
    "multi-blank": ("fast conformer of 3.0", {"big_blank_durations": [2, 4]}, "EncDecRNNTModel"),
    "hybrid": ("fast conformer of 3.0", {"durations": [0, 1, 2]}, "EncDecHybridRNNTCTCModel"),
    "prompt": (
        "streaming",
        {"languages": {"en-US": 0, "de-DE": 3, "de": 3, "auto": 5}},
        "EncDecRNNTBPEModelWithPrompt",
    ),
}
# Of the formula: with which greedy search finds different labels, and blanks.
SEEDS = {
    "rnnt": 14,
    "rnnt of two layers": 96,
    "rnnt with batch norm": 14,
    "rnnt with layer norm": 64,
    "stateless": 28,
    "streaming rnnt": 15,
    "tdt": 25,
    "tdt of other durations": 0,
    "multi-blank": 25,
    "hybrid": 25,
    "prompt": 14,
}
VERSION = "3.0.0"
MAX_SYMBOLS = 5
LANGUAGE = "de-DE"  # of the case with a prompt


def config_of(name: str) -> dict[str, Any]:
    """``model_config.yaml`` of a case, with what NVIDIA's files say beside the model."""
    base, sections, target = CASES[name]
    config = nemo_conformers.config_of(base)
    head = config["decoder"]
    config |= {"target": f"nemo.collections.asr.models.{target}", "nemo_version": VERSION, "labels": LABELS}
    durations = sections.get("durations", sections.get("big_blank_durations", []))
    kind = "tdt" if "durations" in sections else "multiblank_rnnt" if durations else "default"
    is_stateless = "context_size" in sections.get("decoder", {})
    size = config["encoder"]["d_model"]
    config["model_defaults"] = {"enc_hidden": size, "pred_hidden": _STATES, "joint_hidden": 10}
    config["decoder"] = {
        "_target_": f"{MODULES}.{'StatelessTransducerDecoder' if is_stateless else 'RNNTDecoder'}",
        "normalization_mode": None,
        "vocab_size": len(LABELS),
        **({} if is_stateless else {"random_state_sampling": False, "blank_as_pad": True}),
        **sections.get("decoder", {}),
        "prednet": {"pred_hidden": _STATES, "pred_rnn_layers": 1, "t_max": None, "dropout": 0.0}
        | sections.get("prednet", {}),
    }
    if is_stateless:
        config["decoder"]["prednet"] = {"pred_hidden": _STATES, "dropout": 0.2}
    config["joint"] = {
        "_target_": f"{MODULES}.RNNTJoint",
        "log_softmax": None,
        "preserve_memory": False,
        "fuse_loss_wer": True,
        "fused_batch_size": 4,
        "num_classes": len(LABELS),
        "num_extra_outputs": len(durations),
        "vocabulary": LABELS,
        "jointnet": {
            "joint_hidden": 10,
            "encoder_hidden": size,
            "pred_hidden": _STATES,
            "activation": "relu",
            "dropout": 0.0,
            **sections.get("jointnet", {}),
        },
    }
    key = "durations" if kind == "tdt" else "big_blank_durations"
    config["decoding"] = {
        "strategy": "greedy_batch",
        "greedy": {"max_symbols": MAX_SYMBOLS},
        "beam": {"beam_size": 2, "return_best_hypothesis": False},
    }
    config["loss"] = {"loss_name": kind, "warprnnt_numba_kwargs": {"fastemit_lambda": 0.0, "clamp": -1.0}}
    if durations:
        config["decoding"] |= {"model_type": "tdt" if kind == "tdt" else "multiblank", key: durations}
        config["loss"][f"{kind}_kwargs"] = {"fastemit_lambda": 0.0, "clamp": -1.0, key: durations, "sigma": 0.02}
    if "languages" in sections:
        config["model_defaults"] |= {"num_prompts": _PROMPTS, "prompt_dictionary": sections["languages"]}
    if "Hybrid" in target:
        config["aux_ctc"] = {"ctc_loss_weight": 0.25, "use_cer": False, "decoder": head}
    return config


def write_case(path: Path, name: str, state: Mapping[str, Tensor] | None = None, **changes: Any) -> Path:
    """A `.nemo` file of a case; of these tensors, or of those of its stored shapes."""
    members: dict[str, bytes | str] = {
        "./model_config.yaml": json.dumps({**config_of(name), **changes}),
        "./model_weights.ckpt": packed(state_of(name) if state is None else state),
    }
    return write_tar(path, members, "w")


def state_of(
    name: str, shapes: Mapping[str, Sequence[int]] | None = None, seed: int | None = None
) -> dict[str, Tensor]:
    """Weights by the formula, large enough for outputs that differ, and zeros for the blank's embedding."""
    shapes = stored_cases()[name]["shapes"] if shapes is None else shapes
    state = by_formula(shapes)
    seed = SEEDS[name] if seed is None else seed
    skipped = {f"skipped {i}": [1] for i in range(seed)}
    of_heads = {key: shape for key, shape in shapes.items() if key.startswith(("decoder.", "joint."))}
    for key, tensor in by_formula(skipped | of_heads).items():
        if key in of_heads:
            state[key] = tensor * (5 if key.startswith("joint.joint_net") else 3) if tensor.dim() > 1 else tensor
    for key, tensor in state.items():
        if key == "ctc_decoder.decoder_layers.0.bias":
            tensor[-1] -= 1.5  # else it gives blanks alone
        elif key.startswith("decoder.prediction.embed"):
            state[key][-1] = 0
    return state


def nvidia_modules(config: Mapping[str, Any]) -> dict[str, Any]:
    """NVIDIA's modules of a configuration, by how the names of their tensors begin."""
    head = {"vocabulary": LABELS, "num_classes": len(LABELS)}
    encoder, ctc = nemo_conformers.nvidia_modules({"encoder": config["encoder"], "decoder": head})
    rnnt = nemo_module("modules.rnnt")
    made = {"encoder": encoder}
    if "prompt_dictionary" in config["model_defaults"]:
        made["prompt_kernel"] = _prompted(config).prompt_kernel
    for key in ("decoder", "joint"):
        arguments = dict(config[key])
        made[key] = getattr(rnnt, arguments.pop("_target_").rpartition(".")[2])(**_quiet(arguments))
    if "aux_ctc" in config:
        made["ctc_decoder"] = ctc
    return made


def _prompted(config: Mapping[str, Any]) -> Any:
    """A model that has nothing but what NVIDIA's models need to take a language."""
    defaults = SimpleNamespace(**config["model_defaults"], get=config["model_defaults"].get)
    mixin = nemo_module("parts.mixins.mixins").PromptStreamingMixin
    model = type("Model", (mixin, torch.nn.Module), {})()
    model.cfg = model._cfg = SimpleNamespace(model_defaults=defaults, get=lambda key, default: _PROMPTS)
    model.initialize_prompt_feature()
    model.set_inference_prompt(LANGUAGE)
    return model


def _quiet(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without the loss that a joint network computes within."""
    return {key: value for key, value in arguments.items() if key not in ("fuse_loss_wer", "fused_batch_size")}


def nvidia_case(name: str) -> dict[str, Any]:
    """Shapes of the weights, projected frames, and what greedy search finds, with NVIDIA's classes."""
    config = config_of(name)
    modules = nvidia_modules(config)
    shapes = {
        f"{prefix}.{key}": list(value.shape)
        for prefix, module in modules.items()
        for key, value in module.state_dict().items()
    }
    state = state_of(name, shapes)
    for prefix, module in modules.items():
        start = f"{prefix}."
        module.eval().load_state_dict(
            {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        )
    with torch.no_grad():
        features, lengths = nvidia_features(config, signal_of())
        encoded, encoded_lengths = modules["encoder"](audio_signal=features, length=lengths)
        if "prompt_kernel" in modules:
            prompted = _prompted(config)
            prompted.prompt_kernel = modules["prompt_kernel"]
            encoded = prompted._apply_prompt_to_encoded(encoded)
        frames = encoded.transpose(1, 2)[:, : int(encoded_lengths[0])]
        projected = modules["joint"].enc(frames)[0]
        found = _search(config, modules["decoder"], modules["joint"], frames)
        if "ctc_decoder" in modules:
            found["log_probs"] = _rounded(modules["ctc_decoder"](encoder_output=encoded)[0, : frames.shape[1]])
    return {"shapes": shapes, "frames": _rounded(projected), **found}


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(value, 6) for value in row] for row in values.tolist()]


def _search(config: Mapping[str, Any], decoder: Any, joint: Any, frames: Tensor) -> dict[str, Any]:
    """Labels, their frames and durations, by NVIDIA's label looping; of big blanks, and with the states of a
    normalised LSTM, which label looping cannot begin, frame by frame."""
    greedy = nemo_module("parts.submodules.rnnt_greedy_decoding")
    looping = "parts.submodules.transducer_decoding"
    lengths, blank = torch.tensor([frames.shape[1]]), len(LABELS)
    kind = config["decoding"].get("model_type", "rnnt")
    if kind == "multiblank":
        durations = config["decoding"]["big_blank_durations"]
        search = greedy.GreedyMultiblankRNNTInfer(
            decoder, joint, blank + len(durations), durations, max_symbols_per_step=MAX_SYMBOLS
        )
        return _one_by_one(search, frames)
    if config["decoder"]["_target_"].endswith(".RNNTDecoder") and config["decoder"]["normalization_mode"]:
        decoder.batch_select_state = lambda states, index: None  # it fails, when all is found
        return _one_by_one(greedy.GreedyRNNTInfer(decoder, joint, blank, max_symbols_per_step=MAX_SYMBOLS), frames)
    arguments = {"max_symbols_per_step": MAX_SYMBOLS, "allow_cuda_graphs": False}
    if kind == "tdt":
        computer = nemo_module(f"{looping}.tdt_label_looping").GreedyBatchedTDTLabelLoopingComputer(
            decoder, joint, blank, config["decoding"]["durations"], include_duration=True, **arguments
        )
    else:
        computer = nemo_module(f"{looping}.rnnt_label_looping").GreedyBatchedRNNTLabelLoopingComputer(
            decoder, joint, blank, **arguments
        )
    batched, *_ = computer.torch_impl(frames, lengths)
    number = int(batched.current_lengths[0])
    durations = batched.token_durations[0, :number].tolist() if kind == "tdt" else [0] * number
    return {
        "labels": batched.transcript[0, :number].tolist(),
        "starts": batched.timestamps[0, :number].tolist(),
        "durations": durations,
    }


def _one_by_one(search: Any, frames: Tensor) -> dict[str, Any]:
    found = search._greedy_decode(frames.transpose(0, 1), torch.tensor(len(frames[0])))
    return {"labels": found.y_sequence, "starts": found.timestamp, "durations": [0] * len(found.timestamp)}


def stored_cases() -> dict[str, Any]:
    """What :func:`nvidia_case` gave for each case."""
    cases: dict[str, Any] = json.loads(STORED.read_text())
    return cases


if __name__ == "__main__":
    STORED.write_text(json.dumps({name: nvidia_case(name) for name in CASES}) + "\n")
