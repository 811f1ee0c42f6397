"""A tiny training run for the fault suite: it saves often, fails or is killed where the test says, and goes on.

    end = lives(folder, Fault(call=5, effect="kill"))    # a process that forks off a warm one

What a run does it tells in a file as it goes, which no kill undoes: ``resumed 12``, ``step 13``. Nothing here knows
which files a checkpoint has: a fault counts the calls that change something below the folder of checkpoints.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset

import nemo_lite as nemo
from nemo_lite.backends.pytorch.engine.checkpoints import Checkpoints
from nemo_lite.core.app_state import AppState
from toys.nets import BD
from toys.nets import Mse as Mse
from toys.ranks import Finished, Rank

NUM_ITEMS, BATCH = 14, 2
EPOCH = NUM_ITEMS // BATCH  # steps
STEPS, EVERY = 63, 3
DIARY, CHECKPOINTS = "diary", "checkpoints"

SEED = int(os.environ.get("NEMO_LITE_FAULT_SEED", "20261122"))

# Events of sys.addaudithook that change the disk; of "open" only those for writing.
_CHANGES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Fault:
    """What happens at the ``call``-th call that changes something below the folder of checkpoints.

    Attributes:
        call: from 1.
        effect: ``kill``, or the name of an error: ``EIO``, ``ENOSPC``.
        lasting: whether all later calls fail too, as on a disk that stays full.
    """

    call: int
    effect: str
    lasting: bool = False


NO_FAULT = Fault(0, "")


class Calls:
    """Counts calls that change something in the checkpoints below a folder; a fault happens at one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fault = str(folder), NO_FAULT
        self.count, self.happened = 0, ""
        self._fsync, self._serialize = os.fsync, safetensors.serialize_file
        os.fsync = self._fsync_or_fail  # no audit event tells of these two
        setattr(safetensors.torch, "serialize_file", self._serialize_or_fail)  # noqa: B010  # mypy: not exported
        sys.addaudithook(self._look_at)

    def expect(self, fault: Fault) -> None:
        """Count anew, with this fault ahead."""
        self.fault, self.count, self.happened = fault, 0, ""

    def _look_at(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGES and not (event == "open" and not _is_for_writing(args)):
            self._note(event, args[0])

    def _fsync_or_fail(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        self._note("fsync", os.readlink(f"/proc/self/fd/{number}"))
        self._fsync(descriptor)

    def _serialize_or_fail(self, tensors: Any, path: Any, metadata: Any = None) -> None:
        # As a full disk leaves a file that was begun.
        self._note("write", path, lambda: Path(path).write_bytes(b"half"))
        self._serialize(tensors, path, metadata)

    def _note(self, what: str, path: object, before: Callable[[], object] = bool) -> None:
        if not (str(path).startswith(self.folder) and f"/{CHECKPOINTS}" in str(path)):
            return
        self.count += 1
        if self.count == self.fault.call or (self.fault.lasting and self.count > self.fault.call > 0):
            self.happened = self.happened or f"{what} {path}"
            fault, self.fault = self.fault, NO_FAULT
            before()
            self.fault = fault
            if fault.effect == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            number = getattr(errno, fault.effect)
            raise OSError(number, os.strerror(number), str(path))


def _is_for_writing(args: tuple[Any, ...]) -> bool:
    _, mode, flags = args
    return any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)


class Points(nemo.DataLayerNM):
    output_ports = {"x": BD, "y": BD}

    def __init__(self, num_items: int = NUM_ITEMS) -> None:
        super().__init__()
        self.batch_size, self.shuffle = BATCH, True
        self.x = torch.rand(num_items, 3, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def dataset(self) -> TensorDataset:
        return TensorDataset(self.x, self.x.sum(1, keepdim=True))


class Net(nemo.TrainableNM):
    """Has all that a run must find again: weights, statistics, draws of dropout."""

    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self) -> None:
        super().__init__(name="net")
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class Diary(nemo.NeMoCallback):
    """Tells where the run is."""

    def __init__(self, folder: Path, pause: float = 0.0) -> None:
        super().__init__()
        self.file, self.pause, self.has_begun = folder / DIARY, pause, False

    def on_step_start(self, state: Any) -> None:
        if not self.has_begun:
            self.has_begun = True
            self.say(f"resumed {state.step}")

    def on_step_end(self, state: Any) -> None:
        self.say(f"step {state.step + 1}")
        if self.pause:
            time.sleep(self.pause)

    def say(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{text}\n")


def train(
    folder: Path, steps: int = STEPS, every: int = EVERY, pause: float = 0.0, tells: bool = True, **options: Any
) -> dict[str, Any]:
    """Train up to a step, from the newest checkpoint if there is one; the weights."""
    AppState().modules.clear()  # of an earlier run in this process: to look for its garbage takes longer than training
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5)
    net, (x, y) = Net(), Points()()
    callbacks: list[Any] = [Diary(folder, pause)] if tells else []
    callbacks.append(nemo.CheckpointCallback(folder / CHECKPOINTS, step_freq=every, **options))
    params = {"lr": 0.05, "max_steps": steps}
    factory.train([Mse()(out=net(x=x), target=y)], optimizer="adam_w", optimization_params=params, callbacks=callbacks)
    return {name: value.tolist() for name, value in net.state_dict().items()}


def live(folder: Path, fault: Fault | None, options: dict[str, Any], twin: str = "") -> Any:
    """In a process of its own: train, with a fault ahead. The weights, and how many calls there were."""
    if twin:
        TWINS[twin]()
    calls = Calls(folder / CHECKPOINTS)
    calls.expect(fault or NO_FAULT)
    weights = train(folder, **options)
    return weights, calls.count


def started(folder: Path, fault: Fault | None = None, twin: str = "", **options: Any) -> Rank:
    """A run in a process of its own."""
    return Rank({}, live, (folder, fault, options, twin))


def lives(folder: Path, fault: Fault | None = None, twin: str = "", **options: Any) -> Finished:
    """The same, to its end."""
    return started(folder, fault, twin, **options).wait(time.perf_counter() + 60)


def diary(folder: Path) -> list[tuple[str, int]]:
    """What runs in this folder have told: ("resumed", 12), ("step", 13)."""
    file = folder / DIARY
    lines = file.read_text().splitlines() if file.exists() else []
    return [(word, int(number)) for word, _, number in (line.partition(" ") for line in lines)]


def _forget_optimizers() -> None:
    torch.optim.Optimizer.load_state_dict = lambda self, state: None  # type: ignore[method-assign]


def _forget_the_position() -> None:
    Checkpoints.load_state_dict = _with_step_0(Checkpoints.load_state_dict)  # type: ignore[method-assign]


def _with_step_0(load: Callable[..., None]) -> Callable[..., None]:
    def load_and_forget(self: Checkpoints, state: Any, place: str = "") -> None:
        load(self, state, place)
        counters = self._state
        counters.step = counters.steps_done = counters.epoch = counters.epochs_done = 0

    return load_and_forget


def resumed_at(folder: Path) -> int:
    """The step at which the last run in this folder began."""
    return [step for word, step in diary(folder) if word == "resumed"][-1]


# What a run could do wrong: each of these is caught.
TWINS: dict[str, Callable[[], None]] = {
    "forgets the optimizers": _forget_optimizers,
    "forgets the position": _forget_the_position,
}
