"""Small ``.nemo`` files, in the layouts of NeMo 0.11 and of 1.x, with random weights."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nemo_asr
from nemo_asr.tasks.family import Model

LABELS = [" ", "a", "b", "c", "'"]
BLOCK = {"repeat": 1, "stride": [1], "dilation": [1], "dropout": 0.0, "residual": False, "separable": True}
BLOCKS = [
    {**BLOCK, "filters": 16, "kernel": [5], "stride": [2]},
    {**BLOCK, "filters": 16, "kernel": [3], "repeat": 2, "residual": True},
]
CITRINET_BLOCKS = [
    {**BLOCKS[0], "se": True, "se_context_size": -1, "kernel_size_factor": 0.5},
    {**BLOCKS[1], "se": True, "se_context_size": -1, "stride": [2], "stride_last": True, "residual_mode": "stride_add"},
]
PREPROCESSOR = {"sample_rate": 8000, "features": 16, "n_fft": 256, "normalize": "per_feature", "pad_to": 16}
SIZES = {**PREPROCESSOR, "window_size": 0.02, "window_stride": 0.01, "window": "hann", "dither": 1e-5}


def header(name: str) -> dict[str, str]:
    return {"nemo_core_version": "0.11.0", "collection_type": "asr", "full_spec": f"nemo.collections.asr.{name}"}


def config_0(labels: list[str] = LABELS, model: str = "QuartzNet") -> dict[str, Any]:
    """``module.yaml`` of 0.11."""
    decoder = {"feat_in": 16, "num_classes": len(labels), "vocabulary": labels}
    encoder = {"activation": "relu", "conv_mask": True, "feat_in": 16, "jasper": BLOCKS}
    sections = {
        "preprocessor": ("audio_preprocessing.AudioToMelSpectrogramPreprocessor", {**SIZES, "stft_conv": False}),
        "encoder": ("jasper.JasperEncoder", encoder),
        "decoder": ("jasper.JasperDecoderForCTC", decoder),
        "spec_augment": ("audio_preprocessing.SpectrogramAugmentation", {"rect_masks": 2, "rect_time": 4}),
    }
    params = {f"{key}_params": {"header": header(name), "init_params": each} for key, (name, each) in sections.items()}
    return {"header": header(f"models.asrconvctcmodel.{model}"), "init_params": params}


def config_1(
    labels: list[str] = LABELS, citrinet: bool = False, tokenizer: str = "bpe", nemo_version: str | None = "1.23.0"
) -> dict[str, Any]:
    """``model_config.yaml`` of 1.x, with what it says beside the model."""
    blocks = [{**each, "quantize": False} for each in (CITRINET_BLOCKS if citrinet else BLOCKS)]
    place = "nemo.collections.asr.modules"
    config: dict[str, Any] = {
        "sample_rate": 8000,
        "repeat": 1,
        "train_ds": {"manifest_filepath": "/raid/train.json", "batch_size": 32, "labels": labels},
        "validation_ds": {"manifest_filepath": None},
        "optim": {"name": "novograd", "sched": {"name": "CosineAnnealing"}},
        "preprocessor": {"_target_": f"{place}.AudioToMelSpectrogramPreprocessor", **SIZES, "frame_splicing": 1},
        "spec_augment": {"_target_": f"{place}.SpectrogramAugmentation", "time_masks": 2, "time_width": 0.05},
        "encoder": {"_target_": f"{place}.ConvASREncoder", "feat_in": 16, "activation": "relu", "jasper": blocks},
        "decoder": {
            "_target_": f"{place}.ConvASRDecoder",
            "feat_in": None,
            "num_classes": len(labels) if citrinet else -1,
            "vocabulary": labels,
        },
        "target": f"nemo.collections.asr.models.{'EncDecCTCModelBPE' if citrinet else 'EncDecCTCModel'}",
        "nemo_version": nemo_version,
    }
    config["preprocessor"] |= {"nb_augmentation_prob": 0.0, "rng": None}
    if citrinet:
        config["tokenizer"] = {"dir": None, "type": tokenizer, "model_path": "nemo:0a1b_tokenizer.model"}
    return config


def modules_of(blocks: list[dict[str, Any]], num_labels: int) -> dict[str, torch.nn.Module]:
    """The modules with weights, batch norm in no initial state."""
    encoder = nemo_asr.JasperEncoder(jasper=blocks, activation="relu", feat_in=16)
    decoder = nemo_asr.JasperDecoderForCTC(feat_in=16, num_classes=num_labels)
    draw = torch.Generator().manual_seed(0)
    for module in (encoder, decoder):
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.copy_(
                    torch.rand(value.shape, generator=draw) + 0.5 * (value.dim() == 1) - 0.5 * (value.dim() > 1)
                )
    decoder.state_dict()["decoder_layers.0.bias"][-1] = -9.0  # no blanks
    return {"JasperEncoder": encoder, "JasperDecoderForCTC": decoder}


def packed(state: Mapping[str, Tensor]) -> bytes:
    content = io.BytesIO()
    torch.save(dict(state), content)
    return content.getvalue()


def write_tar(path: Path, members: Mapping[str, bytes | str], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]  # the mode is a text
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_0(path: Path, **changes: Any) -> dict[str, torch.nn.Module]:
    """A file of 0.11; JSON is YAML. Gives its modules."""
    config = config_0(**changes)
    modules = modules_of(BLOCKS, len(config["init_params"]["decoder_params"]["init_params"]["vocabulary"]))
    members: dict[str, bytes | str] = {".nemo_tmp/module.yaml": json.dumps(config)}
    members[".nemo_tmp/header.content"] = "module.yaml"
    members |= {f".nemo_tmp/{name}.pt": packed(module.state_dict()) for name, module in modules.items()}
    write_tar(path, members)
    return modules


def write_1(path: Path, labels: list[str] = LABELS, **changes: Any) -> dict[str, torch.nn.Module]:
    """A file of 1.x. Gives its modules."""
    citrinet = changes.get("citrinet", False)
    tokenizer_model = changes.pop("tokenizer_model", b"a model of sentencepiece")
    modules = modules_of(CITRINET_BLOCKS if citrinet else BLOCKS, len(labels))
    filters = nemo_asr.AudioToMelSpectrogramPreprocessor(**SIZES).filters * changes.pop("filter_scale", 1.0)
    state = {f"encoder.{name}": value for name, value in modules["JasperEncoder"].state_dict().items()}
    state |= {f"decoder.{name}": value for name, value in modules["JasperDecoderForCTC"].state_dict().items()}
    state |= {"preprocessor.featurizer.window": torch.ones(160), "preprocessor.featurizer.fb": filters.t()[None]}
    members = {"./model_config.yaml": json.dumps(config_1(labels, **changes)), "./model_weights.ckpt": packed(state)}
    if citrinet:
        members["./0a1b_tokenizer.model"] = tokenizer_model
    write_tar(path, members, "w" if citrinet else "w:gz")
    return modules


def weights_of(model: Model) -> dict[str, Tensor]:
    """All tensors of encoder and decoder of a recipe's modules."""
    parts: dict[str, Any] = {"JasperEncoder": model.encoder, "JasperDecoderForCTC": model.decoder}
    return {f"{part}.{name}": value for part, each in parts.items() for name, value in each.state_dict().items()}
