"""The store of checkpoints: records with digests, atomic commits, listing, the lock of a folder.

A checkpoint is a folder ``checkpoint-STEP-<n>`` (or ``EPOCH``). ``record.json`` in it is written last. It has a digest
of every file and of itself, so any change of the folder is noticed. No weights are read in this file.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
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
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.process import note_write
from nemo_lite.base.errors import CheckpointError, NemoLiteError, UsageError
from nemo_lite.base.files import (
    FileKind,
    JsonLimits,
    decode_text,
    digest_of_file,
    finite_or_null,
    json_text,
    name_in,
    names_in,
    parse_json,
    read_bytes,
    temporary_name,
    unwritable,
    write_atomically,
)
from nemo_lite.base.files import synchronise as to_disk
from nemo_lite.base.helpers import RECORD, CheckpointName, parse_checkpoint_name, tag_of_folder
from nemo_lite.core.callbacks.action_state import Best
from nemo_lite.utils import logging

# Any: what a user stores in a record is JSON.

FORMAT = "nemo_lite checkpoint"
VERSION = 3  # with files in parts; version 2 had none, version 1 is an index beside its files: a flat set
_WITHOUT_PARTS = 2  # what older versions read too
TRAINER = "trainer"
# A record holds a configuration, labels, a tokenizer and the run contract: kilobytes, with a tokenizer megabytes.
KIND = FileKind("the record", 64 << 20, CheckpointError)
_LIMITS = JsonLimits(surrogates=True)  # a name that is no UTF-8, of a script or a folder


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
        name = self.path.name
        try:
            status = os.stat(self.path)
            if not stat.S_ISREG(status.st_mode):
                return f"{name} is no file"
            if status.st_size != self.bytes:
                return f"{name} has {status.st_size} bytes, {self.bytes} were written"
            if contents and self.sha256 and digest_of_file(self.path) != self.sha256:
                return f"{name} is not what was written (SHA-256 differs)"
        except FileNotFoundError:
            return f"lacks {name}"
        except (OSError, UsageError) as error:
            return f"{name} cannot be read ({getattr(error, 'strerror', '') or error})"
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
        contract: of the run that saved it, as ``contract.saved`` gives it; empty where the record does not say.
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
        names = dict.fromkeys(name.module for name in _parsed(self.files))
        return [name for name in names if name != TRAINER]

    def path_of(self, module: str) -> Path | None:
        """The file of one module (or of ``trainer``), or the first of its parts; None when it is not in the set."""
        names = (name for name in _parsed(self.files) if name.module == module and name.stands_for_all)
        return next((self.files[name.file_name].path for name in names), None)

    def problem(self, *, contents: bool) -> str:
        """How its files differ from those that were written, or "". Without ``contents`` only sizes are compared."""
        return ", ".join(filter(None, (file.problem(contents=contents) for file in self.files.values())))

    def record_text(self) -> str:
        """The content of its record. A result of an evaluation that is infinite or NaN is ``null`` there.

        Raises:
            UsageError: ``about`` or ``evaluations`` hold something that JSON cannot.
        """
        content = {
            "format": FORMAT,
            "version": VERSION if any(name.part for name in _parsed(self.files)) else _WITHOUT_PARTS,
            "kind": self.kind,
            "number": self.number,
            "serial": self.serial,
            "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in self.files.items()},
            "step": self.step,
            "epoch": self.epoch,
            "evaluations": finite_or_null(self.evaluations),
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


def _as_text(content: Mapping[str, Any]) -> str:
    return json_text(content, indent=1)


def _parsed(file_names: Iterable[str]) -> list[CheckpointName]:
    return [name for name in map(parse_checkpoint_name, file_names) if name is not None]


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


_STAGED = r"^(\.(STEP|EPOCH)-[0-9]+\.[A-Za-z0-9-]*\.[0-9]+\.[0-9a-f]{8}\.staged)?$"


class _File(msgspec.Struct):
    bytes: Count
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Described(msgspec.Struct, kw_only=True):
    """The keys that a record and an index have in common."""

    format: Literal["nemo_lite checkpoint"]
    kind: Literal["STEP", "EPOCH"]
    number: Count
    serial: Count
    step: Count | None = None
    epoch: Count | None = None
    about: dict[str, Any] | None = None
    evaluations: list[dict[str, Any]] | None = None
    contract: dict[str, Any] | None = None

    def as_set(self, path: Path, files: Mapping[str, StoredFile]) -> CheckpointSet:
        """The checkpoint. Raises ValueError if a file is not one of it."""
        made = CheckpointSet(
            path, self.kind, self.number, self.serial, files, self.about or {}, self.evaluations or [],
            self.step, self.epoch, self.contract or {},
        )  # fmt: skip
        of_modules: dict[str, list[CheckpointName]] = {}
        for name in files:
            parsed = parse_checkpoint_name(name) if len(name) < 256 else None
            if parsed is None or parsed.tag != made.tag or parsed.file_name != name or Path(name).name != name:
                raise ValueError(f"a file {name!r}")
            of_modules.setdefault(parsed.module, []).append(parsed)
        for module, names in of_modules.items():
            forms = {(name.suffix, name.part.total if name.part else 0) for name in names}
            num_parts = max(total for _, total in forms)
            if num_parts and (len(forms) > 1 or len(names) != num_parts):
                raise ValueError(f"{len(names)} files of {module}, which is in {num_parts} parts")
        return made


class _Record(_Described, kw_only=True):
    files: dict[str, _File]


class _Index(_Described, kw_only=True):
    """Of version 1: files beside each other, with an index ``checkpoint-STEP-<n>.json``. They are only read.

    A process killed while it moved the files to their place left some in the folder that ``staged_in`` names.
    """

    files: dict[str, Count]
    staged_in: Annotated[str, msgspec.Meta(pattern=_STAGED)]


def read_record(folder: Path) -> CheckpointSet:
    """The checkpoint in a folder. Its other files are not looked at.

    Raises:
        CheckpointError: there is no record, it was changed or damaged, contradicts the folder's name, or a later
            version wrote it (:class:`LaterVersionError`).
    """
    path = folder / RECORD
    text, content = _read_json(path)
    try:
        is_ours = isinstance(content, dict) and isinstance(content.pop("sha256", None), str)
        if not is_ours or with_digest(content) != text:
            raise ValueError("its digest is not that of its content")
    except (ValueError, RecursionError) as error:
        got = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise CheckpointError("the record was changed or damaged", place=str(path), got=got) from None
    _check_version(content, VERSION, path)
    try:
        record = msgspec.convert(content, _Record)
        files = {name: StoredFile(folder / name, file.bytes, file.sha256) for name, file in record.files.items()}
        checkpoint = record.as_set(folder, files)
    except ValueError as error:
        raise CheckpointError("the record is not one of a checkpoint", place=str(path), got=str(error)) from None
    if tag_of_folder(folder.name) not in (None, checkpoint.tag):  # a copy may have any name
        raise CheckpointError("the record is of another checkpoint", place=str(path), got=checkpoint.tag)
    return checkpoint


def read_index(path: Path) -> CheckpointSet:
    """The checkpoint that an index lists.

    Raises:
        CheckpointError: it is damaged, is no index, lists what is not in its folder, or a later version wrote it.
    """
    _, content = _read_json(path)
    _check_version(content if isinstance(content, dict) else {}, 1, path)
    try:
        index = msgspec.convert(content, _Index)
        places = [path.parent]
        if index.staged_in and not (path.parent / index.staged_in).is_symlink():
            places.insert(0, path.parent / index.staged_in)
        files = {
            name: StoredFile(next((p for p in places if os.path.isfile(p / name)), path.parent) / name, size)
            for name, size in index.files.items()
        }
        checkpoint = index.as_set(path, files)
    except ValueError as error:
        got = str(error)[:160]
        raise CheckpointError("this is no index of a checkpoint, or it is damaged", place=str(path), got=got) from None
    if path.stem != f"checkpoint-{checkpoint.tag}":
        raise CheckpointError("the index is of another checkpoint", place=str(path), got=checkpoint.tag)
    return checkpoint


class LaterVersionError(CheckpointError):
    """A checkpoint of a later nemo_lite: not damaged, so none of before takes its place."""


def _check_version(content: Mapping[str, Any], newest: int, path: Path) -> None:
    version = content.get("version")
    if isinstance(version, int) and version > newest:
        raise LaterVersionError(
            "this checkpoint was written by a later nemo_lite",
            place=str(path),
            got=f"version {version}",
            wanted=f"at most {newest}",
            remedy="update nemo_lite, or choose another folder",
        )


def _read_json(path: Path) -> tuple[str, Any]:
    """The text of a record or an index, and its value."""
    if not os.path.lexists(path):
        raise CheckpointError(f"lacks {path.name}", place=str(path.parent))
    text = decode_text(read_bytes(path, KIND), path, KIND)
    return text, parse_json(text, path, KIND, _LIMITS)


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


# The best checkpoints by their evaluations.


def best_of(sets: Sequence[CheckpointSet], best: Best) -> list[CheckpointSet]:
    """The best of some sets, the best first; of equals the newer one. Those without a rate of their own are no best."""
    scored = [(score, -made.serial, made) for made in sets if (score := score_of(made, best)) is not None]
    return [made for _, _, made in sorted(scored, key=lambda entry: entry[:2])][: best.keep]


def score_of(made: CheckpointSet, best: Best) -> float | None:
    """The value by which a set is judged, lower ones better; None where its weights were not evaluated so."""
    return score_in(made.evaluations, made.step, best)


def score_in(evaluations: Sequence[Mapping[str, Any]], step: int | None, best: Best) -> float | None:
    """The same of evaluations. Those of another step say nothing about the weights of this one."""
    for evaluation in evaluations:
        if (evaluation.get("name"), evaluation.get("step")) == (best.evaluation, step):
            values = evaluation.get("values")
            value = values.get(best.metric) if isinstance(values, Mapping) else None
            if isinstance(value, (int, float)) and math.isfinite(value):
                return -value if best.highest else value
    return None


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
    making = staged or stage(final)
    aside: Path | None = None
    with told_with(final):
        try:
            try:
                files = {name: _write(final / name, making / name, write) for name, write in writers.items()}
            finally:
                files_elsewhere = of_others()  # also after an error: nobody writes when the folder is removed
            saved = replace(wanted, files={**files, **files_elsewhere})
            (making / RECORD).write_text(saved.record_text(), encoding="utf-8")
            synchronise(making / RECORD)
            synchronise(making)
            if os.path.lexists(final):
                aside = final.with_name(temporary_name(final.name, _ASIDE))
                os.rename(final, aside)
            os.rename(making, final)
            synchronise(parent)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            with suppress(OSError):
                _put_back(parent)
            raise
        if aside is not None:
            _drop(aside, final)
            _remove_dead_links(parent)
    return saved


def stage(final: Path) -> Path:
    """A folder into which several processes write the files of a checkpoint; :func:`write_set` gives it its name.

    Raises:
        UsageError: it cannot be made.
    """
    making = final.with_name(temporary_name(final.name, _MAKING))
    with told_with(final):
        making.mkdir()
    return making


def write_part(making: Path, final: Path, writers: Writers) -> dict[str, StoredFile]:
    """Write this process's files into the folder of a checkpoint.

    Args:
        making: the folder, as :func:`stage` gave it.
        final: its name once it is complete.

    Raises:
        UsageError: a file cannot be written.
    """
    with told_with(final):
        files = {name: _write(final / name, making / name, write) for name, write in writers.items()}
        synchronise(making)
    return files


def rewrite_record(checkpoint: CheckpointSet) -> None:
    """Write the record of a checkpoint again.

    Raises:
        UsageError: it cannot be written; the record is the one before.
    """
    text = checkpoint.record_text()
    write_atomically(checkpoint.path / RECORD, lambda path: path.write_text(text, encoding="utf-8"))


def delete_set(checkpoint: CheckpointSet) -> None:
    """Delete the files that a checkpoint lists, and their folder if nothing else is in it.

    Raises:
        UsageError: they cannot be deleted.
    """
    with told_with(checkpoint.path, "cannot be deleted"):
        if checkpoint.is_flat:
            # The index goes first, so that a set is never listed without its files.
            for path in (checkpoint.path, *(file.path for file in checkpoint.files.values())):
                path.unlink(missing_ok=True)
        elif all(name in checkpoint.files or _is_of_record(name) for name in names_in(checkpoint.path)):
            leaving = checkpoint.path.with_name(temporary_name(checkpoint.path.name, _MAKING))
            os.rename(checkpoint.path, leaving)
            shutil.rmtree(leaving, ignore_errors=True)
        else:  # somebody keeps files of their own in it
            for name in (RECORD, *checkpoint.files):
                (checkpoint.path / name).unlink(missing_ok=True)
            _sweep_record(checkpoint.path)
        _remove_dead_links(checkpoint.path.parent)
        synchronise(checkpoint.path.parent)


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
            elif tag_of_folder(path.name) and not path.is_symlink() and _sweep_record(path):
                with suppress(OSError):  # somebody keeps files in it; else it is the rest of a deleted checkpoint
                    path.rmdir()


def _is_of_record(name: str) -> bool:
    return RECORD in (name, name_in(name))


def _sweep_record(folder: Path) -> bool:
    """Remove what a process that was killed while it wrote the record again left beside it; whether it did so."""
    left = [path for path in folder.glob(".*") if name_in(path.name) == RECORD]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return bool(left)


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
            if _is_own_link(link) and os.readlink(link) != f"{saved.path.name}/{name}":
                link.unlink()
            if not os.path.lexists(link):  # a file of NeMo's run, perhaps, which stays
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
        explained = unwritable(error, place, problem)
        if explained is None:
            raise
        raise explained from error


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


def _put_back(folder: Path) -> None:
    """Give what was set aside its place, or delete it where the new one has that already."""
    for path in list(folder.iterdir()):
        if _is_ours(path, _ASIDE):
            final = folder / str(name_in(path.name, _ASIDE))
            if os.path.lexists(final):
                _drop(path, final)
            else:
                os.rename(path, final)


def _drop(aside: Path, final: Path) -> None:
    """Delete a set whose place another has taken. Files of others that lay beside its own move to the new one."""
    ours = {RECORD}
    for folder in (aside, final):
        with suppress(CheckpointError):
            ours |= read_record(folder).files.keys()
    with suppress(OSError):  # then it is tried again when the folder is swept
        for path in list(aside.iterdir()):
            if path.name not in ours:
                os.rename(path, final / path.name)
        shutil.rmtree(aside, ignore_errors=True)


def _is_ours(path: Path, suffix: str) -> bool:
    return tag_of_folder(name_in(path.name, suffix) or "") is not None and path.is_dir() and not path.is_symlink()


def _remove_dead_links(folder: Path) -> None:
    """Remove the names of :func:`link_to_files` whose files are gone."""
    for path in list(folder.iterdir()):
        if not path.exists() and _is_own_link(path):
            path.unlink(missing_ok=True)


def _is_own_link(path: Path) -> bool:
    """Whether :func:`link_to_files` made it."""
    if not path.is_symlink():
        return False
    target = Path(os.readlink(path))
    return target.name == path.name and tag_of_folder(str(target.parent)) is not None


# What ranks tell each other about their parts of a checkpoint: the files that each wrote, or the error that it met.
# The ranks write into one folder, so over several machines it is on a file system that they share.


T = TypeVar("T")

_FIELDS = ("problem", "place", "got", "wanted", "remedy")
_LONGEST_PAUSE_SECONDS = 0.05


def on_every_rank(comm: Comm, make: Callable[[], T]) -> T:
    """The result of ``make`` on this rank. All ranks call it, and none goes on where another one failed.

    Raises:
        NemoLiteError: of the first rank that failed, with its number; the same on all ranks.
    """
    made: list[T] = []
    own_failure: dict[str, str] = {}
    try:
        made.append(make())
    except NemoLiteError as error:
        own_failure = _failure_of(error)
    for rank, failure in enumerate(comm.share(comm.gather(own_failure) or [])):
        if failure:
            common = _error_of(rank, failure)
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


class Listing(NamedTuple):
    """The checkpoints in a folder.

    Attributes:
        sets: those whose files are there with their sizes, oldest first.
        damaged: the problem of each of the others, by the path of its folder or index.
        last_serial: at least that of every checkpoint, also of the damaged ones; 0 where there is none.
    """

    sets: Sequence[CheckpointSet]
    damaged: Mapping[Path, str]
    last_serial: int


def look(folder: Path) -> Listing:
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
            checkpoint = read(path)
        except LaterVersionError:
            raise
        except CheckpointError as error:
            damaged[path] = f"{error.problem} ({error.got})" if error.got else error.problem
            num_unreadable += 1
            continue
        serials.append(checkpoint.serial)
        if problem := checkpoint.problem(contents=False):
            damaged[path] = problem
        else:
            sets.append(checkpoint)
    return Listing(sorted(sets, key=lambda checkpoint: checkpoint.serial), damaged, max(serials) + num_unreadable)


# FolderLock: one process writes the checkpoints of a folder.


try:
    import fcntl
except ImportError:  # Windows: folders are not locked there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_TAKEN = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
# Not through a link: a folder from elsewhere could have one to a file of the user's.
_OPENING = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_LOCK = FileKind("the lock", 4096, CheckpointError)


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
        if self._file is not None:
            return
        with told_with(self._folder / LOCK):
            file = os.open(self._folder / LOCK, _OPENING, 0o666)
            try:
                self._lock(file)
                run = shlex.join(sys.argv)[:1000]
                holder = {"host": socket.gethostname(), "pid": os.getpid(), "run": run}
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(holder).encode(), 0)
            except BaseException:
                os.close(file)
                raise
            self._file = file

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


def _holder(file: int) -> str:
    # Through the descriptor that is open: closing another one of this file would free the lock.
    with suppress(CheckpointError):
        holder = parse_json(os.pread(file, _LOCK.max_bytes, 0), "", _LOCK)
        if isinstance(holder, dict):
            run = "".join(char for char in str(holder.get("run", "")) if char.isprintable())
            return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}: {run or '?'}"[:300]
    return "a process that has not said its name"
