"""Small functions at NeMo's places: names of checkpoints, attributes by dotted names, padding."""

from __future__ import annotations

import glob
import re
from collections import UserDict
from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from nemo_lite.base.errors import CheckpointError, UsageError, did_you_mean
from nemo_lite.base.files import names_in

# Attribute paths and checkpoint names, as in ``nemo.utils.helpers``. This file opens no files and imports no torch.


def rgetattr(obj: object, attr: str, *default: object) -> object:
    """``getattr`` along a dotted path; returns ``default`` when a part of it is missing."""
    return reduce(lambda at, name: getattr(at, name, *default), attr.split("."), obj)


def rsetattr(obj: object, attr: str, value: object) -> None:
    """``setattr`` along a dotted path."""
    parents, _, last = attr.rpartition(".")
    setattr(rgetattr(obj, parents) if parents else obj, last, value)


class CheckpointPart(NamedTuple):
    """Which part of a file: ``part-2-of-4``."""

    number: int
    total: int


class CheckpointName(NamedTuple):
    """``JasperEncoder-STEP-1000.safetensors`` or ``JasperEncoder-STEP-1000.part-2-of-4.safetensors`` taken apart."""

    module: str
    kind: str
    number: int
    suffix: str
    part: CheckpointPart | None = None

    @property
    def tag(self) -> str:
        """``STEP-1000``."""
        return f"{self.kind}-{self.number}"

    @property
    def file_name(self) -> str:
        """The whole name."""
        part = f".part-{self.part.number}-of-{self.part.total}" if self.part else ""
        return f"{self.module}-{self.tag}{part}{self.suffix}"

    @property
    def stands_for_all(self) -> bool:
        """Whether it is the file by which a module is named and read: the whole, or the first part."""
        return self.part is None or self.part.number == 1


RECORD = "record.json"
"""The file of a checkpoint that lists the others."""
_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors")
_CHECKPOINT_FOLDER = re.compile(r"checkpoint-(?P<tag>(STEP|EPOCH)-(0|[1-9][0-9]*))")
_CHECKPOINT_NAME = re.compile(
    r"(?P<module>.+)-(?P<kind>STEP|EPOCH)-(?P<number>[0-9]+)"
    r"(\.part-(?P<part>[1-9][0-9]{0,5})-of-(?P<parts>[1-9][0-9]{0,5}))?(?P<suffix>\.[A-Za-z0-9]+)"
)


def parse_checkpoint_name(file_name: str) -> CheckpointName | None:
    """The parts of a checkpoint's file name, or None when it is not one."""
    match = _CHECKPOINT_NAME.fullmatch(file_name)
    if match is None:
        return None
    part = CheckpointPart(int(match["part"]), int(match["parts"])) if match["part"] else None
    if part is not None and part.number > part.total:
        return None
    return CheckpointName(match["module"], match["kind"], int(match["number"]), match["suffix"], part)


def tag_of_folder(name: str) -> str | None:
    """``STEP-1000`` of ``checkpoint-STEP-1000``; None of other names."""
    match = _CHECKPOINT_FOLDER.fullmatch(name)
    return match["tag"] if match else None


def stored_as(path: Path) -> Path:
    """The file that NeMo's name of a checkpoint's file stands for.

    For ``X-STEP-9.pt`` where there is none: ``X-STEP-9.safetensors``, beside it or in ``checkpoint-STEP-9``; the first
    of its parts, where it was written in parts.

    Returns:
        ``path`` itself where it is there, or where nothing is found.
    """
    name = parse_checkpoint_name(path.name)
    folders = [path.parent, *([path.parent / f"checkpoint-{name.tag}"] if name else [])]
    files = (path.name, f"{path.stem}.safetensors") if path.suffix in _WEIGHTS else ()
    candidates = [folder / file for folder in folders for file in files]
    whole = next((file for file in candidates if file.is_file()), None)
    # Only the parts of one number of ranks are in a folder: a checkpoint is replaced as a whole.
    first = f"{glob.escape(path.stem)}.part-1-of-*"
    parts = [file for folder in folders for file in folder.glob(first) if parse_checkpoint_name(file.name)]
    return whole or (parts[0] if parts and path.suffix in _WEIGHTS else path)


