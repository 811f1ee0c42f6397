"""The store of checkpoints: records with digests, atomic commits, listing, the lock of a folder."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import shlex
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeVar, cast

from nemo_lite.backends.pytorch.distributed.activity import note_write
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.core.action_state import Best
from nemo_lite.errors import CheckpointError, NemoLiteError, UsageError
from nemo_lite.files import (
    FileKind,
    decode_text,
    digest_of_file,
    name_in,
    names_in,
    parse_json,
    read_bytes,
    temporary_name,
    unwritable,
    write_atomically,
)
from nemo_lite.files import synchronise as to_disk
from nemo_lite.utils import logging
from nemo_lite.utils.helpers import RECORD, CheckpointName, Part, parse_checkpoint_name, tag_of_folder

# CheckpointSet: one checkpoint and its record, which lists the files with their digests. No weights are read here.
# A checkpoint is a folder ``checkpoint-STEP-<n>`` (or ``EPOCH``). ``record.json`` in it is written last. It has a
# digest of every file and of itself, so it says of any change of the folder that the checkpoint is not the one that
# was saved.


# Any: what a user stores in a record is JSON.

FORMAT = "nemo_lite checkpoint"
VERSION = 3  # with files in parts; version 2 had none, version 1 is an index beside its files: a flat set
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
    return decode_text(read_bytes(path, KIND), path, KIND)


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


# Which checkpoints are the best by their evaluations. No files in here.


# Any: results of evaluations are JSON.


def best_of(sets: Sequence[CheckpointSet], best: Best) -> list[CheckpointSet]:
    """The best of some sets, the best first; of equals the newer one. Those without a rate of their own are no best."""
    scored = [(score, -found.serial, found) for found in sets if (score := score_of(found, best)) is not None]
    return [found for _, _, found in sorted(scored, key=lambda each: each[:2])][: best.keep]


def score_of(found: CheckpointSet, best: Best) -> float | None:
    """The value by which a set is judged, lower ones better; None where its weights were not evaluated so."""
    return score_in(found.evaluations, found.step, best)


def score_in(evaluations: Sequence[Mapping[str, Any]], step: int | None, best: Best) -> float | None:
    """The same of evaluations. Those of another step say nothing about the weights of this one."""
    for each in evaluations:
        values = each.get("values")
        value = values.get(best.metric) if isinstance(values, Mapping) else None
        is_asked_for = each.get("name") == best.evaluation and each.get("step") == step
        if is_asked_for and isinstance(value, (int, float)) and math.isfinite(value):
            return -value if best.highest else value
    return None


# Checkpoints of version 1: files beside each other, with an index ``checkpoint-STEP-<n>.json``. They are only read.
# A process killed while it moved the files to their place left some in the folder that ``staged_in`` names.


# Any: JSON.

_VERSION = 1
_STAGED = re.compile(r"\.(STEP|EPOCH)-[0-9]+\.[A-Za-z0-9-]*\.[0-9]+\.[0-9a-f]{8}\.staged")


def read_index(path: Path) -> CheckpointSet:
    """The checkpoint that an index lists.

    Raises:
        CheckpointError: it is damaged, is no index, lists what is not in its folder, or a later version wrote it.
    """
    text = read_json_text(path)
    try:
        content = parse_json(text, path, KIND)
        if not isinstance(content, dict):
            raise TypeError("no object")
        check_version(content, _VERSION, path)
        files = _files(content, path.parent)
        found = set_of(content, path, files)
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        got = f"{type(error).__name__}: {error}"[:160]
        raise CheckpointError("this is no index of a checkpoint, or it is damaged", place=str(path), got=got) from None
    if path.stem != f"checkpoint-{found.tag}":
        raise CheckpointError("the index is of another checkpoint", place=str(path), got=found.tag)
    return found


def _files(content: Mapping[str, Any], folder: Path) -> dict[str, StoredFile]:
    places = [folder]
    staged_in = content["staged_in"]
    if not isinstance(staged_in, str) or (staged_in and not _STAGED.fullmatch(staged_in)):
        raise ValueError(f"staged_in {staged_in!r}")
    if staged_in and not (folder / staged_in).is_symlink():
        places.insert(0, folder / staged_in)
    found = {}
    for name, size in content["files"].items():
        if type(size) is not int or size < 0 or Path(name).name != name:
            raise ValueError(f"a file {name!r} of {size!r} bytes")
        found[name] = StoredFile(next((p for p in places if os.path.isfile(p / name)), folder) / name, size)
    return found


# How a checkpoint's folder comes, is replaced and goes: at every moment the old or the new one is there, whole.
# A folder is made under a hidden name and renamed to its own. Where one of its name is there, that one is set aside
# under a hidden name until the new one has its place. What is deleted gets a hidden name first, so that a process
# killed halfway leaves nothing that looks like a damaged checkpoint. Which checkpoints may go is not decided here.


_MAKING, _ASIDE = "tmp", "aside"
# So often what was written is sent to the disk: other ranks see that a slow one still takes it.
_SENT_BYTES = 64 * 2**20


Writers: TypeAlias = Mapping[str, Callable[[BinaryIO], None]]
"""For each file name, what writes its content."""


def write_set(
    wanted: CheckpointSet,
    writers: Writers,
    staged: Path | None = None,
    of_others: Callable[[], Mapping[str, StoredFile]] = dict,
) -> CheckpointSet:
    """Make the folder of a checkpoint; one of the same name is replaced.

    Args:
        wanted: what its record says; the files are filled in.
        writers: of this process.
        staged: what :func:`stage` gave, where other processes write into it too.
        of_others: waits for them, and gives their files.

    Returns:
        The same with its files.

    Raises:
        UsageError: a file cannot be written; what was there before is there.
        NemoLiteError: what ``of_others`` raises, likewise.
    """
    final, parent = wanted.path, wanted.path.parent
    making = staged or staged_path(final)
    with told_with(final):
        try:
            if staged is None:
                making.mkdir()
            try:
                files = {name: _write(final / name, making / name, write) for name, write in writers.items()}
            finally:
                others = of_others()  # also after an error: nobody writes any more when the folder is removed
            saved = replace(wanted, files={**files, **others})
            (making / RECORD).write_text(saved.record_text(), encoding="utf-8")
            synchronise(making / RECORD)
            synchronise(making)
            aside = _set_aside(final)
            os.rename(making, final)
            synchronise(parent)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            with suppress(OSError):
                _put_back(parent)
            raise
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
            _remove_dead_links(parent)
    return saved


def stage(final: Path) -> Path:
    """A folder into which several processes write the files of a checkpoint; :func:`write_set` gives it its name.

    Raises:
        UsageError: it cannot be made.
    """
    making = staged_path(final)
    with told_with(final):
        making.mkdir()
    return making


def staged_path(final: Path) -> Path:
    """A hidden name for a checkpoint that is being made."""
    return final.parent / temporary_name(final.name, _MAKING)


def write_part(making: Path, final: Path, writers: Writers) -> dict[str, StoredFile]:
    """Write this process's files into the folder of a checkpoint that another one stages and completes.

    Args:
        making: the folder.
        final: its name once it is complete.

    Raises:
        UsageError: a file cannot be written.
    """
    with told_with(final):
        files = {name: _write(final / name, making / name, write) for name, write in writers.items()}
        synchronise(making)
    return files


def rewrite_record(found: CheckpointSet) -> None:
    """Write the record of a checkpoint again, with what is known now.

    Raises:
        UsageError: it cannot be written; the record is the one before.
    """
    text = found.record_text()
    write_atomically(found.path / RECORD, lambda path: path.write_text(text, encoding="utf-8"))


def delete_set(found: CheckpointSet) -> None:
    """Delete the files that a checkpoint lists, and their folder if nothing else is in it.

    Raises:
        UsageError: they cannot be deleted.
    """
    with told_with(found.path, "cannot be deleted"):
        if found.is_flat:
            # The index goes first, so that a set is never listed without its files.
            for path in (found.path, *(file.path for file in found.files.values())):
                path.unlink(missing_ok=True)
        elif {path.name for path in found.path.iterdir()} <= {RECORD, *found.files}:
            leaving = found.path.with_name(temporary_name(found.path.name, _MAKING))
            os.rename(found.path, leaving)
            shutil.rmtree(leaving, ignore_errors=True)
        else:  # somebody keeps files of their own in it
            for name in (RECORD, *found.files):
                (found.path / name).unlink(missing_ok=True)
        _remove_dead_links(found.path.parent)
        synchronise(found.path.parent)


def sweep(folder: Path) -> None:
    """Remove what ended processes left half-made or half-deleted, and put back what they had set aside.

    Raises:
        UsageError: the folder cannot be read or changed.
    """
    with told_with(folder):
        _put_back(folder)
        for path in list(folder.iterdir()):
            if _is_ours(path, _MAKING):
                shutil.rmtree(path, ignore_errors=True)


def folders_of_sets(folder: Path) -> list[Path]:
    """The folders of a folder's checkpoints, each once: of one that was set aside, where no other has its place."""
    names = names_in(folder)
    there = {name for name in names if tag_of_folder(name)}
    aside = {made: name for name in names if tag_of_folder(made := name_in(name, _ASIDE) or "")}
    return [folder / name for name in sorted(there | {name for made, name in aside.items() if made not in there})]


