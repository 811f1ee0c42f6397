"""A folder of checkpoints: which is the newest, what is in it, which may go, averages of several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.checkpoint.storage import (
    WHOLE,
    TrainingState,
    Weights,
    Writer,
    files_of_nemo,
    fill_module,
    load_training_state,
    module_writer,
    read_fitting,
    read_tensors,
    state_writer,
    without_index,
)
from nemo_lite.backends.pytorch.checkpoint.store import (
    TRAINER,
    CheckpointSet,
    FolderLock,
    StoredFile,
    best_of,
    check_names,
    delete_set,
    link_to_files,
    look,
    rewrite_record,
    score_in,
    score_of,
    stage,
    sweep,
    write_set,
)
from nemo_lite.backends.pytorch.checkpoint.tensors import parameters_of_state
from nemo_lite.base.errors import CheckpointError, NemoLiteError, UsageError, did_you_mean
from nemo_lite.base.files import make_writable_folder, names_in
from nemo_lite.base.helpers import CheckpointName, Part, parse_checkpoint_name
from nemo_lite.core.callbacks.action_state import Best
from nemo_lite.utils import logging

# What is in a set: which files are read into which modules, what writes them. Which set is not decided here.
# Any: a training state is a tree of tensors, numbers and texts; a contract is JSON.


class Contents(NamedTuple):
    """The contents of a set for some modules.

    Attributes:
        name: of the set, for messages.
        weights: the tensors of each module by its name.
        state: the training state; None when there is none.
        contract: of the run that saved it, as ``contract.saved`` gives it; empty where it is not known.
    """

    name: str
    weights: Mapping[str, Mapping[str, Tensor]]
    state: TrainingState | None
    contract: Mapping[str, Any]

    def fill(self, modules: Mapping[str, nn.Module]) -> None:
        """Copy the weights into the modules they were read for."""
        for name, module in modules.items():
            fill_module(module, self.weights[name])


class Chosen(NamedTuple):
    """The files from which some modules are restored; the values travel between ranks.

    Attributes:
        name: of the set, for messages.
        files: of each module by its name: the file, or the first of its parts.
        state: of the training state, likewise; "" when there is none.
        contract: as in :class:`Contents`.
    """

    name: str
    files: Mapping[str, str]
    state: str
    contract: Mapping[str, Any]

    def read(self, modules: Mapping[str, nn.Module], optimizers: Sequence[Optimizer] = ()) -> Contents:
        """Read them, compared with the modules.

        Of weights that are divided among the ranks, and of what optimizers keep for them, this rank's piece is read.

        Raises:
            CheckpointError: files that do not fit: all problems at once.
        """
        state = load_training_state(self.state, optimizers) if self.state else None
        weights, problems = {}, []
        for name, module in modules.items():
            try:
                weights[name] = read_fitting(module, self.files[name])
            except CheckpointError as error:
                problems.append(str(error))
        if problems:
            raise CheckpointError("\n".join(problems))
        return Contents(self.name, weights, state, self.contract)


def writers_of(
    modules: Mapping[str, nn.Module | Weights], state: TrainingState | None, tag: str, suffix: str, part: Part
) -> dict[str, Writer]:
    """The writers of the files of a set, or of a part of each, by their names.

    Raises:
        CheckpointError: a state that cannot be stored.
    """

    def name_of(module: str) -> str:
        kind, _, number = tag.partition("-")
        return CheckpointName(module, kind, int(number), suffix, None if part == WHOLE else part).file_name

    writers = {name_of(name): module_writer(module, suffix, part) for name, module in modules.items()}
    if state is not None:
        writers[name_of(TRAINER)] = state_writer(state, suffix, part)
    return writers


# Checkpoint folders: which checkpoint is the newest, which may go, what is in it. Formats and renames are elsewhere.
# In ``checkpoint-STEP-<n>/`` (or ``EPOCH``): ``<Module>-STEP-<n>.safetensors`` for each module, the training state
# ``trainer-STEP-<n>.safetensors``, and ``record.json``, which lists them (or ``.pt`` instead of ``.safetensors``).
# Where each rank writes its own part of them: ``<Module>-STEP-<n>.part-<rank + 1>-of-<ranks>.safetensors``, see
# `tensors`.


Kind = Literal["STEP", "EPOCH"]


class StoredCheckpoint(NamedTuple):
    """A checkpoint read without its modules.

    Attributes:
        name: folder and tag, for messages.
        about: what the program that saved it says about it; empty where it said nothing.
        weights: the tensors of each module, on the CPU, by the module's name and their own.
        step: steps done; ``None`` where the set has no training state.
        epoch: epochs done; ``None`` where the set has no training state.
        evaluations: for each evaluation known of it, its ``name``, ``step`` and ``values``.
    """

    name: str
    about: Mapping[str, Any]
    weights: Mapping[str, Mapping[str, Tensor]]
    step: int | None
    epoch: int | None
    evaluations: Sequence[Mapping[str, Any]]


class CheckpointFolder:
    """Saves sets of modules with a training state into one folder, and restores them.

    A process may be killed at any moment: the newest complete set stays readable, also while a set of the same number
    is written again. One process saves, which a lock sees to; any number may read.

    Args:
        folder: created at the first save; for reading also the folder of a single checkpoint.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self._lock = FolderLock(self.folder)

    def open(self) -> None:
        """Create the folder, keep other processes from saving there until :meth:`close`, and sweep it.

        Where it is open already nothing happens: this process may be writing there.

        Raises:
            UsageError: it cannot be written to, or another process saves there: which one.
        """
        if self._lock.is_held:
            return
        make_writable_folder(self.folder)
        self._lock.take()
        sweep(self.folder)

    def close(self) -> None:
        """Let other processes save there."""
        self._lock.release()

    def save(
        self, modules: Mapping[str, nn.Module | Weights], state: TrainingState | None, **how: Any
    ) -> CheckpointSet:
        """Write one set now: :meth:`prepare`, and what that gives.

        Raises:
            UsageError, CheckpointError: as these two.
        """
        return self.prepare(modules, state, **how)()

    def prepare(
        self,
        modules: Mapping[str, nn.Module | Weights],
        state: TrainingState | None,
        *,
        kind: Kind,
        number: int,
        keep: int,
        best: Best | None = None,
        about: Mapping[str, Any] | None = None,
        evaluations: Sequence[Mapping[str, Any]] = (),
        contract: Mapping[str, Any] | None = None,
        suffix: str = ".safetensors",
        part: Part = WHOLE,
    ) -> Callable[..., CheckpointSet]:
        """See that a set can be stored; what is given back writes it, and may do so in another thread.

        Where several processes write parts of its files, it is called with the folder of :meth:`stage`, and with what
        waits for the others and gives the files that they wrote.

        It then deletes the sets that are neither of the newest ``keep`` nor of the best: only files that a record
        lists, and none before the new set has been read again and is right. The disk must hold one set more than stay
        for a moment.

        Args:
            modules: they, or their weights alone, by name, which becomes part of the file's name. Their tensors must
                stay as they are until the set is written.
            state: see :func:`save_training_state`; None writes no ``trainer`` file.
            kind: what ``number`` counts.
            number: the step or epoch.
            keep: how many of the newest sets stay, at least 1.
            best: which others stay.
            about: what readers want to know without the modules: configuration, labels; JSON.
            evaluations: results of evaluations known at this time; JSON.
            contract: what the run is, for those that go on from it; JSON.
            suffix: of the files, which says their format: see :func:`save_module`.
            part: of each file, where other processes write the others.

        Raises:
            UsageError: a name, number, ``keep`` or JSON that cannot be; when it is written: another process saves
                there, or the folder or disk cannot be written to.
            CheckpointError: a state that cannot be stored.
        """
        check_names(modules)
        if kind not in ("STEP", "EPOCH") or number < 0 or keep < 1:
            raise UsageError(
                "such a checkpoint cannot be",
                got=f"kind {kind}, number {number}, keep {keep}",
                wanted="kind STEP or EPOCH, number from 0, keep from 1",
            )
        tag = f"{kind}-{number}"
        writers = writers_of(modules, state, tag, suffix, part)
        step, epoch = ((state or {}).get(name) for name in ("step", "epoch"))
        notes = (about or {}, evaluations, step, epoch, contract or {})
        wanted = CheckpointSet(self.folder / f"checkpoint-{tag}", kind, number, 0, {}, *notes)
        wanted.record_text()  # whether JSON can hold it
        return lambda *shared: self._write(wanted, writers, keep, best, *shared)

    def stage(self, kind: Kind, number: int) -> Path:
        """A folder into which several processes write the files of one set. The folder of checkpoints is open.

        Raises:
            UsageError: it cannot be made.
        """
        return stage(self.folder.absolute() / f"checkpoint-{kind}-{number}")

    def is_among_best(self, evaluation: Mapping[str, Any], best: Best) -> bool:
        """Whether a set with this evaluation would be one of the best."""
        score = score_in([evaluation], evaluation["step"], best)
        stored = (score_of(checkpoint, best) for checkpoint in best_of(self.sets(), best))
        scores = [value for value in stored if value is not None]
        return score is not None and (len(scores) < best.keep or score < max(scores))

    def note_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """Write an evaluation into the record of the newest set of its step, where there is one."""
        of_step = [checkpoint for checkpoint in self.sets() if checkpoint.step == evaluation["step"]]
        if of_step and not of_step[-1].is_flat:
            results = [result for result in of_step[-1].evaluations if result.get("name") != evaluation["name"]]
            with self._opened():
                rewrite_record(replace(of_step[-1], evaluations=[*results, evaluation]))

    def sets(self) -> list[CheckpointSet]:
        """The sets whose files are there with their sizes, oldest first. Contents are not read."""
        return [*look(self.folder).sets]

    def latest(self, pattern: str = "") -> CheckpointSet | None:
        """The last of :meth:`sets` whose tag contains ``pattern`` (such as ``EPOCH``), if any."""
        return next((checkpoint for checkpoint in reversed(self.sets()) if pattern in checkpoint.tag), None)

    def newest_step(self) -> int | None:
        """The step of the last of :meth:`sets`, or of NeMo's files; None where there is none, or it cannot be read."""
        try:
            latest = self.latest()
            if latest is not None:
                return latest.number if latest.step is None and latest.kind == "STEP" else latest.step
            names = map(parse_checkpoint_name, names_in(self.folder))
            return max((name.number for name in names if name and name.kind == "STEP"), default=None)
        except (NemoLiteError, OSError):
            return None

    def newest(self, pattern: str = "") -> CheckpointSet:
        """The set saved last whose files are those that were written. A warning names each that is damaged.

        Raises:
            CheckpointError: no such folder, or no such set in it: what is wrong with each.
        """
        checkpoint = self._newest(pattern)
        if checkpoint is not None:
            return checkpoint
        place, matching = str(self.folder), f" {pattern}" if pattern else ""
        if not self.folder.is_dir():
            raise CheckpointError("no such folder", place=place, remedy="give the folder that holds the checkpoints")
        tags = [checkpoint.tag for checkpoint in self.sets()] or without_index(self.folder)
        raise CheckpointError(f"no complete checkpoint{matching}", place=place, got="; ".join(tags) or "none")

    def is_empty(self) -> bool:
        """Whether there is nothing to restore: neither a set, complete or damaged, nor a checkpoint of NeMo's."""
        names = map(parse_checkpoint_name, names_in(self.folder))
        return not any(name and name.suffix in (".pt", ".safetensors") for name in names) and not any(look(self.folder))

    def read(self, modules: Mapping[str, nn.Module], pattern: str = "") -> Contents:
        """Choose a set and read it: see :meth:`choose` for arguments and errors.

        Raises:
            CheckpointError: files that do not fit: all problems at once.
        """
        return self.choose(modules, pattern).read(modules)

    def choose(self, modules: Mapping[str, nn.Module], pattern: str = "") -> Chosen:
        """The newest complete set, or NeMo's ``<Module>-STEP-<n>.pt`` when there is no set.

        Args:
            modules: by the names under which they were saved; the set may hold more.
            pattern: only sets whose tag contains it, such as ``STEP-1000``.

        Raises:
            CheckpointError: no complete set, or one that lacks a module.
        """
        checkpoint = self._newest(pattern)
        if checkpoint is None:
            files, trainer = files_of_nemo(self.folder, modules, pattern)
        else:
            files = {name: path for name in modules if (path := checkpoint.path_of(name)) is not None}
            trainer = checkpoint.path_of(TRAINER)
            missing = [f"{name}{did_you_mean(name, checkpoint.modules)}" for name in modules if name not in files]
            if missing:
                raise CheckpointError(
                    f"checkpoint {checkpoint.tag} has no {', '.join(missing)}",
                    place=str(checkpoint.path.parent),
                    got=", ".join(checkpoint.modules) or "no modules",
                )
        of_modules = {name: str(path.absolute()) for name, path in files.items()}
        of_state = str(trainer.absolute()) if trainer else ""
        contract = checkpoint.contract if checkpoint else {}
        return Chosen(str(checkpoint or self.folder), of_modules, of_state, contract)

    def _newest(self, pattern: str) -> CheckpointSet | None:
        """As :meth:`newest`, or None where there is no set of this pattern, not even a damaged one."""
        sets, damaged, _ = look(self.folder)
        problems = {path: problem for path, problem in damaged.items() if pattern in path.name}
        for checkpoint in reversed([checkpoint for checkpoint in sets if pattern in checkpoint.tag]):
            path, problem = checkpoint.path, checkpoint.problem(contents=True)
            if not problem:
                for other, other_problem in problems.items():
                    logging.warning("%s is damaged and not used: %s; taking %s", other, other_problem, path.name)
                return checkpoint
            if not os.path.lexists(path):  # its writer has just replaced or deleted it
                return self._newest(pattern)
            problems[path] = problem
        if problems:
            got = "; ".join(f"{path.name}: {problem}" for path, problem in problems.items())
            remedy = "take a copy of one, or move them away and train anew"
            raise CheckpointError("every checkpoint is damaged", place=str(self.folder), got=got, remedy=remedy)
        return None

    def _write(
        self,
        wanted: CheckpointSet,
        writers: Mapping[str, Writer],
        keep: int,
        best: Best | None,
        staged: Path | None = None,
        of_others: Callable[[], Mapping[str, StoredFile]] = dict,
    ) -> CheckpointSet:
        with self._opened():
            serial = 1 + look(self.folder).last_serial
            saved = write_set(replace(wanted, serial=serial), writers, staged, of_others)
            if any(name.endswith(".pt") for name in writers):
                link_to_files(saved)
            self._delete_all_but(saved, keep, best)
        return saved

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Around what changes the folder: it is open, also where nobody opened it for longer."""
        if self._lock.is_held:  # and swept when it was opened; a sweep now would remove what others are writing
            yield
            return
        self.open()
        try:
            yield
        finally:
            self.close()

    def _delete_all_but(self, saved: CheckpointSet, keep: int, best: Best | None) -> None:
        sets = self.sets()
        kept = {checkpoint.tag for checkpoint in (*sets[-keep:], *(best_of(sets, best) if best else ()))}
        leaving = [made for made in sets if made.tag not in kept and made.path != saved.path]
        if leaving and (problem := saved.problem(contents=True)):
            problem = f"the checkpoint was not stored as it was written: {problem}"
            raise CheckpointError(problem, place=str(saved), remedy="check the disk; older checkpoints were kept")
        for other in leaving:
            delete_set(other)


def read_checkpoint(folder: str | Path, pattern: str = "") -> StoredCheckpoint:
    """The newest complete set of a folder, read without modules. Runs no code of the files.

    Args:
        folder: where the checkpoints are.
        pattern: only sets whose tag contains it, such as ``STEP-1000``.

    Raises:
        CheckpointError: no such folder, no complete set, or a damaged file.
    """
    newest = CheckpointFolder(folder).newest(pattern)
    paths = {name: path for name in newest.modules if (path := newest.path_of(name)) is not None}
    step, epoch = newest.step, newest.epoch
    trainer = newest.path_of(TRAINER)
    if trainer is not None and step is None:  # an index of before they were in it
        state = load_training_state(trainer)
        step, epoch = state.get("step"), state.get("epoch")
    weights = {name: read_tensors(path) for name, path in paths.items()}
    return StoredCheckpoint(str(newest), newest.about, weights, step, epoch, newest.evaluations)


# The mean of the weights of a folder's newest checkpoints. Statistics of normalisation are not averaged here.


class MeanWeights(NamedTuple):
    """Parameters of modules, averaged over checkpoints.

    Attributes:
        tensors: by the module's name and their own, in float32.
        steps: the steps after which the checkpoints were saved.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    steps: tuple[int, ...]


