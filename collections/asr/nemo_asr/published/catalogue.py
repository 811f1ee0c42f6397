"""Names of published models that are read here, and the repositories that they stand for: ``catalogue.csv``."""

from __future__ import annotations

import csv
import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nemo_lite.base.errors import UsageError
from nemo_lite.base.files import FileKind, read_text

_CATALOGUE = FileKind("the catalogue", 1 << 20)
PREFIX = "hf:"
_REPOSITORY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)(?:@([A-Za-z0-9][A-Za-z0-9._-]*))?")


class Repository(NamedTuple):
    """A repository of Hugging Face: ``OWNER/NAME``, and a branch, a tag or a commit of it."""

    name: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}" + f"@{self.revision}" * (self.revision != "main")


def parse_repository(text: str) -> Repository:
    """The repository that ``hf:OWNER/NAME`` or ``hf:OWNER/NAME@REVISION`` names.

    Raises:
        UsageError: it is spelled otherwise.
    """
    match = _REPOSITORY.fullmatch(text.removeprefix(PREFIX))
    if match is None:
        raise UsageError(
            "this names no repository", place=text, wanted=f"{PREFIX}OWNER/NAME, or {PREFIX}OWNER/NAME@REVISION"
        )
    return Repository(match[1], match[2] or "main")


class PublishedModel(NamedTuple):
    """A line of ``catalogue.csv``: what the publisher says of a model. No error rate is among it.

    Attributes:
        name: by which it is called here.
        repository: ``OWNER/NAME`` at Hugging Face.
        heads: what writes its texts, the default first.
        languages: by their codes, or how many.
        licence: of the weights; empty where it was not looked up: its page at Hugging Face says it.
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
