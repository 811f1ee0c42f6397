"""Small Conformers in the layout of NVIDIA's `.nemo` files since 1.x, with weights by a formula, and NVIDIA's numbers.

``stored_cases`` are what NVIDIA's own classes give for them: those of 2.4.0 for older files, of 3.0.0 for the others.
They are made anew with a wheel of each (see `nemo_source.py`), which writes the cases of its features' generation:

    NEMO_SOURCE=/tmp/nemo PYTHONPATH=tests python -m toys.nemo_conformers
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_asr.features.spectra import generation_of
from toys.nemo_archives import packed, write_tar
from toys.nemo_source import FOLDER, nemo_module

RATE = 16000
STORED = Path(__file__).parents[1] / "data" / "nemo_conformers.json"
LABELS = [" ", "a", "b", "c", "d", "'"]
_SMALL = {"n_layers": 2, "d_model": 16, "n_heads": 2, "ff_expansion_factor": 2}
_FAST = {"subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_conv_channels": 8, "conv_kernel_size": 9}
_STREAMING = {
    "causal_downsampling": True,
    "att_context_style": "chunked_limited",
    "att_context_size": [[4, 1], [4, 0]],
    "conv_context_size": "causal",
    "conv_norm_type": "layer_norm",
}
# By name: arguments of the encoder and of the preprocessor, the version of NeMo that wrote the file, the model's class.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "conformer of 1.20": (
        {"subsampling": "striding", "subsampling_factor": 4, "xscaling": True},
        {},
        "1.20.0",
        "EncDecCTCModel",
    ),
    "fast conformer of 3.0": ({**_FAST, "xscaling": False}, {}, "3.0.0", "EncDecCTCModel"),
    "hybrid with 128 bands": ({**_FAST, "use_bias": False}, {"features": 128}, "2.4.0", "EncDecHybridRNNTCTCModel"),
    "streaming": ({**_FAST, **_STREAMING}, {"normalize": "NA"}, "2.5.0", "EncDecCTCModel"),
}


# Tensors of the transducer of a hybrid.
_TRANSDUCER = {
    "decoder.prediction.embed.weight": [len(LABELS) + 1, 8],
    **{f"decoder.prediction.dec_rnn.lstm.weight_{which}_l0": [32, 8] for which in ("ih", "hh")},
    **{f"decoder.prediction.dec_rnn.lstm.bias_{which}_l0": [32] for which in ("ih", "hh")},
    **{"joint.pred.weight": [8, 8], "joint.pred.bias": [8], "joint.enc.weight": [8, 16], "joint.enc.bias": [8]},
    **{"joint.joint_net.1.weight": [len(LABELS) + 1, 8], "joint.joint_net.1.bias": [len(LABELS) + 1]},
}


def config_of(name: str, labels: Sequence[str] = LABELS) -> dict[str, Any]:
    """``model_config.yaml`` of a case, with what NeMo writes beside the model."""
    encoder, preprocessor, version, target = CASES[name]
    place = "nemo.collections.asr"
    features = preprocessor.get("features", 80)
    head = {
        "_target_": f"{place}.modules.ConvASRDecoder",
        "feat_in": None,
        "num_classes": len(labels),
        "vocabulary": list(labels),
    }
    config: dict[str, Any] = {
        "sample_rate": RATE,
        "log_prediction": True,
        "ctc_reduction": "mean_batch",
        "skip_nan_grad": False,
        "train_ds": {"manifest_filepath": None, "batch_size": 8, "use_lhotse": True},
        "preprocessor": {
            "_target_": f"{place}.modules.AudioToMelSpectrogramPreprocessor",
            "sample_rate": RATE,
            "normalize": "per_feature",
            "window_size": 0.025,
            "window_stride": 0.01,
            "window": "hann",
            "features": features,
            "n_fft": 512,
            "log": True,
            "frame_splicing": 1,
            "dither": 1e-5,
            "pad_to": 0,
            "pad_value": 0.0,
            **preprocessor,
        },
        "spec_augment": {
            "_target_": f"{place}.modules.SpectrogramAugmentation",
            "freq_masks": 2,
            "time_masks": 10,
            "freq_width": 27,
            "time_width": 0.05,
        },
        "encoder": {
            "_target_": f"{place}.modules.ConformerEncoder",
            "feat_in": features,
            "feat_out": -1,
            **_SMALL,
            "causal_downsampling": False,
            "reduction": None,
            "reduction_position": None,
            "reduction_factor": 1,
            "self_attention_model": "rel_pos",
            "att_context_size": [-1, -1],
            "att_context_style": "regular",
            "untie_biases": True,
            "pos_emb_max_len": 5000,
            "conv_norm_type": "batch_norm",
            "conv_context_size": None,
            "use_pytorch_sdpa": False,
            "dropout": 0.1,
            "dropout_pre_encoder": 0.1,
            "dropout_emb": 0.0,
            "dropout_att": 0.1,
            "stochastic_depth_drop_prob": 0.0,
            "stochastic_depth_mode": "linear",
            "stochastic_depth_start_layer": 1,
            **encoder,
        },
        "decoder": head,
        "interctc": {"loss_weights": [], "apply_at_layers": []},
        "optim": {"name": "adamw", "lr": 1e-3, "sched": {"name": "CosineAnnealing", "warmup_steps": 15000}},
        "target": f"{place}.models.{target}",
        "nemo_version": version,
    }
    if "Hybrid" in target:
        prediction = {"pred_hidden": 8, "pred_rnn_layers": 1}
        config["decoder"] = {"_target_": f"{place}.modules.RNNTDecoder", "prednet": prediction, "blank_as_pad": True}
        config["joint"] = {"_target_": f"{place}.modules.RNNTJoint", "jointnet": {"joint_hidden": 8}}
        config["aux_ctc"] = {"ctc_loss_weight": 0.3, "use_cer": False, "decoder": head}
    return config


def write_case(path: Path, name: str, state: Mapping[str, Tensor] | None = None, **changes: Any) -> Path:
    """A `.nemo` file of a case; of these tensors, or of those of its stored shapes by the formula."""
    if state is None:
        state = by_formula(stored_cases()[name]["shapes"])
    members: dict[str, bytes | str] = {
        "./model_config.yaml": json.dumps({**config_of(name), **changes}),
        "./model_weights.ckpt": packed(state),
    }
    return write_tar(path, members, "w")


def write_with_labels(
    path: Path,
    labels: Sequence[str],
    tokenizer: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """A file of a Fast Conformer with these labels, perhaps a section ``tokenizer``, and files in the archive."""
    name = "fast conformer of 3.0"
    sizes = {"weight": [len(labels) + 1, 16, 1], "bias": [len(labels) + 1]}
    shapes = stored_cases()[name]["shapes"] | {f"decoder.decoder_layers.0.{key}": size for key, size in sizes.items()}
    config = config_of(name, labels)
    if tokenizer is not None:
        config |= {"tokenizer": dict(tokenizer), "target": "nemo.collections.asr.models.EncDecCTCModelBPE"}
    members: dict[str, bytes | str] = {
        "./model_config.yaml": json.dumps(config),
        "./model_weights.ckpt": packed(by_formula(shapes)),
        **{f"./{file}": content for file, content in (files or {}).items()},
    }
    return write_tar(path, members, "w")


def by_formula(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Weights that look random, by their names' order; the same on every machine."""
    state: dict[str, Tensor] = {}
    for position, (name, shape) in enumerate(shapes.items()):
        size = math.prod(shape)
        waves = torch.sin(torch.arange(size, dtype=torch.float64) * 12.9898 + position)
        values = (waves * 43758.5453).frac().reshape(list(shape))
        fan_in = max(1, math.prod(shape[1:]))
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(7)
        elif name.endswith("running_var"):
            state[name] = (1 + 0.5 * values).float()
        else:
            is_scale = len(shape) == 1 and name.endswith("weight")
            state[name] = (values * 1.7 / math.sqrt(fan_in) if len(shape) > 1 else 0.3 * values + is_scale).float()
    return state


