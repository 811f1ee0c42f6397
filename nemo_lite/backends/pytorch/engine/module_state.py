"""State that evaluation must not change: modes, running statistics, generators of random numbers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from nemo_lite.backends.pytorch.data.loaders import GENERATORS, another_thread_trains
from nemo_lite.backends.pytorch.distributed.batchnorm import is_synced
from nemo_lite.backends.pytorch.distributed.comm import Comm
from nemo_lite.backends.pytorch.distributed.contract import refuse_drifted_weights
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.placement import Snapshot
from nemo_lite.backends.pytorch.precision import own_part
from nemo_lite.base.errors import MAX_LISTED, counted
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_module import NeuralModule, unique_names
from nemo_lite.utils import logging

# The states of the generators that a training step draws from, as a tree of tensors and numbers. Nothing is seeded.


# Any: a tree of tensors and numbers.

_NUMPY = "MT19937"  # the only one of numpy.random, unless a user has put in another


def generator_states(device: torch.device, modules: Mapping[str, object]) -> dict[str, Any]:
    """The states of the generators of Python, NumPy and torch, of the device, and those that modules hold.

    Args:
        device: on which the run computes; a GPU has a generator of its own. No host sync: its state is on the host.
        modules: by name.
    """
    with GENERATORS:
        version, words, gauss = random.getstate()
        numpy: dict[str, Any] = dict(np.random.get_state(legacy=False))
        states: dict[str, Any] = {
            "python": [version, torch.tensor(words), gauss],
            "numpy": _without_array(numpy) if numpy["bit_generator"] == _NUMPY else None,
            "torch": torch.get_rng_state(),
            "modules": {name: generator.get_state() for name, generator in _held(modules)},
        }
        if (own := _of_device(device)) is not None:
            states["device"] = own.get_state()
    return states


def set_generator_states(states: Mapping[str, Any], device: torch.device, modules: Mapping[str, object]) -> None:
    """Put back what :func:`generator_states` gave. What the states lack (a GPU's, from a run on a CPU) stays."""
    with GENERATORS:
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words.tolist()), gauss))
        if (numpy := states.get("numpy")) is not None:
            key = numpy["key"].numpy().astype(np.uint32)
            np.random.set_state((_NUMPY, key, numpy["position"], numpy["has_gauss"], numpy["gauss"]))
        torch.set_rng_state(states["torch"])
        own, saved = _of_device(device), states.get("device")
        if own is not None and saved is not None:
            own.set_state(saved)
        held = states.get("modules", {})
        for name, generator in _held(modules):
            if name in held:
                generator.set_state(held[name])


# What somebody found and will put back, by what it is of.
_Found: TypeAlias = "dict[Any, Any]"
_generators_aside: list[_Found] = []
_OF_PROCESS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "python": (random.getstate, random.setstate),
    "numpy": (lambda: np.random.get_state(legacy=False), np.random.set_state),
    "torch": (torch.get_rng_state, torch.set_rng_state),
}


@contextmanager
def generators_set_aside(device: torch.device, modules: Mapping[str, object]) -> Iterator[None]:
    """Inside, what is drawn leaves the generators of the run as they are.

    Several may be open at once, one inside the other or in several threads, and end in any order. While another thread
    trains, only those of the modules are put back.
    """
    own = _of_device(device)
    with GENERATORS:
        found: _Found = {name: read() for name, (read, _) in _OF_PROCESS.items()}
        for generator in (own, *(held for _, held in _held(modules))):
            if generator is not None:
                found[generator] = generator.get_state()
        _leave_to_training(found, own)
        _generators_aside.append(found)
    try:
        yield
    finally:
        with GENERATORS:
            _leave_to_training(found, own)
            for generator, state in _to_put_back(_generators_aside, found).items():
                put_back = generator.set_state if isinstance(generator, torch.Generator) else _OF_PROCESS[generator][1]
                put_back(state)


def _leave_to_training(found: _Found, of_device: torch.Generator | None) -> None:
    """Forget the states of the generators from which another thread's training draws."""
    if another_thread_trains():
        for generator in (*_OF_PROCESS, of_device):
            found.pop(generator, None)


def _to_put_back(entries: list[_Found], found: _Found) -> _Found:
    """End one of the entries that are open, which stand in the order in which they began.

    Returns:
        What nobody else has found. Of the rest, the next one that began gets what this one found, to put it back.
    """
    place = next(index for index, entry in enumerate(entries) if entry is found)
    del entries[place]
    later, own = entries[place:], {}
    for key, value in found.items():
        heir = next((entry for entry in later if key in entry), None)
        if heir is None:
            own[key] = value
        else:
            heir[key] = value
    return own


def _without_array(numpy: Mapping[str, Any]) -> dict[str, Any]:
    key = torch.from_numpy(numpy["state"]["key"].astype(np.int64))
    position, has_gauss = int(numpy["state"]["pos"]), int(numpy["has_gauss"])
    return {"key": key, "position": position, "has_gauss": has_gauss, "gauss": float(numpy["gauss"])}


def _of_device(device: torch.device) -> torch.Generator | None:
    """The default generator of a device, ``None`` for the CPU's, which is torch's."""
    # The CPU and the meta device have none there.
    generators: Any = getattr(getattr(torch, device.type, None), "default_generators", None)
    if device.type == "cpu" or not generators:
        return None
    generator: torch.Generator = generators[device.index or 0]
    return generator


def _held(modules: Mapping[str, object]) -> Iterator[tuple[str, torch.Generator]]:
    """The generators that are attributes of modules or of their parts, by name."""
    for name, module in modules.items():
        for path, part in module.named_modules() if isinstance(module, nn.Module) else ():
            for attribute, value in vars(part).items():
                if isinstance(value, torch.Generator):
                    yield ".".join(filter(None, (name, path, attribute))), value


