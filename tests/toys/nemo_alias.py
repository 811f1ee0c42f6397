"""Runs scripts written for NeMo 0.x: inside the context, ``nemo`` is ``nemo_lite`` and ``nemo.collections.asr`` is
``nemo_asr``, with all their submodules as the same module objects."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import nemo_lite

ALIASES = {"nemo.collections.asr": "nemo_asr", "nemo": "nemo_lite"}  # the longer name first
COLLECTIONS = "nemo.collections"  # nemo_lite has no such package: an empty one stands between the two
SCRIPTS = Path(__file__).parents[1] / "nemo_scripts"


class _SameModule(Loader):
    """Gives the module that exists already, or imports it under its own name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self.own_spec = module.__spec__
        vars(module).setdefault("__path__", [])  # NeMo has packages where nemo_lite has files
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.own_spec  # the import machinery has put the alias' spec there


class _Empty(Loader):
    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname == COLLECTIONS:
            return ModuleSpec(fullname, _Empty(), is_package=True)
        for alias, name in ALIASES.items():
            if fullname == alias or fullname.startswith(f"{alias}."):
                real = name + fullname.removeprefix(alias)
                found = importlib.util.find_spec(real)
                return found and ModuleSpec(fullname, _SameModule(real), is_package=found.loader is None)
        return None


def _forget() -> None:
    for name in [name for name in sys.modules if name == "nemo" or name.startswith("nemo.")]:
        del sys.modules[name]
    vars(nemo_lite).pop("collections", None)


@contextlib.contextmanager
def nemo_alias() -> Iterator[None]:
    """``import nemo``, ``from nemo.core import ...`` and ``import nemo.collections.asr`` work inside it."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forget()


def run_script(script: str | Path, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Run a script of ``tests/nemo_scripts`` as ``python script arguments`` would, in this process.

    Returns:
        The script's names, as they are at its end.
    """
    path, argv = SCRIPTS / script, sys.argv
    sys.argv = [str(path), *arguments]
    try:
        with nemo_alias():
            return runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = argv
