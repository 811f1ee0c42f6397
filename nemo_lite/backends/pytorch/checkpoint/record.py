"""The record of a checkpoint: what it says, and which checkpoints are the best by it. No weights are read here.

A checkpoint is a folder ``checkpoint-STEP-<n>`` (or ``EPOCH``) of verified files, whose record is ``record.json``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.files import FileKind, JsonLimits, finite_or_null, json_text
from nemo_lite.base.helpers import RECORD, CheckpointName, parse_checkpoint_name, tag_of_folder
from nemo_lite.base.verified import RecordKind, VerifiedFile
from nemo_lite.core.callbacks.action_state import Best

FORMAT = "nemo_lite checkpoint"
VERSION = 3
_WITHOUT_PARTS = 2
TRAINER = "trainer"
Json: TypeAlias = "dict[str, Any]"  # what a user stores in a record
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True)
class CheckpointSet:
    """One checkpoint: the files that its record lists.

    Attributes:
        path: its folder.
        kind: whether ``number`` counts steps or epochs.
        number: the step or epoch.
        serial: position in the order of saving among the checkpoints beside it.
        files: by name.
        about: what the program that saved it says about it: configuration, labels.
        evaluations: what is known of its weights' quality: for each evaluation its ``name``, ``step`` and ``values``.
        step: steps done; ``None`` where there is no training state.
        epoch: epochs done; ``None`` where there is no training state.
        contract: of the run that saved it, as ``contract.saved`` gives it; empty where the record does not say.
    """

    path: Path
    kind: str
    number: int
    serial: int
    files: Mapping[str, VerifiedFile]
    about: Json = field(default_factory=dict)
    evaluations: Sequence[Json] = ()
    step: int | None = None
    epoch: int | None = None
    contract: Json = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def tag(self) -> str:
        """``STEP-1000``."""
        return f"{self.kind}-{self.number}"

    @property
    def modules(self) -> list[str]:
        """The names of the modules in it."""
        names = dict.fromkeys(name.module for name in _parsed(self.files))
        return [name for name in names if name != TRAINER]

    def path_of(self, module: str) -> Path | None:
        """The file of one module (or of ``trainer``), or the first of its parts; None when it is not in the set."""
        names = (name for name in _parsed(self.files) if name.module == module and name.stands_for_all)
        return next((self.path / name.file_name for name in names), None)

    def problem(self, *, contents: bool) -> str:
        """How its files differ from those that were written, or "". Without ``contents`` only sizes are compared."""
        return ", ".join(filter(None, (file.problem(self.path, contents=contents) for file in self.files.values())))

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
            return KIND.text(content)
        except (TypeError, ValueError, RecursionError) as error:
            wanted = "texts, finite numbers, and lists and mappings of them"
            problem = "what is said about a checkpoint cannot be stored as JSON"
            raise UsageError(problem, place=self.tag, got=str(error), wanted=wanted) from None


def _parsed(file_names: Iterable[str]) -> list[CheckpointName]:
    return [name for name in map(parse_checkpoint_name, file_names) if name is not None]


class _File(msgspec.Struct):
    bytes: Count
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Fields(msgspec.Struct, kw_only=True):
    """The fields of a record."""

    kind: Literal["STEP", "EPOCH"]
    number: Count
    serial: Count
    files: dict[str, _File]
    step: Count | None
    epoch: Count | None
    evaluations: list[Json]
    about: Json
    contract: Json


# A record holds a configuration, labels, a tokenizer and the run contract: kilobytes, with a tokenizer megabytes.
KIND = RecordKind(
    FileKind("the record", 64 << 20, CheckpointError),
    FORMAT,
    VERSION,
    _Fields,
    partial(json_text, indent=1),
    JsonLimits(surrogates=True),  # a name that is no UTF-8, of a script or a folder
)


def read_record(folder: Path) -> CheckpointSet:
    """The checkpoint in a folder. Its other files are not looked at.

    Raises:
        CheckpointError: there is no record, it was changed or damaged, contradicts the folder's name, or a later
            version wrote it (:class:`LaterVersionError`).
    """
    path = folder / RECORD
    if not os.path.lexists(path):
        raise CheckpointError(f"lacks {RECORD}", place=str(folder))
    record = KIND.read(path)
    files = {name: VerifiedFile(name, file.sha256, file.bytes) for name, file in record.files.items()}
    fields = msgspec.structs.asdict(record) | {"files": files}
    checkpoint = CheckpointSet(folder, **fields)
    if problem := _problem_of_names(checkpoint):
        raise CheckpointError("the record cannot be read", place=str(path), got=problem)
    if tag_of_folder(folder.name) not in (None, checkpoint.tag):  # a copy may have any name
        raise CheckpointError("the record is of another checkpoint", place=str(path), got=checkpoint.tag)
    return checkpoint


def _problem_of_names(checkpoint: CheckpointSet) -> str:
    """Which file that a record lists cannot be one of the checkpoint; "" if all can."""
    of_modules: dict[str, list[CheckpointName]] = {}
    for name in checkpoint.files:
        parsed = parse_checkpoint_name(name) if len(name) < 256 else None
        if parsed is None or parsed.tag != checkpoint.tag or parsed.file_name != name or Path(name).name != name:
            return f"a file {name!r}"
        of_modules.setdefault(parsed.module, []).append(parsed)
    for module, names in of_modules.items():
        forms = {(name.suffix, name.part.total if name.part else 0) for name in names}
        num_parts = max(total for _, total in forms)
        if num_parts and (len(forms) > 1 or len(names) != num_parts):
            return f"{len(names)} files of {module}, which is in {num_parts} parts"
    return ""


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


def best_of(sets: Sequence[CheckpointSet], best: Best) -> list[CheckpointSet]:
    """The best of some sets, the best first; of equals the newer one. Those without a rate of their own are no best."""
    scores = ((score_in(made.evaluations, made.step, best), -made.serial, made) for made in sets)
    scored = [(score, age, made) for score, age, made in scores if score is not None]
    return [made for _, _, made in sorted(scored, key=lambda entry: entry[:2])][: best.keep]


def score_in(evaluations: Sequence[Json], step: int | None, best: Best) -> float | None:
    """The value by which a set of these evaluations is judged, lower ones better; None where it was not evaluated so.

    Evaluations of another step say nothing about its weights.
    """
    for evaluation in evaluations:
        if (evaluation.get("name"), evaluation.get("step")) == (best.evaluation, step):
            values = evaluation.get("values")
            value = values.get(best.metric) if isinstance(values, Mapping) else None
            if isinstance(value, (int, float)) and math.isfinite(value):
                return -value if best.highest else value
    return None
