"""List which lines of a script for NeMo 0.x need a change, and which need none."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nemo_lite.compat import substitute_of
from nemo_lite.errors import UsageError
from nemo_lite.files import FileKind, read_bytes
from nemo_lite.options import OneLineParser

_SCRIPT = FileKind("the script", 1 << 22, UsageError)
_SPEECH, _REST = "nemo.collections.asr", "nemo"
_SPEECH_HERE, _REST_HERE = "nemo_asr", "nemo_lite"


class Use(NamedTuple):
    """A line that uses NeMo: what it uses, and the change it needs, or an empty text."""

    line: int
    what: str
    change: str


def main(arguments: Sequence[str]) -> None:
    """Print a line for each use of NeMo, and the count.

    Raises:
        UsageError: a file that is missing, or is no Python.
    """
    parser = OneLineParser(prog="nemo-lite migrate", description=__doc__)
    parser.add_argument("scripts", nargs="+", type=Path, metavar="SCRIPT.py")
    for script in parser.parse_args(arguments).scripts:
        uses = uses_in(script)
        for use in uses:
            print(f"{script}:{use.line}: {f'change: {use.change}' if use.change else f'no change: {use.what}'}")
        changed = len({use.line for use in uses if use.change})
        print(f"{script}: {changed} of {len({use.line for use in uses})} lines that use NeMo need a change")


def uses_in(script: Path) -> list[Use]:
    """The uses of NeMo in a script, in order of lines.

    Raises:
        UsageError: the file is missing, or is no Python.
    """
    try:
        tree = ast.parse(read_bytes(script, _SCRIPT))
    except UsageError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f"{script}:{getattr(error, 'lineno', None) or 1}"
        raise UsageError("is no Python 3", place=place, got=getattr(error, "msg", str(error))) from error
    names: dict[str, str] = {}  # what a name in the script stands for, in NeMo's words
    imports = [use for node in ast.walk(tree) for use in _imported(node, names)]
    read = [use for node in ast.walk(tree) for use in _read(node, names)]
    return sorted({*imports, *read})


def _imported(node: ast.AST, names: dict[str, str]) -> Iterator[Use]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if _is_nemos(alias.name):
                bound = alias.asname or alias.name.partition(".")[0]
                names[bound] = _nemos(alias.name if alias.asname else bound)
                yield Use(node.lineno, alias.name, _change_of_import(alias))
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level and _is_nemos(node.module):
        for alias in node.names:
            names[alias.asname or alias.name] = f"{_nemos(node.module)}.{alias.name}"
        yield from _change_of_from(node, node.module)


def _change_of_from(node: ast.ImportFrom, module: str) -> Iterator[Use]:
    """One for each name that is not here, and one for the line if its module has another name here."""
    for alias in node.names:
        dotted = f"{_nemos(module)}.{alias.name}"
        here, _, _ = _here(dotted).rpartition(".")
        written = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
        needed = f"from {here} import {written}" if here else f"import {_SPEECH_HERE} as {alias.asname or alias.name}"
        yield Use(node.lineno, dotted, _missing(dotted) or ("" if here == module else needed))


def _change_of_import(alias: ast.alias) -> str:
    if alias.name.startswith(_SPEECH_HERE):
        return ""
    name = alias.asname or ("nemo" if not alias.name.startswith(_SPEECH) else "")
    here = _here(alias.name if alias.asname or not name else _REST)
    return _missing(alias.name) or f"import {here}{f' as {name}' if name and name != here else ''}"


def _read(node: ast.AST, bindings: dict[str, str]) -> Iterator[Use]:
    names: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        names.insert(0, inner.attr)
        inner = inner.value
    if names and isinstance(inner, ast.Name) and inner.id in bindings:
        dotted = ".".join([bindings[inner.id], *names])
        spelt_out = bindings[inner.id] == _REST and dotted.startswith(f"{_SPEECH}.")
        change = _missing(dotted) or (_here(dotted) if spelt_out else "")
        assert isinstance(node, ast.Attribute)
        if change or len(names) == 1:  # of a chain, once
            yield Use(node.lineno, dotted, change)


def _missing(dotted: str) -> str:
    substitute = substitute_of(dotted)
    return f"{dotted} is not here; instead: {substitute}" if substitute else ""


def _is_nemos(module: str) -> bool:
    return module.partition(".")[0] in (_REST, _SPEECH_HERE)


def _nemos(module: str) -> str:
    return _SPEECH + module.removeprefix(_SPEECH_HERE) if module.startswith(_SPEECH_HERE) else module


def _here(dotted: str) -> str:
    """Where a thing of NeMo is here."""
    if dotted == _SPEECH or dotted.startswith(f"{_SPEECH}."):
        return _SPEECH_HERE + dotted.removeprefix(_SPEECH)
    return _REST_HERE + dotted.removeprefix(_REST)
