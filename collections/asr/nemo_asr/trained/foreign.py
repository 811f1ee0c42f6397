"""ForeignModel: a model that another toolkit trained, and Format: the kind of files that it is in.

A format is a file beside this one, such as `nemo_files.py`, and one line in ``FORMATS`` of `nemo_asr.trained.model`.
Its reader runs no code from files, reads weights by `nemo_lite.backends.pytorch.checkpoint`, and refuses in one line
what is not read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from nemo_asr.run.text.subwords import Subwords


# Any: values of YAML.
class ForeignModel(NamedTuple):
    """A model that another toolkit trained, in the terms of this one.

    Attributes:
        place: the file or folder, for messages.
        config: a recipe's YAML as plain values: a section for each module, as `nemo_asr.load_recipe` reads them. Where
            there is a tokenizer it has ``tokenizer: NAME``.
        weights: the tensors of each module by the name of its class here, and by their names in its ``state_dict``.
        tokenizer: cuts texts into the labels; None where the labels are characters, or nothing here can cut them.
        files: what the weights, the configuration and the tokenizer were read from.
        versions: what wrote the files: ``{"NeMo": "2.4.0"}``; empty where they do not say it.
    """

    place: str
    config: Mapping[str, Any]
    weights: Mapping[str, Mapping[str, Tensor]]
    tokenizer: Subwords | None = None
    files: tuple[Path, ...] = ()
    versions: Mapping[str, str] = {}


class Format(NamedTuple):
    """A kind of files of another toolkit.

    Attributes:
        name: what a user calls it: ``a .nemo file``.
        matches: whether a path is one, by its name and the names in its folder alone.
        read: reads it. It raises CheckpointError or ConfigError for what is damaged or not read here, one line each.
    """

    name: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], ForeignModel]


def renamed(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """The name of a tensor here: each pattern is replaced in turn."""
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name
