"""What is in a set: which files are read into which modules, what writes them. Which set is not decided here.

Any: a training state is a tree of tensors, numbers and texts; a contract is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from nemo_lite.backends.pytorch.checkpoint.storage import (
    WHOLE,
    TrainingState,
    Weights,
    Writer,
    fill_module,
    load_training_state,
    module_writer,
    read_fitting,
    state_writer,
)
from nemo_lite.backends.pytorch.checkpoint.store.record import TRAINER
from nemo_lite.errors import CheckpointError
from nemo_lite.utils.helpers import CheckpointName, Part


class Contents(NamedTuple):
    """What a set holds for some modules.

    Attributes:
        name: of the set, for messages.
        weights: the tensors of each module by its name.
        state: the training state; None when there is none.
        contract: of the run that saved it, as ``RunContract.as_json`` gives it; empty where it is not known.
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
        return Contents(self.name, _read_all(modules, self.files), state, self.contract)


def writers_of(
    modules: Mapping[str, nn.Module | Weights], state: TrainingState | None, tag: str, suffix: str, part: Part
) -> dict[str, Writer]:
    """What writes the files of a set, or a part of each, by their names.

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


def _read_all(modules: Mapping[str, nn.Module], files: Mapping[str, str]) -> dict[str, dict[str, Tensor]]:
    fitting, problems = {}, []
    for name, module in modules.items():
        try:
            fitting[name] = read_fitting(module, files[name])
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("\n".join(problems))
    return fitting