def link_to_files(saved: CheckpointSet) -> None:
    """Give the files names beside their folder, where NeMo 0.x looks for them.

    Raises:
        UsageError: the folder's file system has no links.
    """
    with told_with(saved.path):
        for name in saved.files:
            link = saved.path.parent / name
            if not link.is_symlink() or os.readlink(link) != f"{saved.path.name}/{name}":
                link.unlink(missing_ok=True)
                link.symlink_to(f"{saved.path.name}/{name}")
        synchronise(saved.path.parent)


@contextmanager
def told_with(place: Path, problem: str = "cannot be written") -> Iterator[None]:
    """Around work on files: an error of the system becomes ours, with its path and its number.

    Raises:
        UsageError: in the place of an OSError.
    """
    try:
        yield
    except NemoLiteError:
        raise
    except Exception as error:
        told = unwritable(error, place, problem)
        if told is None:
            raise
        raise told from error


class _Digested(io.RawIOBase):
    """A file to be written, with the digest and the size of what was given to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self.num_bytes, self._num_sent = file, hashlib.sha256(), 0, 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any, /) -> int:
        self._file.write(content)
        self._digest.update(content)
        self.num_bytes += memoryview(content).nbytes
        if self.num_bytes - self._num_sent >= _SENT_BYTES:
            self.send()
        return memoryview(content).nbytes

    def send(self) -> None:
        """Wait until all of it has reached the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._num_sent = self.num_bytes
        note_write()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def _write(final: Path, path: Path, write: Callable[[BinaryIO], None]) -> StoredFile:
    with open(path, "wb") as file:
        digested = _Digested(file)
        write(cast("BinaryIO", digested))
        digested.send()
    return StoredFile(final, digested.num_bytes, digested.sha256)