# Modes and running statistics of modules that several DAGs share: set for an action, put back after it.


def modules_of(dag: Dag) -> list[nn.Module]:
    """The modules of a DAG that run on torch."""
    return [module for module in dag.modules.values() if isinstance(module, nn.Module)]


def set_training(modules: Iterable[nn.Module]) -> None:
    """Put modules into training mode. Frozen ones, and parts that a user put into evaluation mode, stay as they are.

    Where all of a module is in evaluation mode, as after loading, nothing says which parts a user wants there: all but
    the frozen ones are put into training mode.
    """
    for module in modules:
        if module.training or _is_frozen(module):
            continue
        parts = dict(module.named_modules())
        if any(part.training for part in parts.values()):
            module.training = True
            _tell_of_evaluated_parts(module, parts)
            continue
        module.train()
        for part in parts.values():
            if _is_frozen(part):
                part.eval()


def _tell_of_evaluated_parts(module: nn.Module, parts: Mapping[str, nn.Module]) -> None:
    names = [name for name, part in parts.items() if not part.training and not _is_frozen(part)]
    if names:
        listed = ", ".join([*names[:MAX_LISTED], *(["..."] if len(names) > MAX_LISTED else [])])
        label = module.label if isinstance(module, NeuralModule) else type(module).__name__
        text = "%s: %s in evaluation mode, which training leaves there: %s; call train() of the module for all"
        logging.warning(text, label, counted(len(names), "part"), listed)


def _is_frozen(module: nn.Module) -> bool:
    return isinstance(module, TrainableNM) and module.is_frozen()


_modes_aside: list[_Found] = []
_MODES = threading.RLock()


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Evaluation mode inside, and every part's own mode again afterwards.

    Several may be open at once, one inside the other or in several threads, and end in any order: a part has its own
    mode again when nobody evaluates it any more.
    """
    seen: set[nn.Module] = set()
    parts = [part for module in modules for _, part in module.named_modules(seen)]
    with _MODES:
        found: _Found = {part: part.training for part in parts}
        _modes_aside.append(found)
        _set_modes((part, False) for part in parts)
    try:
        yield
    finally:
        with _MODES:
            _set_modes(_to_put_back(_modes_aside, found).items())


def _set_modes(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Write only what differs: writing an attribute of a module takes much longer than reading it."""
    for part, training in modes:
        if part.training != training:
            part.training = training


class RunningStatistics:
    """Means, variances and counts that a forward in training mode moves, as they were before it.

    A NaN in one batch would stay in them for ever, and evaluation reads them.

    Args:
        modules: what runs; every normalisation layer in them is looked after.
        own_only: but not those whose statistics are those of several ranks.
    """

    def __init__(self, modules: Iterable[nn.Module], own_only: bool = False) -> None:
        parts = (part for module in modules for part in module.modules() if isinstance(part, _NormBase))
        layers = {part: None for part in parts if not (own_only and is_synced(part))}
        self._buffers = list(dict.fromkeys(buffer for layer in layers for buffer in layer.buffers(recurse=False)))
        self._before = Snapshot(self._buffers)

    def keep(self) -> None:
        """Remember the statistics as they are."""
        self._before.keep()

    def make_equal(self, comm: Comm) -> None:
        """Make means and variances their mean over the ranks, and remember those of before. All ranks call it."""
        self.keep()
        comm.average([buffer for buffer in self._buffers if buffer.is_floating_point()])

    def put_back(self) -> None:
        """Make them what they were when :meth:`keep` was called."""
        self._before.put_back()

    def put_back_where(self, flag: torch.Tensor) -> None:
        """The same if ``flag``, one number on the device, is not 0; the host does not learn which."""
        self._before.put_back_where(flag)


def make_statistics_equal(modules: Iterable[nn.Module], comm: Comm) -> None:
    """Give all ranks the mean of their statistics, for good.

    Raises:
        DistributedError: the ranks' weights have drifted apart.
    """
    modules = list(modules)
    refuse_drifted_weights(modules, comm)
    RunningStatistics(modules).make_equal(comm)


@contextmanager
def mean_statistics(modules: Iterable[nn.Module], comm: Comm) -> Iterator[None]:
    """Inside, normalisation layers have the mean of the ranks' statistics; afterwards each rank has its own again.

    So an evaluation, however often it comes, leaves the training as it was.

    Raises:
        DistributedError: the ranks' weights have drifted apart.
    """
    modules = list(modules)
    refuse_drifted_weights(modules, comm)
    statistics = RunningStatistics(modules)
    statistics.make_equal(comm)
    try:
        yield
    finally:
        statistics.put_back()


def weights_not_finite(modules: Iterable[tuple[str, nn.Module]]) -> list[str]:
    """The names of the parameters with a NaN or an infinity; of divided ones, in this rank's part. A host sync.

    Args:
        modules: with their names for messages.
    """
    parameters = ((f"{label}.{name}", own) for label, module in modules for name, own in module.named_parameters())
    named = [(name, own) for name, own in parameters if not own.is_meta]  # a rehearsal's have no values
    if not named:
        return []
    with torch.no_grad():
        are_finite = torch.stack([own_part(parameter).isfinite().all() for _, parameter in named]).tolist()
    return [name for (name, _), is_finite in zip(named, are_finite, strict=True) if not is_finite]


def named_weighted_modules(modules: Iterable[NeuralModule]) -> dict[str, nn.Module]:
    """The modules with something to save, by the names they are saved under.

    Raises:
        CheckpointError: two of one name.
    """
    named = unique_names(module for module in modules if isinstance(module, nn.Module) and module.state_dict())
    return {name: module for name, module in named.items() if isinstance(module, nn.Module)}
