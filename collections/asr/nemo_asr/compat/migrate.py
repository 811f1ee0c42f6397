"""List which lines of a script for NeMo 0.x need a change, and make the changes."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nemo_lite.base.aliases import substitute_of
from nemo_lite.base.errors import UsageError, counted
from nemo_lite.base.files import FileKind, read_bytes, refuse_existing, write_atomically
from nemo_lite.base.options import OneLineParser

_SCRIPT = FileKind("the script", 1 << 22, UsageError)
_SPEECH, _REST = "nemo.collections.asr", "nemo"
_SPEECH_HERE, _REST_HERE = "nemo_asr", "nemo_lite"
_COPY = ".orig"


class Use(NamedTuple):
    """A line that uses NeMo: what it uses, and the change it needs, or an empty text."""

    line: int
    what: str
    change: str

    @property
    def is_missing(self) -> bool:
        """Whether there is no such thing here: the change has to be made by hand."""
        return bool(_missing(self.what))


def main(arguments: Sequence[str]) -> None:
    """Print a line for each use of NeMo that needs a change, and the count; with ``--write`` change the scripts.

    Raises:
        UsageError: a file that is missing, or is no Python; with ``--write`` an earlier copy of it that is there.
    """
    parser = OneLineParser(prog="nemo-lite migrate", description=__doc__)
    parser.add_argument("scripts", nargs="+", type=Path, metavar="SCRIPT.py")
    parser.add_argument(
        "--write", action="store_true", help=f"change the scripts; what they were is in SCRIPT.py{_COPY}"
    )
    parser.add_argument("--all", action="store_true", help="also list the lines that need no change")
    options = parser.parse_args(arguments)
    for script in options.scripts:
        uses = uses_in(script)
        for use in uses:
            if use.change:
                print(f"{script}:{use.line}: change: {use.change}")
            elif options.all:
                print(f"{script}:{use.line}: no change: {use.what}")
        changed, used = ({use.line for use in uses if use.change}, {use.line for use in uses})
        print(f"{script}: {len(changed)} of {len(used)} lines that use NeMo need a change")
        if options.write and changed:
            _write(script, {use.line for use in uses if use.is_missing})


def _write(script: Path, by_hand: Collection[int]) -> None:
    copy = script.with_name(script.name + _COPY)
    refuse_existing(copy)
    text = migrated(script)
    shutil.copy2(script, copy)
    write_atomically(script, lambda file: file.write_bytes(text))
    left = f"; change by hand: {counted(len(by_hand), 'line')}, above" if by_hand else ""
    print(f"{script}: written; what it was is in {copy}{left}")


def migrated(script: Path) -> bytes:
    """A script with the changes of `uses_in`; what is missing here stays as it is.

    Raises:
        UsageError: the file is missing, or is no Python.
    """
    content = read_bytes(script, _SCRIPT)
    tree, names = _parsed(content, script), dict[str, str]()
    source = content.decode(errors="replace")
    if source.encode() != content or source.startswith("\ufeff"):  # places in the tree are those of UTF-8
        raise UsageError("its letters are not UTF-8", place=str(script), remedy="change the lines by hand")
    statements = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    texts: dict[ast.stmt | ast.expr, str] = {}
    for node in statements:
        uses = list(_imported(node, names))
        if not any(use.change and not use.is_missing for use in uses):
            continue
        if isinstance(node, ast.Import):
            texts[node] = f"import {', '.join(map(_as_imported_here, node.names))}"
        else:
            texts[node] = _as_taken_here(node, ast.get_source_segment(source, node) or "")
    spelt_out = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _dotted(node, names) == _SPEECH]
    texts |= dict.fromkeys(spelt_out, _SPEECH_HERE)
    if spelt_out and names.get(_SPEECH_HERE) != _SPEECH:
        first = next(node for node in statements if "nemo" in {alias.asname or alias.name for alias in node.names})
        texts[first] = f"{texts[first]}, {_SPEECH_HERE}"
    return _replaced(content, texts)


def _replaced(content: bytes, texts: Mapping[ast.stmt | ast.expr, str]) -> bytes:
    """A script with other texts in the place of nodes, from the last to the first: so all places stay right."""
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in sorted(texts, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        content = content[:start] + texts[node].encode() + content[end:]
    return content


def _as_taken_here(node: ast.ImportFrom, written: str) -> str:
    """A statement with the modules that its names are in here; names that are not here keep theirs."""
    module = node.module or ""
    names_of: dict[str, list[str]] = {}
    for alias in node.names:
        dotted = f"{_nemos(module)}.{alias.name}"
        here = module if _missing(dotted) else _here(dotted).rpartition(".")[0]
        names_of.setdefault(here, []).append(alias.name if alias.asname is None else f"{alias.name} as {alias.asname}")
    if len(names_of) == 1 and "" not in names_of:
        return re.sub(r"^from\s+[\w.]+", f"from {next(iter(names_of))}", written)
    lines = [
        f"from {here} import {', '.join(taken)}"
        if here
        else f"import {', '.join(taken).replace('asr', _SPEECH_HERE, 1)}"
        for here, taken in names_of.items()
    ]
    return f"\n{' ' * node.col_offset}".join(lines)


def _as_imported_here(alias: ast.alias) -> str:
    change = _change_of_import(alias) if _is_nemos(alias.name) and not _missing(alias.name) else ""
    return change.removeprefix("import ") or alias.name + (f" as {alias.asname}" if alias.asname else "")


def _dotted(node: ast.AST, bindings: Mapping[str, str]) -> str:
    """What an attribute or a name stands for, in NeMo's words; "" where that is nothing of NeMo's."""
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value, bindings)
        return f"{inner}.{node.attr}" if inner else ""
    return bindings.get(node.id, "") if isinstance(node, ast.Name) else ""


def uses_in(script: Path) -> list[Use]:
    """The uses of NeMo in a script, in order of lines.

    Raises:
        UsageError: the file is missing, or is no Python.
    """
    tree = _parsed(read_bytes(script, _SCRIPT), script)
    names: dict[str, str] = {}  # what a name in the script stands for, in NeMo's words
    imports = [use for node in ast.walk(tree) for use in _imported(node, names)]
    read = [use for node in ast.walk(tree) for use in _read(node, names)]
    return sorted({*imports, *read})


def _parsed(content: bytes, script: Path) -> ast.Module:
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f"{script}:{getattr(error, 'lineno', None) or 1}"
        raise UsageError("is no Python 3", place=place, got=getattr(error, "msg", str(error))) from error


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
