"""NeMoModel: several modules with one call, and its `.nemo` files."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from nemo_lite.config import parse_config
from nemo_lite.core.neural_module import NeuralModule, unique_names, write_configuration
from nemo_lite.core.ports import OperationMode
from nemo_lite.core.ports import PretrainedModelInfo as PretrainedModelInfo
from nemo_lite.errors import CheckpointError, ModelNotFoundError, UsageError, did_you_mean
from nemo_lite.files import FileKind, TarLimits, open_file, open_tar, write_atomically

# NemoArchive: a ``.nemo`` file, which is a tar file, read in memory and written. Nothing is unpacked to the disk.
# What its configuration and weights mean is not known here. Two layouts exist: ``module.yaml`` with ``<Class>.pt``
# for each module (NeMo 0.11), and ``model_config.yaml`` with ``model_weights.ckpt`` for all of them (NeMo 1.x).


CONFIG_0, CONFIG_1 = "module.yaml", "model_config.yaml"
_FOLDER = ".nemo_tmp"  # in which NeMo 0.11 packs
# Weights hardly shrink: random ones in float32 1.1 times, those of bfloat16 kept in float32 2.3 times, and 3.1 times
# where half of them are 0. A file that grows more than this is made to fill the memory.
_MOST_GROWTH, _SMALL_BYTES = 4, 64 * 2**20
_MOST_MEMBERS = 10_000
_KIND = FileKind("the .nemo archive", 1 << 40, CheckpointError, "do not use this file")


class Member(io.BytesIO):
    """The content of one file of an archive; ``name`` is for messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


class NemoArchive:
    """A ``.nemo`` file, its list of members checked.

    Args:
        path: the file; ``~`` is expanded.

    Attributes:
        path: the file.
        config_name: ``module.yaml`` or ``model_config.yaml``.
        config: the configuration's text.
        names: the files beside the configuration, without their folder.

    Raises:
        ModelNotFoundError: there is no such file.
        CheckpointError: it is no tar file, has no configuration or two, a member outside its folder, a link, or a
            member that would fill the memory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        if not os.path.lexists(self.path):
            beside = [file.name for file in self.path.parent.glob("*.nemo")]
            problem = f"no such file{did_you_mean(self.path.name, beside)}"
            raise ModelNotFoundError(problem, place=str(self.path), wanted="a .nemo file")
        with open_file(self.path, _KIND) as file:
            size = os.fstat(file.fileno()).st_size
        limits = TarLimits(_MOST_MEMBERS, max(_MOST_GROWTH * size, _SMALL_BYTES))
        self._open = partial(open_tar, self.path, _KIND, limits)
        with self._open() as tar:
            members = list(tar.members())
        config = self._config_of(members)
        folder = PurePosixPath(config.name).parent
        self.config_name = PurePosixPath(config.name).name
        # With their places, so that a compressed archive need not be gone through to find one.
        self._members = {
            str(PurePosixPath(member.name).relative_to(folder)): member
            for member in members
            if member.isfile() and PurePosixPath(member.name).is_relative_to(folder)
        }
        text = self.read(self.config_name).getvalue()
        try:
            self.config = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"{self.config_name} is no text", got=str(error)) from None

    @property
    def names(self) -> list[str]:
        """The files beside the configuration, without their folder."""
        return [name for name in self._members if name != self.config_name]

    def read(self, name: str) -> Member:
        """One file's content.

        Raises:
            CheckpointError: there is no such file, or the archive is damaged.
        """
        if name not in self._members:
            raise self._error(
                f"it has no {name}{did_you_mean(name, self.names)}", got=", ".join(self.names) or "nothing"
            )
        with self._open() as tar:
            content = b"".join(tar.chunks(self._members[name]))
        return Member(content, f"{self.path}, {name}")

    def _config_of(self, members: list[tarfile.TarInfo]) -> tarfile.TarInfo:
        names = (CONFIG_0, CONFIG_1)
        configs = [member for member in members if PurePosixPath(member.name).name in names and member.isfile()]
        if len(configs) != 1:
            problem = "it has two configurations" if configs else "it has no configuration"
            got = ", ".join(member.name for member in configs or members)
            raise self._error(problem, got=got or "nothing", wanted=f"one {CONFIG_0} or {CONFIG_1}")
        folder = PurePosixPath(configs[0].name).parent
        for member in members:
            name = PurePosixPath(member.name)
            if not (name.is_relative_to(folder) or folder.is_relative_to(name)):
                wanted = f"all in {folder}, where the configuration is"
                raise self._error("a member lies outside its folder", got=member.name, wanted=wanted)
        return configs[0]

    def _error(self, problem: str, *, got: str = "", wanted: str = "", remedy: str = "") -> CheckpointError:
        return CheckpointError(problem, place=str(self.path), got=got, wanted=wanted, remedy=remedy)


def write_archive(path: str | Path, files: Mapping[str, Path | bytes]) -> None:
    """Write a ``.nemo`` file in the layout of NeMo 0.11, atomically.

    Args:
        path: the file.
        files: content, or the file that holds it, by name.

    Raises:
        UsageError: it cannot be written.
    """

    def write(temporary: Path) -> None:
        with tarfile.open(temporary, "w:gz") as tar:
            for name, source in files.items():
                info = tarfile.TarInfo(f"{_FOLDER}/{name}")
                content = source if isinstance(source, bytes) else source.read_bytes()
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))

    write_atomically(path, write)


# NeMoModel: several modules with one call, saved to and loaded from one ``.nemo`` file. No torch in this file.


# Any: values of wires, and what constructors take.

M = TypeVar("M", bound="NeMoModel")
SUFFIX = ".nemo"


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
