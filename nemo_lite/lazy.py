"""Names of a package that are imported when somebody asks for them: ``import nemo_lite`` alone imports no torch."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from nemo_lite.compat import tell_of_missing, text_of_missing

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
            value: object = getattr(import_module(home), original)
        elif not name.startswith("__") and not text_of_missing(path) and find_spec(path):
            value = import_module(path)
        else:
            return missing(name)
        setattr(sys.modules[package], name, value)
        return value

    def public_names() -> list[str]:
        return sorted({*homes(), *(name for name in vars(sys.modules[package]) if not name.startswith("_"))})

    return get, public_names
