"""A folder of checkpoints: which is the newest, what is in it, which may go."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.checkpoint.fitting import TrainingState
from nemo_lite.backends.pytorch.checkpoint.record import (
    TRAINER,
    CheckpointSet,
    Json,
    best_of,
    check_names,
)
from nemo_lite.backends.pytorch.checkpoint.storage import (
    WHOLE,
    ModuleWeights,
    Writer,
    load_training_state,
    module_writer,
    read_fitting,
    read_tensors,
    state_writer,
)
from nemo_lite.backends.pytorch.checkpoint.store import (
    FolderLock,
    delete_set,
    link_to_files,
    look,
    rewrite_record,
    sweep,
    write_set,
)
from nemo_lite.base.errors import CheckpointError, NemoLiteError, UsageError, did_you_mean
from nemo_lite.base.files import make_writable_folder, names_in
from nemo_lite.base.helpers import CheckpointName, CheckpointPart, newest_checkpoint_files, parse_checkpoint_name
from nemo_lite.base.verified import VerifiedFile
from nemo_lite.core.callbacks.action_state import Best
from nemo_lite.utils import logging

Kind = Literal["STEP", "EPOCH"]


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
    contract: Json

    def fill(self, modules: Mapping[str, nn.Module]) -> None:
        """Copy the weights into the modules they were read for."""
        for name, module in modules.items():
            module.load_state_dict(dict(self.weights[name]), strict=True)


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
    contract: Json

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


@dataclass(frozen=True)
class SavePlan:
    """What a set is saved as, and what its record says.

    Attributes:
        kind: what ``number`` counts.
        number: the step or epoch.
        keep: how many of the newest sets stay, at least 1.
        best: which others stay.
        about: what readers want to know without the modules: configuration, labels; JSON.
        evaluations: results of evaluations known at this time; JSON.
        contract: what the run is, for those that go on from it; JSON.
        suffix: of the files, which says their format: see :func:`save_module`.
    """

    kind: Kind
    number: int
    keep: int
    best: Best | None = None
    about: Mapping[str, object] | None = None
    evaluations: Sequence[Json] = ()
    contract: Mapping[str, object] = field(default_factory=dict)
    suffix: str = ".safetensors"

    def __post_init__(self) -> None:
        if self.kind not in ("STEP", "EPOCH") or self.number < 0 or self.keep < 1:
            raise UsageError(
                "such a checkpoint cannot be",
                got=f"kind {self.kind}, number {self.number}, keep {self.keep}",
                wanted="kind STEP or EPOCH, number from 0, keep from 1",
            )

    @property
    def folder_name(self) -> str:
        """``checkpoint-STEP-1000``."""
        return f"checkpoint-{self.kind}-{self.number}"

    def writers(
        self,
        modules: Mapping[str, nn.Module | ModuleWeights],
        state: TrainingState | None,
        part: CheckpointPart = WHOLE,
    ) -> dict[str, Writer]:
        """The writers of the files of the set, or of a part of each, by their names.

        Raises:
            CheckpointError: a state that cannot be stored.
        """

        def name_of(module: str) -> str:
            part_of_name = None if part == WHOLE else part
            return CheckpointName(module, self.kind, self.number, self.suffix, part_of_name).file_name

        writers = {name_of(name): module_writer(module, self.suffix, part) for name, module in modules.items()}
        if state is not None:
            writers[name_of(TRAINER)] = state_writer(state, self.suffix, part)
        return writers


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
    about: Json
    weights: Mapping[str, Mapping[str, Tensor]]
    step: int | None
    epoch: int | None
    evaluations: Sequence[Json]


class CheckpointFolder:
    """Saves sets of modules with a training state into one folder, and restores them.

    In ``checkpoint-STEP-<n>/`` (or ``EPOCH``): ``<Module>-STEP-<n>.safetensors`` for each module, the training state
    ``trainer-STEP-<n>.safetensors``, and ``record.json``, which lists them (or ``.pt`` instead of ``.safetensors``).
    Where each rank writes its own part of them: ``<Module>-STEP-<n>.part-<rank + 1>-of-<ranks>.safetensors``.

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

    def save(
        self, modules: Mapping[str, nn.Module | ModuleWeights], state: TrainingState | None, **plan: Any
    ) -> CheckpointSet:
        """Write one set now: :meth:`prepare` with a :class:`SavePlan` of these, and what that gives.

        Raises:
            UsageError, CheckpointError: as these two.
        """
        return self.prepare(modules, state, SavePlan(**plan))()

    def prepare(
        self,
        modules: Mapping[str, nn.Module | ModuleWeights],
        state: TrainingState | None,
        plan: SavePlan,
        part: CheckpointPart = WHOLE,
    ) -> Callable[..., CheckpointSet]:
        """See that a set can be stored; what is given back writes it, and may do so in another thread.

        Where several processes write parts of its files, it is called with the folder of :func:`store.stage`, and with
        what waits for the others and gives the files that they wrote.

        It then deletes the sets that are neither of the newest nor of the best: only files that a record lists, and
        none before the new set has been read again and is right. The disk must hold one set more than stay for a
        moment.

        Args:
            modules: they, or their weights alone, by name, which becomes part of the file's name. Their tensors must
                stay as they are until the set is written.
            state: see :func:`save_training_state`; None writes no ``trainer`` file.
            plan: what it is saved as.
            part: of each file, where other processes write the others.

        Raises:
            UsageError: a name or JSON that cannot be; when it is written: another process saves there, or the folder or
                disk cannot be written to.
            CheckpointError: a state that cannot be stored.
        """
        check_names(modules)
        writers = plan.writers(modules, state, part)
        step, epoch = ((state or {}).get(name) for name in ("step", "epoch"))
        notes = (dict(plan.about or {}), plan.evaluations, step, epoch, dict(plan.contract))
        unsaved = CheckpointSet(self.folder / plan.folder_name, plan.kind, plan.number, 0, {}, *notes)
        unsaved.record_text()  # whether JSON can hold it

        def write(
            staged: Path | None = None, of_others: Callable[[], Mapping[str, VerifiedFile]] = dict
        ) -> CheckpointSet:
            with self._opened():
                serial = 1 + look(self.folder).last_serial
                saved = write_set(replace(unsaved, serial=serial), writers, staged, of_others)
                if any(name.endswith(".pt") for name in writers):
                    link_to_files(saved)
                self._delete_all_but(saved, plan)
            return saved

        return write

    def _delete_all_but(self, saved: CheckpointSet, plan: SavePlan) -> None:
        sets = self.sets()
        kept = {
            checkpoint.tag for checkpoint in (*sets[-plan.keep :], *(best_of(sets, plan.best) if plan.best else ()))
        }
        leaving = [made for made in sets if made.tag not in kept and made.path != saved.path]
        if leaving and (problem := saved.problem(contents=True)):
            problem = f"the checkpoint was not stored as it was written: {problem}"
            raise CheckpointError(problem, place=str(saved), remedy="check the disk; older checkpoints were kept")
        for checkpoint in leaving:
            delete_set(checkpoint)

    def is_among_best(self, evaluation: Json, best: Best) -> bool:
        """Whether a set with this evaluation would be one of the best."""
        # Of equals the newer set is the better one: this one counts as older than all.
        candidate = CheckpointSet(self.folder, "STEP", 0, -1, {}, {}, [evaluation], evaluation["step"])
        return candidate in best_of([*self.sets(), candidate], best)

    def note_evaluation(self, evaluation: Json) -> None:
        """Write an evaluation into the record of the newest set of its step, where there is one."""
        of_step = [checkpoint for checkpoint in self.sets() if checkpoint.step == evaluation["step"]]
        if of_step:
            results = [result for result in of_step[-1].evaluations if result.get("name") != evaluation["name"]]
            with self._opened():
                rewrite_record(replace(of_step[-1], evaluations=[*results, evaluation]))

    def sets(self) -> list[CheckpointSet]:
        """The sets whose files are there with their sizes, oldest first. Contents are not read."""
        return [*look(self.folder).sets]

    def latest(self) -> CheckpointSet | None:
        """The last of :meth:`sets`, if any."""
        return next(reversed(self.sets()), None)

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
        if whole := self.newest_sets(1, pattern):
            return whole[0]
        place, matching = str(self.folder), f" {pattern}" if pattern else ""
        if not self.folder.is_dir():
            raise CheckpointError("no such folder", place=place, remedy="give the folder that holds the checkpoints")
        tags = [checkpoint.tag for checkpoint in self.sets()]
        raise CheckpointError(f"no complete checkpoint{matching}", place=place, got="; ".join(tags) or "none")

    def newest_sets(self, count: int, pattern: str = "") -> list[CheckpointSet]:
        """The sets saved last, at most so many, whose files are those that were written, the newest first.

        A warning names each that is damaged. None are given where there is no set of this pattern, not even a damaged
        one.

        Raises:
            CheckpointError: each is damaged, and how.
        """
        sets, damaged, _ = look(self.folder)
        problems = {path: problem for path, problem in damaged.items() if pattern in path.name}
        whole: list[CheckpointSet] = []
        for checkpoint in reversed([checkpoint for checkpoint in sets if pattern in checkpoint.tag]):
            if len(whole) == count:
                break
            problem = checkpoint.problem(contents=True)
            if not problem:
                whole.append(checkpoint)
            elif not os.path.lexists(checkpoint.path):  # its writer has just replaced or deleted it
                return self.newest_sets(count, pattern)
            else:
                problems[checkpoint.path] = problem
        if problems and not whole:
            got = "; ".join(f"{path.name}: {problem}" for path, problem in problems.items())
            remedy = "take a copy of one, or move them away and train anew"
            raise CheckpointError("every checkpoint is damaged", place=str(self.folder), got=got, remedy=remedy)
        for path, problem in problems.items():
            names = ", ".join(checkpoint.path.name for checkpoint in whole)
            logging.warning("%s is damaged and not used: %s; taking %s", path, problem, names)
        return whole

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
        checkpoint = next(iter(self.newest_sets(1, pattern)), None)
        if checkpoint is None:
            files, trainer = self._files_of_nemo(modules, pattern)
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

    def _files_of_nemo(self, modules: Mapping[str, nn.Module], pattern: str) -> tuple[dict[str, Path], Path | None]:
        """The newest ``<Module>-STEP-<n>.pt`` of each module, and the training state if all are of one step.

        Raises:
            CheckpointError: no such folder, or no file of a module.
        """
        pt_files = [name for name in names_in(self.folder) if name.endswith(".pt")]
        there = {name.module for name in map(parse_checkpoint_name, pt_files) if name}
        # NeMo names files by the class, also those of modules with a name of their own.
        classes = [name if name in there else type(module).__name__ for name, module in modules.items()]
        names = classes if len({*classes}) == len(classes) else modules
        newest = newest_checkpoint_files(names, self.folder, pattern, suffixes=(".pt",))
        trainer = self.folder / f"{TRAINER}-{'-and-'.join({name.tag for _, name in newest})}.pt"  # none of two steps
        paths = {module: path for module, (path, _) in zip(modules, newest, strict=True)}
        return paths, trainer if trainer.is_file() else None


def read_checkpoint(folder: str | Path, pattern: str = "") -> StoredCheckpoint:
    """The newest complete set of a folder, read without modules. Runs no code of the files.

    Args:
        folder: where the checkpoints are.
        pattern: only sets whose tag contains it, such as ``STEP-1000``.

    Raises:
        CheckpointError: no such folder, no complete set, or a damaged file.
    """
    newest = CheckpointFolder(folder).newest(pattern)
    weights = {name: read_tensors(path) for name in newest.modules if (path := newest.path_of(name)) is not None}
    return StoredCheckpoint(str(newest), newest.about, weights, newest.step, newest.epoch, newest.evaluations)
