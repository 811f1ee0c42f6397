"""Names of published models that are read here, and the repositories that they stand for: ``catalogue.csv``."""

from __future__ import annotations

import csv
import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nemo_lite.base.errors import UsageError, did_you_mean
from nemo_lite.base.files import FileKind, read_text

_CATALOGUE = FileKind("the catalogue", 1 << 20)
PREFIX, NGC_PREFIX = "hf:", "ngc:"
SPELLINGS = {PREFIX: f"{PREFIX}OWNER/NAME", NGC_PREFIX: f"{NGC_PREFIX}ORG/TEAM/NAME@VERSION"}
# Refusals of a model end with it.
DOOR = "nemo-lite models list names models that are downloaded"
_PART = "[A-Za-z0-9][A-Za-z0-9._-]*"
_REPOSITORY = re.compile(f"({_PART}/{_PART})(?:@({_PART}))?")
_ADDRESS = re.compile(f"https?:/+(?:www[.])?huggingface[.]co/({_PART}/{_PART})(?:/.*)?")
_NGC_MODEL = re.compile(f"({_PART}(?:/{_PART}){{1,2}})@({_PART})(?:/({_PART}\\.nemo))?")


class Repository(NamedTuple):
    """What is published under a name: ``OWNER/NAME`` of Hugging Face, or ``ORG/TEAM/NAME`` of NVIDIA's NGC.

    Attributes:
        name: as above.
        revision: a branch, a tag or a commit; of NGC a version.
        prefix: ``hf:`` or ``ngc:``.
        file: of NGC, the name of its file where there are several.
    """

    name: str
    revision: str = "main"
    prefix: str = PREFIX
    file: str = ""

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        return f"{self.prefix}{self.name}" + (f"@{self.revision}{file}" if self.revision != "main" else "")


def parse_repository(text: str) -> Repository:
    """The repository that a text names.

    It is ``hf:OWNER/NAME`` or ``hf:OWNER/NAME@REVISION``, or of NGC ``ngc:ORG/TEAM/NAME@VERSION``, with ``/FILE.nemo``
    behind it where it has several files. Some models have no ``TEAM/``.

    Raises:
        UsageError: it is spelled otherwise.
    """
    if text.startswith(NGC_PREFIX):
        if (found := _NGC_MODEL.fullmatch(text.removeprefix(NGC_PREFIX))) is not None:
            return Repository(found[1], found[2], NGC_PREFIX, found[3] or "")
        wanted = f"{SPELLINGS[NGC_PREFIX]}, or {SPELLINGS[NGC_PREFIX]}/FILE.nemo"
        raise UsageError("this names no model of NGC", place=text, wanted=wanted, remedy=DOOR)
    match = _REPOSITORY.fullmatch(text.removeprefix(PREFIX))
    if match is None:
        wanted = f"{SPELLINGS[PREFIX]}, or {SPELLINGS[PREFIX]}@REVISION"
        raise UsageError("this names no repository", place=text, wanted=wanted, remedy=DOOR)
    return Repository(match[1], match[2] or "main")


class PublishedModel(NamedTuple):
    """A line of ``catalogue.csv``: what the publisher says of a model. No error rate is among it.

    Attributes:
        name: by which it is called here.
        repository: ``hf:OWNER/NAME`` at Hugging Face, or ``ngc:ORG/TEAM/NAME@VERSION``.
        heads: what writes its texts, the default first.
        languages: by their codes, or how many.
        licence: of the weights; empty where it was not looked up: its page says it.
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


def repository_of(model: str | Path, *, path_first: bool = True) -> Repository | None:
    """What ``hf:...``, ``ngc:...`` or a name of the table stands for; None of a path.

    Args:
        model: any of them.
        path_first: where a file or folder has the name, it is a path.

    Raises:
        UsageError: ``hf:`` or ``ngc:`` before something that names nothing there.
    """
    text = os.fspath(model)
    if text.startswith(tuple(SPELLINGS)):
        return parse_repository(text)
    known = published_models().get(text)
    return None if known is None or (path_first and os.path.lexists(text)) else parse_repository(known.repository)


def door(model: str | Path) -> str:
    """What to do where there is no model of this name: names that are like it, and how any other is spelled."""
    text = os.fspath(model)
    if (address := _ADDRESS.fullmatch(text)) is not None:
        return f"write {PREFIX}{address[1]} to download it; {DOOR}"
    if (known := published_models().get(text)) is not None:  # and there is a path of this name
        return f"write {known.repository} for the published model; {DOOR}"
    return f"{DOOR}{did_you_mean(text, published_models())}; {' or '.join(SPELLINGS.values())} is any other"


def stated_licence(model: str | Path) -> str:
    """The licence of the table, of a name or its repository; "" of what is not in it, and of a path."""
    licences = {parse_repository(each.repository): each.licence for each in published_models().values()}
    repository = repository_of(model)
    return "" if repository is None else licences.get(repository, "")
