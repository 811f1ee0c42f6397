"""AppState: NeMo's one object for what scripts share. Only names and weak registries are in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_lite.utils.alive.registries import NeuralGraphManager, NmTensorNameRegistry, ObjectRegistry

# Any: modules and graphs are the core's, and scripts set attributes of their own.


class Singleton(type):
    """Metaclass of classes with one object: every call gives the same one."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls._only: Any = None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls._only is None:
            cls._only = super().__call__(*args, **kwargs)
        return cls._only


class AppState(metaclass=Singleton):
    """What a script may look up: the modules, graphs and wires that are alive. It keeps none of them alive.

    Scripts may set further attributes; they are shared, because there is one object.

    Args:
        device: kept as the attribute of this name.

    Attributes:
        modules: the modules that are alive, by name.
        tensor_names: the names of the wires that are alive.
    """

    def __init__(self, device: object = None) -> None:
        self.device = device
        self.modules: ObjectRegistry[Any] = ObjectRegistry("module")
        self.tensor_names = NmTensorNameRegistry()
        self._graphs: NeuralGraphManager[Any] = NeuralGraphManager()

    @property
    def graphs(self) -> NeuralGraphManager[Any]:
        """The graphs that are alive, by name."""
        return self._graphs

    def register_module(self, module: Any, name: str | None) -> str:
        """See :meth:`ObjectRegistry.register`."""
        return self.modules.register(module, name)

    def register_graph(self, graph: Any, name: str | None) -> str:
        """See :meth:`ObjectRegistry.register`."""
        return self._graphs.register(graph, name)

    @property
    def active_graph(self) -> Any:
        """The graph inside whose ``with`` block the script is, or ``None``."""
        return self._graphs.active_graph

    @active_graph.setter
    def active_graph(self, graph: Any) -> None:
        self._graphs.active_graph = graph

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"AppState.{name} was not set")

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            """Scripts may set any attribute."""
