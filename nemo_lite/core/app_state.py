"""AppState, as in NeMo: the modules, graphs and wires that are alive, by name. It keeps none of them alive."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, finalize

from nemo_lite.base.errors import NameTakenError, TakenKeyError, UnknownKeyError

if TYPE_CHECKING:
    from nemo_lite.core.neural_types import NeuralType, NmTensor

T = TypeVar("T")


class StepModulePort(NamedTuple):
    """A port of a module in one step of a graph."""

    step_number: int
    module_name: str
    port_name: str


class Connection(NamedTuple):
    """A wire between two ports."""

    producer: StepModulePort
    consumer: StepModulePort
    ntype: NeuralType


class ObjectRegistry(Generic[T]):
    """Objects by name, for as long as something else refers to them. Two are equal when they hold the same objects.

    Several threads may use it.

    Args:
        object_type_name: what the objects are, for messages: "module", say.
    """

    def __init__(self, object_type_name: str) -> None:
        self._kind = object_type_name
        self._alive: WeakValueDictionary[str, T] = WeakValueDictionary()
        self._names: WeakKeyDictionary[T, str] = WeakKeyDictionary()
        # For each class name, a number below which none is free: thousands of modules are named in no time.
        self._first_free: dict[str, int] = {}
        # Names are looked up and taken under it. The garbage collector may run in between, and end objects that ask for
        # it again; so it is not held while the collector is called.
        self._lock = threading.RLock()

    def register(self, new_obj: T, name: str | None) -> str:
        """Take an object in, under a name that no other living object has.

        Args:
            new_obj: the object; one that is there already keeps its name.
            name: its name; without one, the class name in lower case and the first free number: ``jasperencoder0``.

        Returns:
            The name.

        Raises:
            NameTakenError: another living object has this name.
        """
        with self._lock:
            if new_obj in self._names:
                return self._names[new_obj]
            if name is None:
                base = type(new_obj).__name__.lower()
                number = next(n for n in count(self._first_free.get(base, 0)) if f"{base}{n}" not in self._alive)
                self._first_free[base] = number + 1
                finalize(new_obj, self._free, base, number).atexit = False
                name = f"{base}{number}"
                self._name(new_obj, name)
                return name
        self.rename(new_obj, name)
        return name

    def _free(self, base: str, number: int) -> None:
        # Without the lock: the collector calls it in any thread. At worst a number stays unused.
        self._first_free[base] = min(number, self._first_free.get(base, 0))

    def rename(self, obj: T, name: str) -> None:
        """Give an object that is there another name.

        Raises:
            NameTakenError: another living object has this name.
        """
        if self._alive.get(name) is obj:
            return
        if name in self._alive:
            gc.collect()  # objects that only a cycle of references holds are not in use any more
        with self._lock:
            if name in self._alive:
                problem = f'the name "{name}" is in use by another {self._kind}'
                raise NameTakenError(problem, remedy="give another name=, or none: the next free one is taken")
            self._name(obj, name)

    def _name(self, obj: T, name: str) -> None:
        if obj in self._names:
            del self._alive[self._names[obj]]
        self._alive[name] = obj
        self._names[obj] = name

    def has(self, name: str) -> bool:
        """Whether a living object has this name."""
        return name in self._alive

    def __getitem__(self, name: str) -> T:
        if name not in self._alive:
            raise UnknownKeyError(self._kind, name, self._alive)
        return self._alive[name]

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._alive.values()))

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, obj: object) -> bool:
        return obj in self._names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Iterable) and set(map(id, self)) == set(map(id, other))

    __hash__ = object.__hash__

    def clear(self) -> None:
        """Forget all objects; they live on."""
        self._alive.clear()
        self._names.clear()
        self._first_free.clear()

    def summary(self) -> str:
        """A heading and one line for each object: its name and class."""
        lines = [f" * {name} ({type(obj).__name__})" for name, obj in self._alive.items()]
        return "\n".join([f"Objects of kind {self._kind}: {len(lines)}", *lines])


class NeuralGraphManager(ObjectRegistry[T]):
    """The graphs that are alive, and the one inside whose ``with`` block the script is.

    Each thread, and each task of asyncio, has an active graph of its own.
    """

    def __init__(self) -> None:
        super().__init__("graph")
        self._active: ContextVar[T | None] = ContextVar("active graph", default=None)

    @property
    def active_graph(self) -> T | None:
        """That graph; ``None`` outside of such blocks."""
        return self._active.get()

    @active_graph.setter
    def active_graph(self, graph: T | None) -> None:
        self._active.set(graph)


class NmTensorNameRegistry:
    """The names of the wires that are alive. "loss" is taken: it stands for the sum of the losses of a training."""

    def __init__(self) -> None:
        self._wires: WeakSet[NmTensor] = WeakSet()
        self._renamed: WeakValueDictionary[str, NmTensor] = WeakValueDictionary()
        self._lock = threading.RLock()  # as that of ObjectRegistry

    @property
    def unique_names(self) -> set[str]:
        """The unique names of all wires, and "loss"."""
        with self._lock:
            wires = list(self._wires)
        return {"loss", *(wire.unique_name for wire in wires)}

    def register(self, tensor: NmTensor) -> None:
        """Take a wire in."""
        with self._lock:
            self._wires.add(tensor)

    def rename_NmTensor(self, tensor: NmTensor, new_name: str) -> None:  # noqa: N802 - NeMo's spelling
        """Let a name stand for a wire.

        Raises:
            TakenKeyError: another living wire has this name, or it is "loss".
        """
        if self._renamed.get(new_name) not in (None, tensor):
            gc.collect()  # wires and the calls that give them refer to each other
        with self._lock:
            if new_name == "loss" or self._renamed.get(new_name) not in (None, tensor):
                raise TakenKeyError(f'the name "{new_name}" is in use by another tensor', remedy="choose another")
            for name, wire in list(self._renamed.items()):
                if wire is tensor:
                    del self._renamed[name]
            self._renamed[new_name] = tensor

    def wire_named(self, name: str) -> NmTensor | None:
        """The living wire that was renamed so, or None."""
        return self._renamed.get(name)

    def __getitem__(self, tensor_name: str) -> str:
        """The unique name of the wire of this name.

        Raises:
            UnknownKeyError: no living wire has it.
        """
        if tensor_name in self._renamed:
            return self._renamed[tensor_name].unique_name
        if tensor_name in self.unique_names:
            return tensor_name
        raise UnknownKeyError("tensor", tensor_name, ["loss", *self._renamed])


# Any: modules and graphs stand above this file, and scripts set attributes of their own.


_MAKING = threading.RLock()


class Singleton(type):
    """Metaclass of classes with one object: every call gives the same one."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, object]) -> None:
        super().__init__(name, bases, namespace)
        cls._only: Any = None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls._only is None:
            with _MAKING:  # or two threads would have one each
                if cls._only is None:
                    cls._only = super().__call__(*args, **kwargs)
        return cls._only


class AppState(metaclass=Singleton):
    """The one object in which a script may look up what is alive. Further attributes that scripts set are shared.

    Args:
        device: kept as the attribute of this name.

    Attributes:
        modules: the modules that are alive, by name.
        graphs: the graphs that are alive, by name.
        tensor_names: the names of the wires that are alive.
    """

    def __init__(self, device: object = None) -> None:
        self.device = device
        self.modules: ObjectRegistry[Any] = ObjectRegistry("module")
        self.graphs: NeuralGraphManager[Any] = NeuralGraphManager()
        self.tensor_names = NmTensorNameRegistry()

    def register_module(self, module: object, name: str | None) -> str:
        """See :meth:`ObjectRegistry.register`."""
        return self.modules.register(module, name)

    def register_graph(self, graph: object, name: str | None) -> str:
        """See :meth:`ObjectRegistry.register`."""
        return self.graphs.register(graph, name)

    @property
    def active_graph(self) -> Any:
        """The graph inside whose ``with`` block the script is, or ``None``."""
        return self.graphs.active_graph

    @active_graph.setter
    def active_graph(self, graph: object) -> None:
        self.graphs.active_graph = graph

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"AppState.{name} was not set")

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            """Scripts may set any attribute."""
