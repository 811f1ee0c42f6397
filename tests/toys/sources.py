"""The source files as ast sees them: which there are, what they import, which of them only re-export. No tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Import(NamedTuple):
    """One imported module or name: ``target`` is as long as the statement makes it."""

    file: Path
    line: int
    target: str
    late: bool
    typing_only: bool
    star: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.target}"

    @property
    def source(self) -> str:
        """The module that imports."""
        return module_of(self.file)


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    """``nemo_lite/core/dag.py`` -> ``nemo_lite.core.dag``; a package is named after its folder."""
    relative = path.relative_to(ROOT).with_suffix("")
    parts = [part for part in relative.parts if part != "__init__"]
    return ".".join(parts[2:] if parts[0] == "collections" else parts)


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def only_re_exports(path: Path) -> bool:
    """Whether a file only re-exports: a docstring and imports of names as themselves."""
    rest = [node for node in parsed(path).body if not isinstance(node, ast.Expr)]
    imports = [node for node in rest if isinstance(node, (ast.Import, ast.ImportFrom))]
    return len(rest) == len(imports) and all(
        alias.asname == alias.name for node in imports for alias in node.names if _module(node) != "__future__"
    )


def _module(node: ast.Import | ast.ImportFrom) -> str | None:
    return node.module if isinstance(node, ast.ImportFrom) else None


PACKAGES = [*files("nemo_lite"), *files("collections/asr/nemo_asr")]
MODULES = {module_of(path): path for path in PACKAGES}


def imports_of(path: Path) -> Iterator[Import]:
    """All imports of a file, ``from package import submodule`` resolved to the submodule."""
    yield from _imports(path, parsed(path), late=False, typing_only=False)


def _imports(path: Path, node: ast.AST, late: bool, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(path, child.lineno, alias.name, late, typing_only, False)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{path}:{child.lineno}: relative import"
            for alias in child.names:
                target = f"{child.module}.{alias.name}"
                target = target if target in (*MODULES, "torch.distributed") else str(child.module)
                yield Import(path, child.lineno, target, late, typing_only, alias.name == "*")
        else:
            inside = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            typing = typing_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            yield from _imports(path, child, inside, typing)


@cache
def all_imports() -> list[Import]:
    """Of the packages and examples."""
    return [found for path in [*PACKAGES, *files("examples")] for found in imports_of(path)]
