"""CheckpointSet: one complete checkpoint, and the index file that lists it. No weights are read or written here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_lite.core.action_state import Best
from nemo_lite.errors import CheckpointError, UsageError
from nemo_lite.utils.helpers import parse_checkpoint_name

# Any: what a user stores in an index is JSON.

INDEX_FORMAT = "nemo_lite checkpoint"
# "about", "evaluations", "step", "epoch" and "contract" came later and may be missing: programs that do not know them
# pass them over, so the number is the same.
INDEX_VERSION = 1
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
        about: what the program that saved it says about it: configuration, labels.
        evaluations: what is known of its weights' quality: for each evaluation its ``name``, ``step`` and ``values``.
        step: steps done; ``None`` where the index does not say.
        epoch: epochs done; ``None`` where the index does not say.
        contract: of the run that saved it, as ``RunContract.as_json`` gives it; empty where the index does not say.
    """

    folder: Path
    kind: str
    number: int
    serial: int
    files: Mapping[str, int]
    staged_in: str
    about: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Sequence[Mapping[str, Any]] = ()
    step: int | None = None
    epoch: int | None = None
    contract: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.index_path)

    @property
    def tag(self) -> str:
        """``STEP-1000``."""
        return f"{self.kind}-{self.number}"

    @property
    def modules(self) -> list[str]:
        """The names of the modules in it."""
        return [name for name in map(_module_of, self.files) if name != TRAINER]

    @property
    def index_path(self) -> Path:
        """Its index file."""
        return index_path(self.folder, self.tag)

    def path_of(self, module: str) -> Path | None:
        """The file of one module (or of ``trainer``); None when it is not in the set."""
        return next((self._path(name) for name in self.files if _module_of(name) == module), None)

    def _path(self, file_name: str) -> Path:
        staged = self.folder / self.staged_in / file_name
        return staged if staged.is_file() else self.folder / file_name

    def lacking(self) -> list[str]:
        """The files that are not there, or not of the size that the index says."""
        paths = {self._path(file_name): size for file_name, size in self.files.items()}
        return [path.name for path, size in paths.items() if not path.is_file() or path.stat().st_size != size]

    def index_text(self) -> str:
        """The content of its index file.

        Raises:
            UsageError: ``about`` or ``evaluations`` hold something that JSON cannot.
        """
        content = {
            "format": INDEX_FORMAT,
            "version": INDEX_VERSION,
            "kind": self.kind,
            "number": self.number,
            "serial": self.serial,
            "staged_in": self.staged_in,
            "files": dict(self.files),
            "step": self.step,
            "epoch": self.epoch,
            "evaluations": [dict(each) for each in self.evaluations],
            "about": dict(self.about),
            "contract": dict(self.contract),
        }
        try:
            return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            wanted = "texts, finite numbers, and lists and mappings of them"
            problem = "what is said about a checkpoint cannot be stored as JSON"
            raise UsageError(problem, place=self.tag, got=str(error), wanted=wanted) from None


def index_path(folder: Path, tag: str) -> Path:
    """The index file of the set with this tag."""
    return folder / f"checkpoint-{tag}.json"


def read_index(path: Path) -> CheckpointSet | None:
    """The set that an index lists; None for any other file, so that nothing foreign is ever read or deleted.

    Raises:
        CheckpointError: an index of a later version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != INDEX_FORMAT:
            return None
        version = int(content["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if version > INDEX_VERSION:
        raise CheckpointError(
            "this checkpoint was written by a later nemo_lite",
            place=str(path),
            got=f"version {version}",
            wanted=f"at most {INDEX_VERSION}",
            remedy="update nemo_lite, or choose another folder",
        )
    try:
        found = _set_of(content, path.parent)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    in_this_folder = all(Path(name).name == name for name in (*found.files, found.staged_in))
    names = [parse_checkpoint_name(name) for name in found.files]
    belongs = path == found.index_path and all(name and name.tag == found.tag for name in names)
    return found if in_this_folder and belongs else None


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


def _set_of(content: Mapping[str, Any], folder: Path) -> CheckpointSet:
    about, evaluations, contract = (content.get(name) for name in ("about", "evaluations", "contract"))
    return CheckpointSet(
        folder,
        str(content["kind"]),
        int(content["number"]),
        int(content["serial"]),
        {str(name): int(size) for name, size in content["files"].items()},
        str(content["staged_in"]),
        about if isinstance(about, dict) else {},
        [each for each in evaluations if isinstance(each, dict)] if isinstance(evaluations, list) else [],
        content["step"] if isinstance(content.get("step"), int) else None,
        content["epoch"] if isinstance(content.get("epoch"), int) else None,
        contract if isinstance(contract, dict) else {},
    )


def _module_of(file_name: str) -> str:
    name = parse_checkpoint_name(file_name)
    return name.module if name else ""
