"""NeMoModel: several modules with one call, saved to and loaded from one `.nemo` file. No torch in this file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nemo_lite.base.config import parse_config
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.nemo_archive import CONFIG_0, SUFFIX, NemoArchive, write_archive
from nemo_lite.core.neural_module import NeuralModule, unique_names, write_configuration
from nemo_lite.core.ports import OperationMode
from nemo_lite.core.ports import PretrainedModelInfo as PretrainedModelInfo

# Any: values of wires, and what constructors take.

M = TypeVar("M", bound="NeMoModel")


class NeMoModel(NeuralModule):
    """Several modules with one call. Subclasses implement ``modules``, ``train_call`` and ``eval_call``.

    The call goes to ``eval_call`` after :meth:`eval`, else to ``train_call``.
    """

    _mode = OperationMode.training

    @property
    def modules(self) -> Sequence[NeuralModule]:
        """Its modules, in the order of the data."""
        raise NotImplementedError(f"{type(self).__name__} has no modules")

    def train_call(self, **wires: Any) -> Any:
        """Connect the modules for training."""
        raise NotImplementedError(f"{type(self).__name__} has no train_call")

    def eval_call(self, **wires: Any) -> Any:
        """Connect the modules for evaluation."""
        raise NotImplementedError(f"{type(self).__name__} has no eval_call")

    def __call__(self, **wires: Any) -> Any:
        """Connect the modules, as the mode asks for."""
        return self.eval_call(**wires) if self._mode is OperationMode.evaluation else self.train_call(**wires)

    @property
    def operation_mode(self) -> OperationMode:
        """Whether a call connects for training or for evaluation."""
        return self._mode

    @operation_mode.setter
    def operation_mode(self, mode: OperationMode) -> None:
        if mode is OperationMode.evaluation:
            self.eval()
        else:
            self.train()

    @property
    def num_weights(self) -> int:
        return sum(module.num_weights for module in self.modules)

    @property
    def train_graph(self) -> Any:
        """None: a call makes its graph."""
        return None

    @property
    def eval_graph(self) -> Any:
        """None: a call makes its graph."""
        return None

    def is_trainable(self) -> bool:
        """Whether one of its modules is."""
        return any(module.is_trainable() for module in self.modules)

    def train(self) -> None:
        """Put the call and every module in training mode."""
        self._mode = OperationMode.training
        for module in self.modules:
            getattr(module, "train", _do_nothing)()

    def eval(self) -> None:
        """Put the call and every module in evaluation mode."""
        self._mode = OperationMode.evaluation
        for module in self.modules:
            getattr(module, "eval", _do_nothing)()

    def save_to(
        self, output_file_name: str, output_folder: str | None = None, optimize_for_deployment: bool = False
    ) -> str:
        """Write configuration and weights to one ``.nemo`` file, atomically; gives its path.

        Args:
            output_file_name: the file; ``.nemo`` is added where it is missing.
            output_folder: where; by default what the name says. It is created.
            optimize_for_deployment: not here: ``deployment_export`` writes ONNX files.

        Raises:
            UsageError: the file cannot be written, or ONNX is asked for.
            ConfigError: an argument of the constructor that YAML cannot hold.
        """
        if optimize_for_deployment:
            remedy = "export the modules with factory.deployment_export, and save without it"
            raise UsageError("a .nemo file of ONNX modules cannot be read back", place="save_to", remedy=remedy)
        path = Path(output_folder or "", output_file_name).expanduser()
        path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="nemo_lite_") as temporary:
            folder = Path(temporary)
            write_configuration(self.serialize(), folder / CONFIG_0)
            files: dict[str, Path | bytes] = {CONFIG_0: folder / CONFIG_0, "header.content": f"{CONFIG_0}\n".encode()}
            for name, module in self.modules_with_weights().items():
                files[f"{name}.pt"] = folder / f"{name}.pt"
                module.save_to(folder / f"{name}.pt")
            write_archive(path, files)
        return str(path)

    @classmethod
    def list_pretrained_models(cls) -> list[PretrainedModelInfo]:
        """The published models that :meth:`from_pretrained` knows by name: none."""
        return []

    @classmethod
    def from_pretrained(cls: type[M], model_info: str, local_rank: int = 0, refresh_cache: bool = False) -> M:
        """A model with its weights, from a ``.nemo`` file of NeMo 0.11 or of :meth:`save_to`.

        Args:
            model_info: the file.
            local_rank: kept for NeMo's scripts; weights go where the factory runs them.
            refresh_cache: kept for NeMo's scripts.

        Raises:
            ModelNotFoundError: there is no such file.
            CheckpointError: it is no such archive, or its weights do not fit its modules.
            ConfigError: its configuration is not one of this class or of a subclass.
        """
        archive = NemoArchive(model_info)
        if archive.config_name != CONFIG_0:
            problem = f"this is a file of NeMo 1.x, which {cls.__name__} does not read"
            raise CheckpointError(problem, place=str(archive.path), wanted=CONFIG_0)
        model = cls.deserialize(parse_config(archive.config, f"{archive.path}, {CONFIG_0}"))
        model.restore_modules(archive)
        return model

    def restore_modules(self, archive: NemoArchive) -> None:
        """Fill the modules with the weights of an archive of NeMo 0.11.

        Raises:
            CheckpointError: weights are missing or do not fit.
        """
        for name, module in self.modules_with_weights().items():
            module.restore_from(archive.read(f"{name}.pt"))

    def modules_with_weights(self) -> Mapping[str, Any]:
        """The modules that have something to save, frozen ones too, by the name of their file."""
        named: dict[str, Any] = dict(unique_names(self.modules))
        return {name: module for name, module in named.items() if getattr(module, "state_dict", dict)()}


def _do_nothing() -> None:
    """Modules that are no torch modules have no mode."""
