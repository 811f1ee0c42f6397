"""Names of published models that are read here, and the repositories that they stand for: ``catalogue.csv``."""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nemo_asr.published.hub import PREFIX, Repository, parse_repository
from nemo_lite.base.files import FileKind, read_text

_CATALOGUE = FileKind("the catalogue", 1 << 20)


class PublishedModel(NamedTuple):
    """A line of ``catalogue.csv``: what the publisher says of a model. No error rate is among it.

    Attributes:
        name: by which it is called here.
        repository: ``OWNER/NAME`` at Hugging Face.
        heads: what writes its texts, the default first.
        languages: by their codes, or how many.
        licence: of the weights.
        sample_rate: in Hz.
        parameters: how many, such as ``0.6 B``.
    """

    name: str
    repository: str
    heads: str
    languages: str
    licence: str
    sample_rate: str
    parameters: str


@cache
def published_models() -> dict[str, PublishedModel]:
    """All lines, by name."""
    lines = read_text(Path(__file__).with_name("catalogue.csv"), _CATALOGUE).splitlines()
    return {line["name"]: PublishedModel(**line) for line in csv.DictReader(lines)}


def repository_of(model: str | Path) -> Repository | None:
    """The repository that ``hf:OWNER/NAME`` or a name of the table stands for; None of a path. What is here is a path.

    Raises:
        UsageError: ``hf:`` before something that names no repository.
    """
    text = os.fspath(model)
    if text.startswith(PREFIX):
        return parse_repository(text)
    known = published_models().get(text)
    return None if known is None or os.path.lexists(text) else Repository(known.repository)
