"""CheckpointSet: one checkpoint and its record, which lists the files with their digests. No weights are read here.

A checkpoint is a folder ``checkpoint-STEP-<n>`` (or ``EPOCH``). ``record.json`` in it is written last. It has a digest
of every file and of itself, so it says of any change of the folder that the checkpoint is not the one that was saved.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nemo_lite.errors import CheckpointError, UsageError
from nemo_lite.untrusted import FileKind, decode_text, parse_json, read_bytes
from nemo_lite.utils.digests import digest_of_file
from nemo_lite.utils.helpers import RECORD, CheckpointName, Part, parse_checkpoint_name, tag_of_folder

# Any: what a user stores in a record is JSON.

FORMAT = "nemo_lite checkpoint"
VERSION = 3  # with files in parts; version 2 had none, version 1 is an index beside its files, see `flat_sets`
_WITHOUT_PARTS = 2  # what older versions read too
TRAINER = "trainer"
# A record holds a configuration, labels, a tokenizer and the run contract: kilobytes, with a tokenizer megabytes.
KIND = FileKind("the record", 64 << 20, CheckpointError)
_MAX_NUMBER = 2**63 - 1
_SHA256 = re.compile("[0-9a-f]{64}")


class StoredFile(NamedTuple):
    """One file of a checkpoint.

    Attributes:
        path: where it is.
        bytes: its size when it was written.
        sha256: of its content when it was written; "" where that is not known.
    """

    path: Path
    bytes: int
    sha256: str = ""

    def problem(self, *, contents: bool) -> str:
        """How it differs from what was written, or "". Without ``contents`` only the size is compared."""
        try:
            found = os.stat(self.path)
            if not stat.S_ISREG(found.st_mode):
                return f"{self.path.name} is no file"
            if found.st_size != self.bytes:
                return f"{self.path.name} has {found.st_size} bytes, {self.bytes} were written"
            if contents and self.sha256 and digest_of_file(self.path) != self.sha256:
                return f"{self.path.name} is not what was written (SHA-256 differs)"
        except FileNotFoundError:
            return f"lacks {self.path.name}"
        except (OSError, UsageError) as error:
            return f"{self.path.name} cannot be read ({getattr(error, 'strerror', '') or error})"
        return ""


@dataclass(frozen=True)
class CheckpointSet:
    """One checkpoint: the files that its record lists.

    Attributes:
        path: its folder; of a flat set its index.
        kind: whether ``number`` counts steps or epochs.
        number: the step or epoch.
        serial: position in the order of saving among the checkpoints beside it.
        files: by name.
        about: what the program that saved it says about it: configuration, labels.
        evaluations: what is known of its weights' quality: for each evaluation its ``name``, ``step`` and ``values``.
        step: steps done; ``None`` where the record does not say.
        epoch: epochs done; ``None`` where the record does not say.
        contract: of the run that saved it, as ``RunContract.as_json`` gives it; empty where the record does not say.
    """

    path: Path
    kind: str
    number: int
    serial: int
    files: Mapping[str, StoredFile]
    about: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Sequence[Mapping[str, Any]] = ()
    step: int | None = None
    epoch: int | None = None
    contract: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def tag(self) -> str:
        """``STEP-1000``."""
        return f"{self.kind}-{self.number}"

    @property
    def is_flat(self) -> bool:
        """Whether its files lie beside its index, as older versions wrote them."""
        return self.path.suffix == ".json"

    @property
    def modules(self) -> list[str]:
        """The names of the modules in it."""
        return [name for name in dict.fromkeys(map(_module_of, self.files)) if name != TRAINER]

    def path_of(self, module: str) -> Path | None:
        """The file of one module (or of ``trainer``), or the first of its parts; None when it is not in the set."""
        return next((file.path for name, file in self.files.items() if _names_all_of(name, module)), None)

    def problem(self, *, contents: bool) -> str:
        """How its files differ from those that were written, or "". Without ``contents`` only sizes are compared."""
        return ", ".join(filter(None, (file.problem(contents=contents) for file in self.files.values())))

    def record_text(self) -> str:
        """The content of its record.

        Raises:
            UsageError: ``about`` or ``evaluations`` hold something that JSON cannot.
        """
        content = {
            "format": FORMAT,
            "version": VERSION if any(map(_part_of, self.files)) else _WITHOUT_PARTS,
            "kind": self.kind,
            "number": self.number,
            "serial": self.serial,
            "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in self.files.items()},
            "step": self.step,
            "epoch": self.epoch,
            "evaluations": [dict(each) for each in self.evaluations],
            "about": dict(self.about),
            "contract": dict(self.contract),
        }
        try:
            return with_digest(json.loads(_as_text(content)))  # a tuple becomes a list, a number as a key a text
        except (TypeError, ValueError, RecursionError) as error:
            wanted = "texts, finite numbers, and lists and mappings of them"
            problem = "what is said about a checkpoint cannot be stored as JSON"
            raise UsageError(problem, place=self.tag, got=str(error), wanted=wanted) from None


def with_digest(content: Mapping[str, Any]) -> str:
    """The text of a record: the content and, as the last key, the digest of the text without it."""
    digest = hashlib.sha256(_as_text(content).encode()).hexdigest()
    return _as_text({**content, "sha256": digest})


def read_record(folder: Path) -> CheckpointSet:
    """The checkpoint in a folder. Its other files are not looked at.

    Raises:
        CheckpointError: there is no record, it was changed or damaged, contradicts the folder's name, or a later
            version wrote it (:class:`LaterVersionError`).
    """
    path = folder / RECORD
    text = read_json_text(path)
    try:
        content: Any = parse_json(text, path, KIND)
        is_ours = isinstance(content, dict) and isinstance(content.pop("sha256", None), str)
        if not is_ours or with_digest(content) != text:
            raise ValueError("its digest is not that of its content")
    except (ValueError, RecursionError) as error:
        raise CheckpointError("the record was changed or damaged", place=str(path), got=_first_line(error)) from None
    check_version(content, VERSION, path)
    try:
        found = set_of(content, folder, {name: _file_of(folder, name, file) for name, file in content["files"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = "the record is not one of a checkpoint"
        raise CheckpointError(problem, place=str(path), got=f"{type(error).__name__}: {error}") from None
    if tag_of_folder(folder.name) not in (None, found.tag):  # a copy may have any name
        raise CheckpointError("the record is of another checkpoint", place=str(path), got=found.tag)
    return found


class LaterVersionError(CheckpointError):
    """A checkpoint of a later nemo_lite: not damaged, so none of before takes its place."""


def check_version(content: Mapping[str, Any], known: int, path: Path) -> None:
    """See that this version can read a record or an index.

    Raises:
        LaterVersionError: it cannot.
    """
    version = content.get("version")
    if isinstance(version, int) and version > known:
        raise LaterVersionError(
            "this checkpoint was written by a later nemo_lite",
            place=str(path),
            got=f"version {version}",
            wanted=f"at most {known}",
            remedy="update nemo_lite, or choose another folder",
        )


def read_json_text(path: Path) -> str:
    """The text of a record or an index.

    Raises:
        CheckpointError: there is none, it is no file, too large, or cannot be read.
    """
    if not os.path.lexists(path):
        raise CheckpointError(f"lacks {path.name}", place=str(path.parent))
    return decode_text(read_bytes(path, KIND), path, KIND, controls=True)


def set_of(content: Mapping[str, Any], path: Path, files: Mapping[str, StoredFile]) -> CheckpointSet:
    """The checkpoint that a record or an index describes.

    Raises:
        ValueError, KeyError, TypeError: its content is not of the right kinds, or contradicts itself.
    """
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r}")
    if content["kind"] not in ("STEP", "EPOCH"):
        raise ValueError(f"kind {content['kind']!r}")
    number, serial = (_number(content[name], name) for name in ("number", "serial"))
    step, epoch = (None if (value := content.get(name)) is None else _number(value, name) for name in ("step", "epoch"))
    about, contract = (_mapping(content.get(name), name) for name in ("about", "contract"))
    evaluations = [_mapping(each, "evaluations") for each in content.get("evaluations") or ()]
    found = CheckpointSet(path, content["kind"], number, serial, files, about, evaluations, step, epoch, contract)
    for name in files:
        if not is_name_in(found.tag, name):
            raise ValueError(f"a file {name!r}")
    if problem := _problem_of_parts(files):
        raise ValueError(problem)
    return found


def is_name_in(tag: str, name: object) -> bool:
    """Whether a file of the checkpoint with this tag may have this name: one of our pattern, never a path."""
    parsed = parse_checkpoint_name(name) if isinstance(name, str) and len(name) < 256 else None
    return parsed is not None and parsed.tag == tag and parsed.file_name == name and Path(name).name == name


def check_names(modules: Iterable[str]) -> None:
    """See that modules of these names can be saved side by side.

    Raises:
        UsageError: a name cannot be one of a file, or two would be one on some systems.
    """
    in_lower_case: dict[str, str] = {TRAINER: TRAINER}
    for name in modules:
        if parse_checkpoint_name(f"{name}-STEP-0.safetensors") is None or Path(name).name != name or "\0" in name:
            raise UsageError(f"{name!r} cannot be a file name", place="checkpoint", remedy="rename the module")
        if in_lower_case.setdefault(name.lower(), name) != name or name == TRAINER:
            other = in_lower_case[name.lower()]
            raise UsageError(f'"{name}" and "{other}" would be one file on some systems', remedy="rename the module")


def _file_of(folder: Path, name: str, content: Mapping[str, Any]) -> StoredFile:
    sha256 = content["sha256"]
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"sha256 {sha256!r}")
    return StoredFile(folder / name, _number(content["bytes"], "bytes"), sha256)


def _number(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise ValueError(f"{name} {value!r}"[:80])
    return value


def _mapping(value: object, name: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} is no mapping")
    return value or {}


def _as_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _module_of(file_name: str) -> str:
    name = parse_checkpoint_name(file_name)
    return name.module if name else ""


def _part_of(file_name: str) -> Part | None:
    name = parse_checkpoint_name(file_name)
    return name.part if name else None


def _names_all_of(file_name: str, module: str) -> bool:
    name = parse_checkpoint_name(file_name)
    return name is not None and name.module == module and name.stands_for_all


def _problem_of_parts(files: Iterable[str]) -> str:
    """What is wrong with the parts of files: each must be there once, nothing else of its module; "" if they are."""
    of_modules: dict[str, list[CheckpointName]] = {}
    for name in map(parse_checkpoint_name, files):
        if name is not None:
            of_modules.setdefault(name.module, []).append(name)
    for module, names in of_modules.items():
        if not any(name.part for name in names):
            continue
        forms = {(name.suffix, name.part.total if name.part else 0) for name in names}
        count = max(count for _, count in forms)
        if len(forms) > 1 or len(names) != count:
            return f"{len(names)} files of {module}, which is in {count} parts"
    return ""
