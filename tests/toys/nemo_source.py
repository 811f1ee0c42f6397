"""NVIDIA's own classes, for comparison: from an unpacked wheel of nemo-toolkit, whose packages are not installed.

    pip download nemo-toolkit==3.0.0 --no-deps -d /tmp/nemo && unzip -q /tmp/nemo/*.whl -d /tmp/nemo
    NEMO_SOURCE=/tmp/nemo python -m pytest -k nemo_source

Lightning, Hydra, OmegaConf and NeMo's own core are replaced by stand-ins when they are imported; the modules of speech
are NeMo's. Nothing of it is shipped, or copied.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

VARIABLE = "NEMO_SOURCE"
REASON = f"{VARIABLE} names no folder of an unpacked nemo-toolkit wheel: see tests/toys/nemo_source.py"
FOLDER = Path(os.environ.get(VARIABLE, ""))
HAS_NEMO = bool(os.environ.get(VARIABLE)) and (FOLDER / "nemo" / "collections").is_dir()
needs_nemo = pytest.mark.skipif(not HAS_NEMO, reason=REASON)

_ASR = "nemo.collections.asr"
# NeMo's own; everything else below "nemo" is a stand-in.
_OWN = ("modules.conformer_encoder", "modules.conv_asr", "modules.rnnt", "modules.rnnt_abstract", "parts.submodules.")
_OWN += (
    "parts.preprocessing.features",
    "parts.mixins.streaming",
    "parts.mixins.mixins",
    "parts.utils.regularization_utils",
)
_OWN += ("parts.utils.rnnt_utils", "parts.utils.activations", "modules.transformer.transformer_")
_ALL_OWN = (*(f"{_ASR}.{own}" for own in _OWN), "nemo.collections.common.parts.rnn")
_OTHERS = ("omegaconf", "hydra", "lightning", "pytorch_lightning", "lhotse", "numba", "pandas", "torchaudio", "tqdm")


class _StandIn(ModuleType):
    """A module any of whose attributes is a class that does nothing, and a decorator that changes nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if _is_own(f"{self.__name__}.{name}"):
            return importlib.import_module(f"{self.__name__}.{name}")
        made = _Anything(name, (object,), {})
        setattr(self, name, made)
        return made


class _Anything(type):
    """A class that can be called, subscripted and asked for any attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "AdapterModuleMixin":
            return _AdapterMixin
        return type(name, (), {}) if name.endswith("Mixin") else _Anything(name, (object,), {})

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        with suppress(TypeError):
            return super().__call__()
        return None

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __or__(cls, other: Any) -> Any:  # in annotations
        return cls

    __ror__ = __or__


class _NeMoModule(torch.nn.Module):
    """NeMo's NeuralModule: a torch module."""

    def freeze(self) -> None:
        self.requires_grad_(False)


class _Mixin:
    """Stands for Exportable, AccessMixin and AdapterModuleMixin, of which inference uses nothing."""

    def is_adapter_available(self) -> bool:
        return False

    @classmethod
    def is_access_enabled(cls, guid: Any = None) -> bool:
        return False


def _is_own(name: str) -> bool:
    return name.startswith(_ALL_OWN) and ".ngram_lm" not in name


def _is_installed(package: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(package) is not None


def _same(function: Any) -> Any:
    return function


def _typecheck(*args: Any, **kwargs: Any) -> Any:
    return _same


class _Confidences:
    """Stands for ConfidenceMethodMixin: nobody asks for confidences."""

    def _init_confidence_method(self, confidence_method_cfg: object = None) -> None:
        pass


class _AdapterMixin:
    """Stands for AdapterModuleMixin: there are no adapters."""

    def is_adapter_available(self) -> bool:
        return False

    def set_accepted_adapter_types(self, types: object) -> None:
        pass


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds NeMo's modules of speech in the folder, and a stand-in for everything else that is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if _is_own(name):
            return importlib.machinery.PathFinder.find_spec(name, [str(FOLDER.joinpath(*name.split(".")[:-1]))])
        if name.split(".")[0] == "nemo" or (name.split(".")[0] in _OTHERS and not _is_installed(name.split(".")[0])):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        made = _StandIn(spec.name)
        if spec.name == "nemo.core.classes.module":
            made.NeuralModule = _NeMoModule  # type: ignore[attr-defined]
        elif spec.name in (
            "nemo.core",
            "nemo.core.classes",
            "nemo.core.classes.exportable",
            "nemo.core.classes.mixins",
        ):
            made.NeuralModule = _NeMoModule  # type: ignore[attr-defined]
            made.Exportable, made.AccessMixin = type("Exportable", (), {}), _Mixin  # type: ignore[attr-defined]
            made.Typing = type("Typing", (), {})  # type: ignore[attr-defined]
            made.AdapterModuleMixin = _AdapterMixin  # type: ignore[attr-defined]
            made.typecheck = _typecheck  # type: ignore[attr-defined]
        elif spec.name == "nemo.core.classes.mixins.adapter_mixins":
            made.AdapterModuleMixin = _AdapterMixin  # type: ignore[attr-defined]
        elif spec.name == "nemo.core.classes.common":
            made.typecheck = _typecheck  # type: ignore[attr-defined]
        elif spec.name.endswith((".optional_cuda_graphs", ".asr_confidence_utils")):
            made.WithOptionalCudaGraphs = type("WithOptionalCudaGraphs", (), {})  # type: ignore[attr-defined]
            made.ConfidenceMethodMixin = _Confidences  # type: ignore[attr-defined]
        elif spec.name == "nemo.core.utils.optional_libs":
            made.CUDA_PYTHON_AVAILABLE = False  # type: ignore[attr-defined]
        elif spec.name == "nemo.utils.cast_utils":
            made.avoid_float16_autocast_context = nullcontext  # type: ignore[attr-defined]
        elif spec.name == "nemo.utils":
            made.logging = logging.getLogger("nemo")  # type: ignore[attr-defined]
            made.avoid_float16_autocast_context = nullcontext  # type: ignore[attr-defined]
        elif spec.name == "nemo.collections.common.parts":
            _fill_from(made, FOLDER.joinpath(*spec.name.split("."), "transformer_utils.py"))
        elif spec.name == "nemo.collections.common.parts.utils":
            made.activation_registry = {"relu": torch.nn.ReLU}  # type: ignore[attr-defined]
        elif spec.name == "omegaconf":
            made.DictConfig, made.ListConfig = dict, list  # type: ignore[attr-defined]
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


def _fill_from(module: ModuleType, path: Path) -> None:
    """Give a stand-in what a file of NeMo's defines."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    vars(module).update({name: value for name, value in vars(source).items() if not name.startswith("__")})


def nemo_module(name: str) -> Any:
    """A module of NeMo by its name below ``nemo.collections.asr``: ``modules.conformer_encoder``."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        _typecheck.set_typecheck_enabled = _same  # type: ignore[attr-defined]
        sys.meta_path.insert(0, _Finder())
    return importlib.import_module(f"{_ASR}.{name}")