def mean_of_newest(folder: str | Path, modules: Mapping[str, nn.Module], count: int) -> MeanWeights:
    """The mean of each parameter over the newest ``count`` complete checkpoints, or over all if there are fewer.

    A warning names each that is damaged.

    Args:
        folder: where the checkpoints are.
        modules: by the names under which they were saved.
        count: how many, at least 1.

    Raises:
        CheckpointError: no complete checkpoint, or one that does not fit the modules.
    """
    listing = look(Path(folder).expanduser())
    sets: list[CheckpointSet] = []
    damaged = {**listing.damaged}
    for checkpoint in reversed(listing.sets):
        if len(sets) == count:
            break
        if problem := checkpoint.problem(contents=True):
            damaged[checkpoint.path] = problem
        else:
            sets.insert(0, checkpoint)
    if not sets:
        got = "; ".join(f"{path.name}: {problem}" for path, problem in damaged.items())
        raise CheckpointError("there is no checkpoint to average", place=str(folder), got=got)
    for place, problem in damaged.items():
        logging.warning("%s is damaged and not averaged: %s", place, problem)
    sums: dict[str, dict[str, Tensor]] = {name: {} for name in modules}
    for checkpoint in sets:  # one at a time: memory holds one checkpoint and the sums
        for module_name, module in modules.items():
            path = checkpoint.path_of(module_name)
            if path is None:
                raise CheckpointError(f"checkpoint {checkpoint.tag} has no {module_name}", place=str(folder))
            stored, totals = read_fitting(module, path), sums[module_name]
            for name in parameters_of_state(module):
                value = stored[name].to(torch.float32)
                totals[name] = totals[name].add_(value) if name in totals else value.clone()
    for total in (total for totals in sums.values() for total in totals.values()):
        total.div_(len(sets))
    steps = (checkpoint.number if checkpoint.step is None else checkpoint.step for checkpoint in sets)
    return MeanWeights(sums, tuple(steps))
