"""Further import paths of a module, substitutes of names that NeMo had, and names that are imported when asked for.

A table gives for each module the other paths of its names, such as NeMo's. Each path becomes an entry of
``sys.modules`` once the module above it is there; nothing is imported until somebody asks it for a name. The tables
are in ``compat.paths`` of each package.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType


class AliasModule(ModuleType):
    """A module under another path: each name comes from the first of its modules of today that has it."""

    _modules: list[str]  # the modules of today

    def __init__(self, path: str) -> None:
        super().__init__(path, "Another import path, see nemo_lite/base/aliases.py.")
        self.__spec__ = ModuleSpec(path, None)
        self.__path__: list[str] = []  # so that paths below it can be imported, also where nemo_lite has another name
        self._modules = []

    def __getattr__(self, name: str) -> object:
        if name == "__all__":  # for `from path import *`
            modules = [import_module(module) for module in self._modules]
            return sorted({key for module in modules for key in vars(module) if not key.startswith("_")})
        if name.startswith("__"):  # asked of all modules by inspect and others; nothing is imported for that
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        for module in map(import_module, self._modules):
            if hasattr(module, name):
                return getattr(module, name)
        text = f"module {self.__name__!r} has no attribute {name!r}; it is {' and '.join(self._modules)} today"
        raise AttributeError(text_of_missing(f"{self.__name__}.{name}") or text, name=name)


def add_paths(package: str, table: Mapping[str, str]) -> None:
    """Make further paths of modules importable.

    Args:
        package: the package in which all paths of the table are.
        table: module of today -> its other paths, separated by blanks; both below the package. A path may stand at
            several modules: then names are looked for in all of them.
    """
    for module, paths in table.items():
        for path in paths.split():
            _entry(f"{package}.{path}")._modules.append(f"{package}.{module}" if module else package)


_aliases: dict[str, AliasModule] = {}
# By module that is not imported yet: the paths below it.
_below_what_is_not_imported: dict[str, list[AliasModule]] = {}


def _entry(path: str) -> AliasModule:
    if path not in _aliases:
        entry = _aliases[path] = AliasModule(path)
        parent = path.rpartition(".")[0]
        if parent in sys.modules:
            _add_below(sys.modules[parent], entry)
        else:
            _below_what_is_not_imported.setdefault(parent, []).append(entry)
    return _aliases[path]


def _add_below(module: ModuleType, entry: AliasModule) -> None:
    """Make a path importable, and an attribute of the module above it: for `import path` and then its name."""
    path = entry.__name__
    sys.modules[path] = entry
    vars(module).setdefault(path.rpartition(".")[2], entry)
    vars(module).setdefault("__path__", [])
    for below in _below_what_is_not_imported.pop(path, []):
        _add_below(entry, below)


class ModulesAboveAliases:
    """Imports a module as usual, and then makes the paths below it importable. It goes before the usual finders."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if isinstance(sys.modules.get(fullname), AliasModule):
            return sys.modules[fullname].__spec__
        spec = PathFinder.find_spec(fullname, path) if fullname in _below_what_is_not_imported else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_add(module: ModuleType) -> None:
            execute(module)
            for entry in _below_what_is_not_imported.pop(fullname, []):
                _add_below(module, entry)

        spec.loader.exec_module = execute_and_add  # type: ignore[method-assign]  # of this one loader of this one module
        return spec


# What a file of configuration names: classes of our own packages, which are imported when they are asked for.

_COLLECTIONS = ("asr",)
# By NeMo's name, the longer ones first.
_OUR_PACKAGES = {f"nemo.collections.{name}": f"nemo_{name}" for name in _COLLECTIONS} | {"nemo": "nemo_lite"}


def value_of_ours(dotted: str) -> object:
    """The value of a dotted name in our packages, also under NeMo's names of these; it is imported if it has to be.

    It is looked for in the module that the name says, then in the packages around it. None where there is none, and for
    names of other packages: nothing of those is imported.
    """
    theirs = next((name for name in _OUR_PACKAGES if dotted.startswith(f"{name}.")), None)
    if theirs:
        dotted = _OUR_PACKAGES[theirs] + dotted.removeprefix(theirs)
    *modules, name = dotted.split(".")
    is_ours = bool(modules) and modules[0] in _OUR_PACKAGES.values()
    if not is_ours or not all(part.isidentifier() and not part.startswith("_") for part in (*modules, name)):
        return None
    while modules:
        with suppress(ImportError):  # no such module, or a package that is not installed
            value: object = getattr(import_module(".".join(modules)), name, None)
            if value is not None:
                return value
        modules.pop()
    return None


SUBSTITUTES: dict[str, dict[str, str]] = {}
"""By NeMo's place: name -> substitute. For errors, ``nemo-lite migrate`` and a table in the docs."""


def substitute_of(dotted: str) -> str:
    """The substitute of ``nemo.core.TrainingState``, or of what is in it; an empty text where it is here."""
    for place, names in SUBSTITUTES.items():
        name = dotted.removeprefix(f"{place}.").partition(".")[0] if dotted.startswith(f"{place}.") else ""
        if name in names:
            return names[name]
    return ""


def text_of_missing(path: str) -> str:
    """The error for a path such as ``nemo_lite.core.TrainingState``; an empty text for names that NeMo did not have."""
    module, _, name = path.rpartition(".")
    package, *inner = module.split(".")
    root = "nemo" if package == "nemo_lite" else f"nemo.collections.{package.removeprefix('nemo_')}"
    place = ".".join([root, *inner])
    substitute = SUBSTITUTES.get(place, {}).get(name)
    return f"{place}.{name} is not in {module}; instead: {substitute}" if substitute else ""


def tell_of_missing(module: str) -> Callable[[str], object]:
    """A ``__getattr__`` for a module: the error for a missing name of NeMo says what takes its place."""

    def missing(name: str) -> object:
        text = text_of_missing(f"{module}.{name}") or f"module {module!r} has no attribute {name!r}"
        raise AttributeError(text, name=name)

    return missing


class MissingNames:
    """Says the same for ``from nemo.core import TrainingState``, for which Python also looks for a module."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        text = text_of_missing(fullname)
        if text:
            raise ImportError(text, name=fullname)


# Names of a package that are imported when somebody asks for them: ``import nemo_lite`` alone imports no torch.


GetAttribute = Callable[[str], object]


def lazy_names(package: str) -> tuple[GetAttribute, Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names stand in its stub file.

    The stub, ``__init__.pyi``, has a line ``from module import name as name`` for each; type checkers read it as well.
    Modules in the package need no line: they are imported when they are asked for.

    Args:
        package: its full name.
    """
    missing = tell_of_missing(package)

    @cache
    def homes() -> dict[str, tuple[str, str]]:
        """Name -> module, and its name there."""
        stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
        lines = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
        return {alias.asname or alias.name: (str(node.module), alias.name) for node in lines for alias in node.names}

    def get(name: str) -> object:
        if name == "__all__":  # for `from package import *`
            return public_names()
        home, original = homes().get(name, (package, name))
        path = f"{package}.{name}"
        if home != package:
            module = import_module(home)
            value: object = getattr(module, original, None) or import_module(f"{home}.{original}")
        elif not name.startswith("__") and not text_of_missing(path) and find_spec(path):
            value = import_module(path)
        else:
            return missing(name)
        setattr(sys.modules[package], name, value)
        return value

    def public_names() -> list[str]:
        return sorted({*homes(), *(name for name in vars(sys.modules[package]) if not name.startswith("_"))})

    return get, public_names