def find_checkpoint_files(
    module_names: Iterable[str],
    folder: str | Path,
    pattern: str = "",
    suffixes: Collection[str] = (".pt", ".safetensors"),
) -> tuple[CheckpointName, list[Path]]:
    """The files of the highest step at which every one of the modules was saved, in the order of the names.

    A name must match exactly: ``JasperEncoder`` does not find ``JasperEncoder2-STEP-10.pt``. Epochs are used when
    no step is common to all modules.

    Args:
        module_names: the names to find.
        folder: where to look.
        pattern: a part that the rest of the file name must contain, such as ``STEP-1000``.
        suffixes: the kinds of files to look at.

    Raises:
        CheckpointError: no such folder, or no step at which all modules were saved.
    """
    names, folder = list(module_names), Path(folder)
    if not folder.is_dir():
        raise CheckpointError("no such folder", place=str(folder), remedy="give the folder that holds the checkpoints")
    by_tag = _by_tag(folder, pattern, suffixes)
    common = [tag for tag, files in by_tag.items() if names and all(name in files for name in names)]
    if not common:
        present = sorted({module for files in _by_tag(folder, "", suffixes).values() for module in files} - {"trainer"})
        near = "".join(did_you_mean(name, present) for name in names if name not in present)
        matching = f' that contain "{pattern}"' if pattern else ""
        raise CheckpointError(
            f"no checkpoint files{matching} for {', '.join(names)} of the same step",
            place=str(folder),
            got=f"checkpoints of {', '.join(present) or 'no module'}{near}",
            remedy="check the folder and the modules' names",
        )
    newest = by_tag[max(common, key=lambda tag: (tag.startswith("STEP"), int(tag.rpartition("-")[2])))]
    return newest[names[0]][1], [newest[name][0] for name in names]


def get_checkpoint_from_dir(
    module_names: str | Iterable[str], cpkt_dir: str | Path, ckpt_pattern: str = "", return_steps: bool = False
) -> list[str] | tuple[list[str], list[int]]:
    """:func:`find_checkpoint_files` with NeMo's signature: paths, and the step of each when ``return_steps``.

    Where no step is common to all modules, each has its own highest one, as in NeMo.

    Raises:
        CheckpointError: no such folder, or no file of a module.
        UsageError: a name or the pattern is not a text.
    """
    names = [module_names] if isinstance(module_names, str) else list(module_names)
    for text in (*names, ckpt_pattern):
        if not isinstance(text, str):
            got = f"{type(text).__name__} {text!r}"
            raise UsageError("a name or pattern is no text", place="get_checkpoint_from_dir", got=got)
    newest = newest_checkpoint_files(names, Path(cpkt_dir).expanduser(), ckpt_pattern)
    files = [str(path) for path, _ in newest]
    return (files, [name.number for _, name in newest]) if return_steps else files


def newest_checkpoint_files(
    module_names: Iterable[str], folder: Path, pattern: str = "", suffixes: Collection[str] = (".pt", ".safetensors")
) -> list[tuple[Path, CheckpointName]]:
    """As :func:`find_checkpoint_files`; where no step is common to all modules, the highest of each on its own.

    Raises:
        CheckpointError: no such folder, or no file of a module.
    """
    names = list(module_names)
    try:
        paths = find_checkpoint_files(names, folder, pattern, suffixes)[1]
    except CheckpointError:
        by_tag = _by_tag(folder, pattern, suffixes) if folder.is_dir() else {}
        if not names or not all(any(name in files for files in by_tag.values()) for name in names):
            raise
        paths = [find_checkpoint_files([name], folder, pattern, suffixes)[1][0] for name in names]
    return [(path, name) for path in paths if (name := parse_checkpoint_name(path.name))]


def _by_tag(folder: Path, pattern: str, suffixes: Collection[str]) -> dict[str, dict[str, tuple[Path, CheckpointName]]]:
    """By tag and module the files in a folder, and in those of its checkpoints that have a record."""
    folders = [path.parent for path in folder.glob(f"checkpoint-*/{RECORD}") if tag_of_folder(path.parent.name)]
    by_tag: dict[str, dict[str, tuple[Path, CheckpointName]]] = {}
    # Sorted, so that ".safetensors" comes after ".pt" of the same module and step, and replaces it.
    paths = [place / name for place in (folder, *folders) for name in names_in(place)]
    for path in sorted(paths, key=lambda path: path.name):
        name = parse_checkpoint_name(path.name)
        is_asked_for = name is not None and name.suffix in suffixes and pattern in f"{name.tag}{name.suffix}"
        if name is not None and is_asked_for and name.stands_for_all:
            by_tag.setdefault(name.tag, {})[name.module] = (path, name)
    return by_tag


# Small things that NeMo keeps under ``nemo.utils.misc``.


def pad_to(x: int, k: int = 8) -> int:
    """The smallest multiple of ``k`` that is at least ``x``."""
    if k < 1:
        raise UsageError("k is out of range", place="pad_to", got=str(k), wanted="1 or more")
    return -(-x // k) * k


class Config(UserDict[str, Any]):
    """A dictionary whose sections ``optimization``, ``input``, ``target`` and ``inference`` are there, if only empty.

    Args:
        data: its values.
    """

    def __init__(self, data: Mapping[str, object] | None = None) -> None:
        super().__init__({"optimization": {}, "input": {}, "target": {}, "inference": {}} | dict(data or {}))