def signal_of(seconds: float = 1.7) -> Tensor:
    """A voice-like sound, the same on every machine: (T,)."""
    time = torch.arange(int(seconds * RATE), dtype=torch.float64) / RATE
    pitch = 110 + 25 * torch.sin(5 * time)
    voice = sum(torch.sin(2 * math.pi * pitch * time * n) / n for n in range(1, 24))
    noise = (torch.sin(torch.arange(len(time), dtype=torch.float64) * 78.233) * 43758.5453).frac()
    return ((0.05 * voice + 0.01 * noise) * (0.3 + torch.sin(9 * time).abs())).float()


def nvidia_features(config: Mapping[str, Any], signal: Tensor) -> tuple[Tensor, Tensor]:
    """What NVIDIA's preprocessor gives for one utterance, and its frames."""
    preprocessor = {key: value for key, value in config["preprocessor"].items() if key not in ("_target_", "window")}
    rate = preprocessor.pop("sample_rate")
    size, stride = (int(preprocessor.pop(f"window_{key}") * rate) for key in ("size", "stride"))
    mels = preprocessor.pop("features")
    features = nemo_module("parts.preprocessing.features").FilterbankFeatures(
        sample_rate=rate, n_window_size=size, n_window_stride=stride, nfilt=mels, **preprocessor
    )
    with torch.no_grad():
        processed, lengths = features.eval()(signal[None], torch.tensor([len(signal)]))
    return processed, lengths


