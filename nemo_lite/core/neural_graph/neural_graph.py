"""NeuralGraph: a recorded graph with its file, its weights and, through a backend's runner, its execution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from nemo_lite.config import load_config
from nemo_lite.core.graph import module_config
from nemo_lite.core.graph.recording import OperationMode
from nemo_lite.core.neural_graph import configuration as graph_config
from nemo_lite.core.neural_graph.recorded_graph import RecordedGraph, as_outputs
from nemo_lite.core.neural_graph.runner import GraphRunner, MakeRunner
from nemo_lite.core.neural_graph.summary import summary_of
from nemo_lite.errors import ConfigurationError, NemoLiteError

if TYPE_CHECKING:
    from nemo_lite.core.backend import DeviceType
    from nemo_lite.core.neural_types.nm_tensor import NmTensor

# Any: values of wires are the backend's own; configurations are what YAML holds.

G = TypeVar("G", bound="NeuralGraph")
Names = Sequence[str] | set[str] | None


class NeuralGraph(RecordedGraph):
    """Calls of modules, recorded inside ``with graph:``, that can be repeated, written to a file and run.

    Args:
        operation_mode: what it is for: ``OperationMode.training``, ``.evaluation`` or ``.both``.
        name: its name; by default ``neuralgraph`` and the first free number.

    Raises:
        NameTakenError: another living graph has this name.
    """

    make_runner: ClassVar[MakeRunner | None] = None
    """What runs graphs; a backend sets it when it is imported."""

    def __init__(self, operation_mode: OperationMode = OperationMode.both, name: str | None = None) -> None:
        super().__init__(operation_mode, name)
        self._runner: GraphRunner | None = None

    def summary(self) -> str:
        """Name, mode, COMPLETE and TRAINABLE or not; modules, steps, connections, inputs and outputs, each counted."""
        return summary_of(self)

    # Its file

    def serialize(self) -> dict[str, Any]:
        """What a graph file holds: ``header``, ``modules``, ``steps``, ``connections``, ``inputs`` and ``outputs``.

        Raises:
            ConfigError: a constructor argument of a module that YAML cannot hold.
            DagError: a step that takes a wire from outside of the graph.
        """
        return graph_config.serialize(self)

    def export_to_config(self, config_file: str | Path) -> None:
        """Write :meth:`serialize` as YAML; raises as it does."""
        module_config.write(self.serialize(), Path(config_file).expanduser())

    @classmethod
    def deserialize(
        cls: type[G],
        configuration: Mapping[str, Any],
        reuse_existing_modules: bool = False,
        name: str | None = None,
        overwrite_params: graph_config.Overwritten | None = None,
    ) -> G:
        """A graph made from what :meth:`serialize` gave. It is not left active.

        Args:
            configuration: the six sections.
            reuse_existing_modules: take living modules of the same names, weights and all.
            name: the graph's name.
            overwrite_params: constructor arguments that replace those of the file, by the modules' names.

        Raises:
            ConfigStructureError: an ImportError: a section is missing or does not describe a graph.
            GraphKeyError: there is a module of a name already, and it is not to be taken.
        """
        return graph_config.deserialize(cls, configuration, reuse_existing_modules, name, overwrite_params or {})

    @classmethod
    def import_from_config(
        cls: type[G],
        config_file: str | Path,
        reuse_existing_modules: bool = False,
        overwrite_params: graph_config.Overwritten | None = None,
        name: str | None = None,
    ) -> G:
        """A graph made from a YAML file; for arguments and errors see :meth:`deserialize`."""
        read = load_config(Path(config_file).expanduser(), number_keys=True)  # the steps are numbered
        return cls.deserialize(read, reuse_existing_modules, name, overwrite_params)

    # Its weights

    def save_to(self, filename: str | Path, module_names: Names = None) -> None:
        """Write the weights of its trainable modules, or of some, to one file.

        Raises:
            GraphKeyError: a name that no module has.
        """
        self._run().save_to(self, Path(filename).expanduser(), self._trainable(module_names))

    def restore_from(self, filename: str | Path, module_names: Names = None) -> None:
        """Read weights from such a file. Modules that are not in it, or not in the graph, are told in one warning.

        Raises:
            CheckpointError: the file is missing or damaged, or weights do not fit their module.
        """
        wanted = self._trainable(None) if module_names is None else list(module_names)
        self._run().restore_from(self, Path(filename).expanduser(), wanted)

    def freeze(self, module_names: Names = None) -> None:
        """Exclude the weights of its trainable modules, or of some, from training.

        Raises:
            GraphKeyError: a name that no module has.
        """
        for name in self._trainable(module_names):
            self[name].freeze()  # type: ignore[attr-defined]  # trainable modules have it

    def unfreeze(self, module_names: Names = None) -> None:
        """Include them in training again; raises as :meth:`freeze` does."""
        for name in self._trainable(module_names):
            self[name].unfreeze()  # type: ignore[attr-defined]

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """The parameters of its trainable modules, in the order of the modules."""
        return (parameter for _, parameter in self._run().parameters(self, recurse))

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, Any]]:
        """The same with their names in the modules."""
        return self._run().parameters(self, recurse)

    def _trainable(self, names: Names) -> list[str]:
        known = self.known_names(None if names is None else list(names))
        return [name for name in known if self[name].is_trainable()]

    # Running without a factory

    def to(self: G, device_type: DeviceType, use_dataparallel: bool = False) -> G:
        """Move its modules, and from now on its batches, to a device.

        Args:
            device_type: ``DeviceType.CPU``, ``.GPU`` or ``.AllGpu``.
            use_dataparallel: divide each batch among all GPUs.

        Raises:
            ConfigurationError: there is no GPU, or only one to divide among.
        """
        self._run().to(self, device_type, use_dataparallel)
        return self

    def configure_data_loader(self, batch_size: int = 1, shuffle: bool = False, **options: Any) -> None:
        """Make the loader of its data layer's items anew; ``options`` are those of ``torch.utils.data.DataLoader``.

        The data layer's own batch size is not used.

        Raises:
            ConfigurationError: the graph is not complete.
        """
        self._run().configure_data_loader(self, batch_size=batch_size, shuffle=shuffle, **options)

    def get_batch(self, yield_dict: bool = False) -> Iterator[Any]:
        """The batches of one epoch, on the graph's device.

        Args:
            yield_dict: dictionaries by port, instead of named tuples, or of the values of the only port.

        Raises:
            ConfigurationError: the graph is not complete.
        """
        self._complete_or_refuse()
        return self._run().get_batch(self, yield_dict)

    def forward(self, *batch: Any, **ports: Any) -> Any:
        """Run on one batch. A graph for evaluation runs in evaluation mode and without gradients, one for training in
        training mode, another one in the modes that its modules have.

        Args:
            *batch: what :meth:`get_batch` gave.
            **ports: or each value by its port: the data layer's output ports, or the graph's inputs.

        Returns:
            The value of the one output, or a named tuple ``NeuralGraphOutput``.

        Raises:
            UsageError: a ValueError: several batches, both forms at once, or names that are not exactly the ports.
        """
        values = self._run().forward(self, batch, ports)
        return as_outputs(list(self.outputs), values)

    def backward(self, losses: Sequence[Any] = ()) -> None:
        """Add the gradients of these losses, or of all that the last :meth:`forward` gave, to the parameters.

        Raises:
            ConfigurationError: the graph is not trainable, or nothing has been run.
        """
        if not self.is_trainable:
            got = f"mode {self.operation_mode.name}, {len(self.losses)} losses"
            raise ConfigurationError("the graph cannot be trained", place=self.name, got=got)
        self._run().backward(self, losses)

    def losses_to_train(self) -> list[NmTensor]:
        """What training minimises: the outputs that were chosen, or else every loss among the default ones.

        Raises:
            ConfigurationError: the graph is not trainable, or has no such output.
        """
        losses = self.losses
        outputs = self.outputs.tensor_list
        wanted = outputs if self.outputs.are_manual else [wire for wire in outputs if wire in losses]
        if not wanted or not self.is_trainable:
            got = f"mode {self.operation_mode.name}, outputs {', '.join(self.outputs) or 'none'}"
            remedy = 'give a graph of OperationMode.training with graph.outputs["loss"] = loss'
            raise ConfigurationError("the graph cannot be trained", place=self.name, got=got, remedy=remedy)
        return wanted

    def _complete_or_refuse(self) -> None:
        if not self.is_complete:
            got = f"inputs {', '.join(self.inputs)}" if self.inputs else "no data layer as step 0, or several"
            remedy = "run it with forward(port=values)"
            raise ConfigurationError("the graph has no data of its own", place=self.name, got=got, remedy=remedy)

    def _run(self) -> GraphRunner:
        if self._runner is None:
            if NeuralGraph.make_runner is None:
                raise NemoLiteError("no backend runs graphs", remedy="import nemo_lite")
            self._runner = NeuralGraph.make_runner()
        return self._runner
