"""Checkpoint folders: which files belong together, which set is the newest, which may go. Formats are elsewhere.

A set is ``<Module>-STEP-<n>.safetensors`` for each module, ``trainer-STEP-<n>.safetensors`` for the training state, and
the index ``checkpoint-STEP-<n>.json``, without which a set does not count (or ``EPOCH`` instead of ``STEP``).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor, nn

from nemo_lite.backends.pytorch.checkpoint.storage import (
    TrainingState,
    Weights,
    fill_module,
    load_training_state,
    read_fitting,
    save_module,
    save_training_state,
)
from nemo_lite.errors import CheckpointError, UsageError, did_you_mean
from nemo_lite.utils.files import is_abandoned, make_writable_folder, synchronise, temporary_name, write_atomically
from nemo_lite.utils.helpers import find_checkpoint_files, parse_checkpoint_name

Kind = Literal["STEP", "EPOCH"]

INDEX_FORMAT = "nemo_lite checkpoint"
TRAINER = "trainer"


@dataclass(frozen=True)
class CheckpointSet:
    """One complete checkpoint: the files that its index lists.

    Attributes:
        folder: where it lies.
        kind: whether ``number`` counts steps or epochs.
        number: the step or epoch.
        serial: position in the order of saving within the folder.
        files: file names with their sizes in bytes.
        staged_in: the sub-folder in which files wait that a killed process had no time to move to their place.
    """

    folder: Path
    kind: str
    number: int
    serial: int
    files: Mapping[str, int]
    staged_in: str

    def __str__(self) -> str:
        return f"{self.folder / self.tag}"

    @property
    def tag(self) -> str:
        """``STEP-1000``."""
        return f"{self.kind}-{self.number}"

    @property
    def modules(self) -> list[str]:
        """The names of the modules in it."""
        return [name for name in map(_module_of, self.files) if name != TRAINER]

    def path_of(self, module: str) -> Path | None:
        """The file of one module (or of ``trainer``); None when it is not in the set."""
        file_name = f"{module}-{self.tag}.safetensors"
        return self._path(file_name) if file_name in self.files else None

    def _path(self, file_name: str) -> Path:
        staged = self.folder / self.staged_in / file_name
        return staged if staged.is_file() else self.folder / file_name

    def lacking(self) -> list[str]:
        """The files that are not there, or not of the size that the index says."""
        paths = {self._path(file_name): size for file_name, size in self.files.items()}
        return [path.name for path, size in paths.items() if not path.is_file() or path.stat().st_size != size]


class Contents(NamedTuple):
    """What a set holds for some modules.

    Attributes:
        name: of the set, for messages.
        weights: the tensors of each module by its name.
        state: the training state; None when there is none.
    """

    name: str
    weights: Mapping[str, Mapping[str, Tensor]]
    state: TrainingState | None

    def fill(self, modules: Mapping[str, nn.Module]) -> None:
        """Copy the weights into the modules they were read for."""
        for name, module in modules.items():
            fill_module(module, self.weights[name])


class CheckpointFolder:
    """Saves sets of modules with a training state into one folder, and restores them.

    A process may be killed at any moment: the newest complete set stays readable, also while a set of the same number
    is written again. Nothing is locked: one process saves, any number may read.

    Args:
        folder: created at the first save.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()

    def save(
        self,
        modules: Mapping[str, nn.Module | Weights],
        state: TrainingState | None,
        *,
        kind: Kind,
        number: int,
        keep: int,
    ) -> CheckpointSet:
        """Write one set, then delete the oldest sets beyond ``keep``.

        Only files that an index lists are deleted. The disk must hold ``keep`` + 1 sets for a moment.

        Args:
            modules: they, or their weights alone, by name, which becomes part of the file's name.
            state: see :func:`save_training_state`; None writes no ``trainer`` file.
            kind: what ``number`` counts.
            number: the step or epoch.
            keep: how many sets stay, at least 1.

        Raises:
            UsageError: a name, number or ``keep`` that cannot be, or a folder or disk that cannot be written to.
            CheckpointError: a state that cannot be stored.
        """
        _check_names(modules)
        _check_numbers(kind, number, keep)
        make_writable_folder(self.folder)
        self._finish_interrupted()
        tag = f"{kind}-{number}"
        replaced = {file_name for found in self._indexed() if found.tag == tag for file_name in found.files}
        staging = self.folder / temporary_name(tag, "staged")
        staging.mkdir()
        try:
            for name, module in modules.items():
                save_module(module, staging / f"{name}-{tag}.safetensors")
            if state is not None:
                save_training_state(staging / f"{TRAINER}-{tag}.safetensors", state)
            saved = self._commit(kind, number, staging)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        self._publish(saved)
        self._delete(replaced - saved.files.keys())
        for oldest in self.sets()[:-keep]:
            # The index goes first, so that a set is never listed without its files.
            self._delete([self._index_path(oldest.tag).name])
            self._delete(oldest.files)
        return saved

    def sets(self) -> list[CheckpointSet]:
        """The complete sets, oldest first."""
        complete = [found for found in self._indexed() if not found.lacking()]
        return sorted(complete, key=lambda found: found.serial)

    def latest(self, pattern: str = "") -> CheckpointSet | None:
        """The complete set that was saved last and whose tag contains ``pattern`` (such as ``EPOCH``), if any."""
        return next((found for found in reversed(self.sets()) if pattern in found.tag), None)

    def is_empty(self) -> bool:
        """Whether there is nothing to restore: neither a set, complete or not, nor a checkpoint of NeMo's."""
        names = map(parse_checkpoint_name, os.listdir(self.folder) if self.folder.is_dir() else ())
        return not any(name and name.suffix in (".pt", ".safetensors") for name in names) and not self._indexed()

    def read(self, modules: Mapping[str, nn.Module], pattern: str = "") -> Contents:
        """The newest complete set, or NeMo's ``<Module>-STEP-<n>.pt`` when there is no set, compared with the modules.

        Args:
            modules: by the names under which they were saved; the set may hold more.
            pattern: only sets whose tag contains it, such as ``STEP-1000``.

        Raises:
            CheckpointError: no complete set, one that lacks a module, or files that do not fit: all problems at once.
        """
        found = self.latest(pattern)
        if found is None:
            files, trainer = self._files_of_nemo(modules, pattern)
        else:
            files, trainer = _files_of_set(found, modules), found.path_of(TRAINER)
        state = load_training_state(trainer) if trainer else None
        return Contents(str(found or self.folder), _read_all(modules, files), state)

    def _commit(self, kind: Kind, number: int, staging: Path) -> CheckpointSet:
        """Write the index: from here on the set counts, its files still in the staging folder."""
        sizes = {file.name: file.stat().st_size for file in sorted(staging.glob("*.safetensors"))}
        serial = 1 + max((found.serial for found in self._indexed()), default=0)
        saved = CheckpointSet(self.folder, kind, number, serial, sizes, staging.name)
        content = {
            "format": INDEX_FORMAT,
            "version": 1,
            "kind": kind,
            "number": number,
            "serial": serial,
            "staged_in": staging.name,
            "files": sizes,
        }
        text = json.dumps(content, indent=1)
        write_atomically(self._index_path(saved.tag), lambda path: path.write_text(text, encoding="utf-8"))
        return saved

    def _publish(self, saved: CheckpointSet) -> None:
        """Move the files of a committed set to their place; a reader finds them in either."""
        staging = self.folder / saved.staged_in
        if saved.staged_in and staging.is_dir():
            for file_name in saved.files:
                if (staging / file_name).is_file():
                    os.replace(staging / file_name, self.folder / file_name)
            synchronise(self.folder)
            shutil.rmtree(staging, ignore_errors=True)

    def _finish_interrupted(self) -> None:
        """Publish what a killed process had committed, and remove what it had not."""
        for found in self._indexed():
            self._publish(found)
        for path in list(self.folder.iterdir()):
            if is_abandoned(path, "staged"):
                shutil.rmtree(path, ignore_errors=True)

    def _delete(self, file_names: Iterable[str]) -> None:
        for file_name in file_names:
            (self.folder / file_name).unlink(missing_ok=True)
        synchronise(self.folder)

    def _index_path(self, tag: str) -> Path:
        return self.folder / f"checkpoint-{tag}.json"

    def _indexed(self) -> list[CheckpointSet]:
        paths = self.folder.glob("checkpoint-*.json") if self.folder.is_dir() else ()
        return [found for path in paths if (found := _read_index(path)) is not None]

    def _files_of_nemo(self, modules: Mapping[str, nn.Module], pattern: str) -> tuple[dict[str, Path], Path | None]:
        incomplete = self._incomplete()
        if incomplete:
            raise CheckpointError("no complete checkpoint", place=str(self.folder), got="; ".join(incomplete))
        name, paths = find_checkpoint_files(modules, self.folder, pattern, suffixes=(".pt",))
        trainer = self.folder / f"{TRAINER}-{name.tag}.pt"
        return dict(zip(modules, paths, strict=True)), trainer if trainer.is_file() else None

    def _incomplete(self) -> list[str]:
        """What each set that does not count lacks."""
        indexed = self._indexed()
        lacking = [f"{found.tag} lacks {', '.join(lacking)}" for found in indexed if (lacking := found.lacking())]
        names = map(parse_checkpoint_name, os.listdir(self.folder) if self.folder.is_dir() else ())
        tags = {name.tag for name in names if name and name.suffix == ".safetensors"} - {found.tag for found in indexed}
        return lacking + [f"{tag} lacks {self._index_path(tag).name}" for tag in sorted(tags)]


