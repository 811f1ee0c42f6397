"""``nemo.backends.save`` and ``load``: structures of tensors in torch's files, which run no code when read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors
from nemo_lite.backends.pytorch.checkpoint.tensors import read_torch_file
from nemo_lite.errors import CheckpointError, ModelNotFoundError
from nemo_lite.files import write_atomically
from nemo_lite.utils.helpers import stored_as

# Any: dictionaries, lists, numbers, texts and tensors in each other.


def save(obj: Any, f: str | Path) -> None:
    """Write dictionaries, lists, numbers, texts and tensors into one file; ``~`` is the home folder.

    Raises:
        UsageError: the folder cannot be written to.
    """
    write_atomically(os.path.expanduser(f), lambda temporary: torch.save(obj, temporary))


def load(f: str | Path) -> Any:
    """Read what :func:`save` wrote, tensors into host memory; ``~`` is the home folder.

    Where ``X-STEP-9.pt`` is missing, the ``.safetensors`` file of that name is read, also in ``checkpoint-STEP-9``.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it is damaged, or holds objects of classes, which are not read: that could run code.
    """
    path = Path(f).expanduser()
    if not path.exists() and (found := stored_as(path)) != path:
        return read_tensors(found)
    if not path.is_file():
        raise ModelNotFoundError("no such file", place=str(path))
    try:
        return read_torch_file(path, str(path))
    except CheckpointError as error:
        remedy = "save dictionaries, lists, numbers, texts and tensors only"
        raise CheckpointError("cannot be read as plain values", place=str(f), remedy=remedy) from error


def get_state_dict(model: nn.Module) -> dict[str, Any]:
    """The state dictionary of a module."""
    return model.state_dict()


def set_state_dict(model: nn.Module, state_dict: Mapping[str, Any]) -> None:
    """Load a state dictionary into a module; every key must fit.

    Raises:
        CheckpointError: keys or shapes differ.
    """
    try:
        model.load_state_dict(state_dict)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise CheckpointError(problem, place=type(model).__name__) from error