def nvidia_log_probs(config: Mapping[str, Any], state: Mapping[str, Tensor], signal: Tensor) -> Tensor:
    """What NVIDIA's classes give for one utterance: (U, labels and blank)."""
    encoder, decoder = nvidia_modules(config)
    prefix = "ctc_decoder." if "aux_ctc" in config else "decoder."
    for module, start in ((encoder, "encoder."), (decoder, prefix)):
        module.load_state_dict(
            {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        )
    with torch.no_grad():
        processed, lengths = nvidia_features(config, signal)
        encoded, encoded_lengths = encoder.eval()(audio_signal=processed, length=lengths)
        log_probs: Tensor = decoder.eval()(encoder_output=encoded)[0, : int(encoded_lengths[0])]
    return log_probs


def nvidia_modules(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """NVIDIA's encoder and CTC head of a configuration."""
    arguments = {key: value for key, value in config["encoder"].items() if key != "_target_"}
    encoder = nemo_module("modules.conformer_encoder").ConformerEncoder(**arguments)
    head = config["aux_ctc"]["decoder"] if "aux_ctc" in config else config["decoder"]
    arguments = {key: value for key, value in head.items() if key != "_target_"} | {"feat_in": encoder._feat_out}
    return encoder, nemo_module("modules.conv_asr").ConvASRDecoder(**arguments)


def nvidia_case(name: str) -> dict[str, Any]:
    """Shapes of the weights and the log-probabilities, with NVIDIA's classes."""
    config = config_of(name)
    encoder, decoder = nvidia_modules(config)
    shapes = {f"encoder.{key}": list(value.shape) for key, value in encoder.state_dict().items()}
    head = "ctc_decoder" if "aux_ctc" in config else "decoder"
    shapes |= {f"{head}.{key}": list(value.shape) for key, value in decoder.state_dict().items()}
    if "aux_ctc" in config:
        shapes |= _TRANSDUCER
    found = nvidia_log_probs(config, by_formula(shapes), signal_of())
    return {"shapes": shapes, "log_probs": [[round(value, 6) for value in row] for row in found.tolist()]}


def stored_cases() -> dict[str, Any]:
    """What :func:`nvidia_case` gave for each case."""
    cases: dict[str, Any] = json.loads(STORED.read_text())
    return cases


def cases_of_source() -> list[str]:
    """The cases whose files have the features of the wheel that ``NEMO_SOURCE`` names."""
    (about,) = FOLDER.glob("nemo_toolkit-*.dist-info")
    generation = generation_of(about.name.split("-")[1].removesuffix(".dist"))
    return [name for name, (_, _, version, _) in CASES.items() if generation_of(version) == generation]


if __name__ == "__main__":
    made = stored_cases() | {name: nvidia_case(name) for name in cases_of_source()}
    STORED.write_text(json.dumps({name: made[name] for name in CASES}) + "\n")