def _check_names(modules: Iterable[str]) -> None:
    in_lower_case: dict[str, str] = {TRAINER: TRAINER}
    for name in modules:
        if parse_checkpoint_name(f"{name}-STEP-0.safetensors") is None or Path(name).name != name or "\0" in name:
            raise UsageError(f"{name!r} cannot be a file name", place="checkpoint", remedy="rename the module")
        if in_lower_case.setdefault(name.lower(), name) != name or name == TRAINER:
            other = in_lower_case[name.lower()]
            raise UsageError(f'"{name}" and "{other}" would be one file on some systems', remedy="rename the module")


def _check_numbers(kind: str, number: int, keep: int) -> None:
    if kind not in ("STEP", "EPOCH") or number < 0 or keep < 1:
        raise UsageError(
            "such a checkpoint cannot be",
            got=f"kind {kind}, number {number}, keep {keep}",
            wanted="kind STEP or EPOCH, number from 0, keep from 1",
        )


def _files_of_set(found: CheckpointSet, modules: Mapping[str, nn.Module]) -> dict[str, Path]:
    files = {name: path for name in modules if (path := found.path_of(name)) is not None}
    missing = [f"{name}{did_you_mean(name, found.modules)}" for name in modules if name not in files]
    if missing:
        raise CheckpointError(
            f"checkpoint {found.tag} has no {', '.join(missing)}",
            place=str(found.folder),
            got=", ".join(found.modules) or "no modules",
        )
    return files


def _read_all(modules: Mapping[str, nn.Module], files: Mapping[str, Path]) -> dict[str, dict[str, Tensor]]:
    fitting, problems = {}, []
    for name, module in modules.items():
        try:
            fitting[name] = read_fitting(module, files[name])
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("\n".join(problems))
    return fitting


def _module_of(file_name: str) -> str:
    name = parse_checkpoint_name(file_name)
    return name.module if name else ""


def _read_index(path: Path) -> CheckpointSet | None:
    """The set that an index lists; None for any other file, so that nothing foreign is ever read or deleted."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != INDEX_FORMAT or content["version"] != 1:
            return None
        kind, number, serial = str(content["kind"]), int(content["number"]), int(content["serial"])
        files = {str(name): int(size) for name, size in content["files"].items()}
        found = CheckpointSet(path.parent, kind, number, serial, files, str(content["staged_in"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    in_this_folder = all(Path(name).name == name for name in (*files, found.staged_in))
    names = [parse_checkpoint_name(name) for name in files]
    belongs = path.name == f"checkpoint-{found.tag}.json" and all(name and name.tag == found.tag for name in names)
    return found if in_this_folder and belongs else None