def synchronise(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, have reached the disk; ranks that wait see it."""
    to_disk(path)
    note_write()


def _set_aside(final: Path) -> Path | None:
    if not os.path.lexists(final):
        return None
    aside = final.with_name(temporary_name(final.name, _ASIDE))
    os.rename(final, aside)
    return aside


def _put_back(folder: Path) -> None:
    """Give what was set aside its place, or delete it where the new one has that already."""
    for path in list(folder.iterdir()):
        if _is_ours(path, _ASIDE):
            final = folder / str(name_in(path.name, _ASIDE))
            if os.path.lexists(final):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.rename(path, final)


def _is_ours(path: Path, suffix: str) -> bool:
    return tag_of_folder(name_in(path.name, suffix) or "") is not None and path.is_dir() and not path.is_symlink()


def _remove_dead_links(folder: Path) -> None:
    """Remove the names of :func:`link_to_files` whose files are gone."""
    for path in list(folder.iterdir()):
        if path.is_symlink() and not path.exists():
            target = Path(os.readlink(path))
            if target.name == path.name and tag_of_folder(str(target.parent)):
                path.unlink(missing_ok=True)


# What ranks tell each other about their parts of a checkpoint: the files that each wrote, or the error that it met.
# The ranks write into one folder, so over several machines it is on a file system that they share.


T = TypeVar("T")

_FIELDS = ("problem", "place", "got", "wanted", "remedy")
_LONGEST_PAUSE_SECONDS = 0.05


def on_every_rank(comm: Comm, make: Callable[[], T]) -> T:
    """What ``make`` gives on this rank. All ranks call it, and none goes on where another one failed.

    Raises:
        NemoLiteError: of the first rank that failed, with its number; the same on all ranks.
    """
    made: list[T] = []
    failure: dict[str, str] = {}
    try:
        made.append(make())
    except NemoLiteError as error:
        failure = _failure_of(error)
    for rank, each in enumerate(comm.share(comm.gather(failure) or [])):
        if each:
            common = _error_of(rank, each)
            common.is_common = True
            raise common
    return made[0]


def report_of(write: Callable[[], Mapping[str, StoredFile]]) -> str:
    """Write files, and report them. Any error becomes a report too: somebody waits for it."""
    try:
        files = {name: [file.bytes, file.sha256] for name, file in write().items()}
        return json.dumps({"files": files})
    except Exception as error:
        return json.dumps({"failure": _failure_of(error)})


def files_of_others(
    comm: Comm, key: str, final: Path, gives_up: Callable[[], bool] = lambda: False
) -> dict[str, StoredFile]:
    """Wait for the reports of all other ranks, in any thread; the files that they wrote.

    Args:
        key: before the rank's number in the keys of the notes.
        final: the folder of the checkpoint.
        gives_up: whether it is too late to wait on.

    Raises:
        NemoLiteError: a rank could not write its part, with its number; or its report did not come in time.
    """
    waiting = [*range(1, comm.world_size)]
    reports: dict[int, str] = {}
    pause = _LONGEST_PAUSE_SECONDS / 64
    while waiting:
        arrived = {rank: text for rank in waiting if (text := comm.take_note(f"{key}/{rank}")) is not None}
        reports |= arrived
        waiting = [rank for rank in waiting if rank not in arrived]
        if waiting and gives_up():
            problem = f"rank {waiting[0]} did not write its part: the checkpoint is not complete"
            raise CheckpointError(problem, place=str(final), remedy="the checkpoint before is the newest")
        if waiting:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    files: dict[str, StoredFile] = {}
    for rank, report in sorted(reports.items()):
        content = json.loads(report)
        if "failure" in content:
            raise _error_of(rank, content["failure"])
        files.update((name, StoredFile(final / name, *about)) for name, about in content["files"].items())
    return files


def _failure_of(error: Exception) -> dict[str, str]:
    if not isinstance(error, NemoLiteError):
        return {"kind": "", "problem": "its part was not written", "got": f"{type(error).__name__}: {error}"}
    fields = {name: str(getattr(error, name, "")) for name in _FIELDS}
    fields["problem"] = fields["problem"] or str(error)
    return {"kind": "checkpoint" if isinstance(error, CheckpointError) else "", **fields}


def _error_of(rank: int, failure: Mapping[str, str]) -> NemoLiteError:
    fields = {name: failure.get(name, "") for name in _FIELDS[1:]}
    fields["place"] = f"rank {rank}: {fields['place']}".removesuffix(": ")
    kind = CheckpointError if failure["kind"] else UsageError
    return kind(failure["problem"], **fields)


# Which checkpoints are in a folder, in their order, and what is wrong with damaged ones. Nothing is changed.


class Found(NamedTuple):
    """What is in a folder of checkpoints.

    Attributes:
        sets: those whose files are there with their sizes, oldest first.
        damaged: what is wrong with each of the others, by the path of its folder or index.
        last_serial: at least that of every checkpoint, also of the damaged ones; 0 where there is none.
    """

    sets: Sequence[CheckpointSet]
    damaged: Mapping[Path, str]
    last_serial: int


def look(folder: Path) -> Found:
    """The checkpoints of a folder, or the one that it is. Records are read and sizes compared, contents are not.

    Raises:
        CheckpointError: a later version wrote one of them.
        UsageError: the folder cannot be read.
    """
    names = names_in(folder)
    readers: dict[Path, Callable[[Path], CheckpointSet]] = {}
    readers.update(dict.fromkeys([folder] if RECORD in names else folders_of_sets(folder), read_record))
    indices = [folder / name for name in names if name.startswith("checkpoint-") and name.endswith(".json")]
    readers.update(dict.fromkeys(indices, read_index))
    sets: list[CheckpointSet] = []
    damaged: dict[Path, str] = {}
    serials, num_unreadable = [0], 0
    for path, read in readers.items():
        try:
            found = read(path)
        except LaterVersionError:
            raise
        except CheckpointError as error:
            damaged[path] = f"{error.problem} ({error.got})" if error.got else error.problem
            num_unreadable += 1
            continue
        serials.append(found.serial)
        if problem := found.problem(contents=False):
            damaged[path] = problem
        else:
            sets.append(found)
    return Found(sorted(sets, key=lambda found: found.serial), damaged, max(serials) + num_unreadable)


# FolderLock: one process writes the checkpoints of a folder; it also keeps the last serial number given there.


try:
    import fcntl
except ImportError:  # Windows: folders are not locked there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_TAKEN = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_MOST_BYTES = 4096
_OPENING = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_LOCK = FileKind("the lock", _MOST_BYTES, CheckpointError)


class FolderLock:
    """Held by a process for as long as it may write; the system frees it when that process ends, also by a kill.

    A lock of POSIX: forked processes do not hold it, and within one process it keeps nobody out.

    Args:
        folder: exists when the lock is taken.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object has taken it."""
        return self._file is not None

    def take(self) -> None:
        """Take the lock; nothing happens if it is held already.

        Raises:
            UsageError: another process holds it: which one, where, and its command; or the file cannot be written.
        """
        with told_with(self._folder / LOCK):
            file = self._file
            if file is None:
                # Not through a link: a folder from elsewhere could have one to a file of the user's.
                file = os.open(self._folder / LOCK, _OPENING, 0o666)
            try:
                self._lock(file)
                self._write(file, _last_serial(file))
            except BaseException:
                os.close(file)
                self._file = None
                raise
            self._file = file

    def give_serial(self, above: int) -> int:
        """The next serial number: above every one that was given here, and above this one. The lock must be held."""
        assert self._file is not None
        serial = 1 + max(above, _last_serial(self._file))
        with told_with(self._folder / LOCK):
            self._write(self._file, serial)
        return serial

    def release(self) -> None:
        """Let others take it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self, file: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                raise UsageError(
                    "another process saves checkpoints in this folder",
                    place=str(self._folder),
                    got=_holder(file),
                    remedy="wait until it has ended, or give this run a folder of its own",
                ) from None
            if error.errno not in _NO_LOCKS:
                raise
            logging.warning("%s: its file system has no locks; see that only one run saves there", self._folder)

    def _write(self, file: int, serial: int) -> None:
        run = shlex.join(sys.argv)[:1000]
        content = {"host": socket.gethostname(), "pid": os.getpid(), "run": run, "last_serial": serial}
        text = json.dumps(content).encode()
        # Not cut first: a process killed in between would lose the number.
        os.pwrite(file, text, 0)
        os.ftruncate(file, len(text))


def _last_serial(file: int) -> int:
    value = _content(file).get("last_serial")
    return value if type(value) is int and 0 <= value < 2**62 else 0


def _holder(file: int) -> str:
    content = _content(file)
    run = "".join(char for char in str(content.get("run", "")) if char.isprintable())
    return f"process {content.get('pid', '?')} on {content.get('host', '?')}: {run or '?'}"[:300]


def _content(file: int) -> dict[str, object]:
    # Through the descriptor that is open: closing another one of this file would free the lock.
    try:
        content = parse_json(os.pread(file, _MOST_BYTES, 0), "", _LOCK)
    except CheckpointError:
        return {}
    return dict(content) if isinstance(content, dict) else {}
