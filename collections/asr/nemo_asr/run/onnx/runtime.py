"""What `nemo_asr.run.engines` asks of a runtime: ONNX Runtime's."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TypeVar

from nemo_asr.run.onnx.onnx_model import DescribedFile, OnnxModel, load_onnx_model
from nemo_asr.run.onnx.onnx_stream import OnnxStreamedModel
from nemo_lite.base.choices import DeviceType
from nemo_lite.base.errors import UsageError

# What a model in torch is told, by the names of options.
_EXPORTED_WITH = {
    "prompt_language": "language",
    "target_language": "language of texts",
    "punctuation": "punctuation",
    "att_context_size": "context of attention",
}
Described = TypeVar("Described", bound=DescribedFile)


def refuse_options(paths: Sequence[str], args: Namespace) -> None:
    """UsageError for options that only the modules in torch know."""
    refused = {
        "placement": args.placement not in (None, DeviceType.CPU),
        "amp_opt_level": args.amp_opt_level not in (None, "O0"),
        "world_size": getattr(args, "world_size", None),
    }
    unknown = [f"--{name}" for name, is_given in refused.items() if is_given]
    if unknown:
        problem = "an ONNX file runs as it is, in one process on the CPU"
        remedy = "leave it out, or give a model folder"
        raise UsageError(problem, place=paths[0], got=", ".join(unknown), remedy=remedy)


def open_engines(paths: Sequence[str], args: Namespace) -> list[OnnxModel]:
    """Exported models.

    Raises:
        UsageError: a head, a language or a context of attention is asked for, which a file has from its export.
    """
    return [_checked(load_onnx_model(path, args.providers, args.threads), args) for path in paths]


def open_stream_engine(path: str, args: Namespace) -> OnnxStreamedModel:
    """An exported model in chunks; errors as of `open_engines`."""
    return _checked(OnnxStreamedModel(path, args.providers, args.threads), args)


def _checked(file: Described, args: Namespace) -> Described:
    head = getattr(args, "head", None)  # not of every command
    if head not in (None, file.family):
        problem, remedy = "a file has the head with which it was exported", "export it with --head"
        raise UsageError(problem, place=str(file.path), got=head or "", wanted=file.family, remedy=remedy)
    for name, what in _EXPORTED_WITH.items():
        if (value := getattr(args, name, None)) is not None:
            option = f"--{name.removeprefix('prompt_')}"
            problem, remedy = f"a file has the {what} with which it was exported", f"export it with {option}"
            raise UsageError(problem, place=str(file.path), got=str(value), remedy=remedy)
    if (task := getattr(args, "prompt_task", None)) is not None or getattr(args, "timestamps", False):
        problem, remedy = "a file has no tasks and finds no times", "leave it out, or give the model's folder"
        raise UsageError(
            problem, place=str(file.path), got=f"--{'timestamps' if task is None else 'task'}", remedy=remedy
        )
    return file
