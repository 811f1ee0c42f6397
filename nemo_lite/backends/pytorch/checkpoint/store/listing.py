"""Which checkpoints are in a folder, in their order, and what is wrong with damaged ones. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nemo_lite.backends.pytorch.checkpoint.store.commit import folders_of_sets
from nemo_lite.backends.pytorch.checkpoint.store.flat_sets import read_index
from nemo_lite.backends.pytorch.checkpoint.store.record import CheckpointSet, LaterVersionError, read_record
from nemo_lite.errors import CheckpointError
from nemo_lite.utils.helpers import RECORD


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
    """
    alone = (folder / RECORD).is_file()
    readers: dict[Path, Callable[[Path], CheckpointSet]] = {}
    readers.update(dict.fromkeys([folder] if alone else folders_of_sets(folder), read_record))
    readers.update(dict.fromkeys(sorted(folder.glob("checkpoint-*.json")), read_index))
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
