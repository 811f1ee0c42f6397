"""Files of NeMo 0.x in a folder: ``<Module>-STEP-<n>.pt`` and ``trainer-STEP-<n>.pt`` beside each other, in no list."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from nemo_lite.backends.pytorch.checkpoint.store.listing import look
from nemo_lite.backends.pytorch.checkpoint.store.record import TRAINER
from nemo_lite.errors import CheckpointError
from nemo_lite.utils.helpers import newest_checkpoint_files, parse_checkpoint_name


def files_of_nemo(folder: Path, modules: Mapping[str, nn.Module], pattern: str) -> tuple[dict[str, Path], Path | None]:
    """The newest file of each module, and the training state if all are of one step.

    Raises:
        CheckpointError: no such folder, no file of a module, or files that lack their index.
    """
    if unindexed := without_index(folder):
        raise CheckpointError("no complete checkpoint", place=str(folder), got="; ".join(unindexed))
    there = {name.module for path in folder.glob("*.pt") if (name := parse_checkpoint_name(path.name))}
    # NeMo names files by the class, also those of modules with a name of their own.
    classes = [name if name in there else type(module).__name__ for name, module in modules.items()]
    names = classes if len({*classes}) == len(classes) else modules
    found = newest_checkpoint_files(names, folder, pattern, suffixes=(".pt",))
    trainer = folder / f"{TRAINER}-{'-and-'.join({name.tag for _, name in found})}.pt"  # none of two steps
    paths = {module: path for module, (path, _) in zip(modules, found, strict=True)}
    return paths, trainer if trainer.is_file() else None


def without_index(folder: Path) -> list[str]:
    """What files of version 1 lack that are there without their index."""
    names = map(parse_checkpoint_name, os.listdir(folder) if folder.is_dir() else ())
    tags = {name.tag for name in names if name and name.suffix == ".safetensors"}
    return [f"{tag} lacks checkpoint-{tag}.json" for tag in sorted(tags - {found.tag for found in look(folder).sets})]
