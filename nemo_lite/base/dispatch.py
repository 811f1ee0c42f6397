"""The command ``nemo-lite``: finds the subcommands of the installed packages and runs one.

It knows none by name, but in the lines that a newcomer begins with, which its help shows where all of them are there.

A package declares a subcommand as an entry point of the group ``nemo_lite.commands``: a function
``main(arguments: Sequence[str]) -> int | None``, whose result is the exit code (None: 0). The first line of its
module's docstring is shown by ``nemo-lite --help``; of a function with another name, that of its own.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import gc
import os
import sys
import tokenize
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from nemo_lite.base.errors import did_you_mean, marked, reported_to_user
from nemo_lite.base.launch import without_passed_rank
from nemo_lite.base.nemo_logging import logging
from nemo_lite.base.options import two_columns
from nemo_lite.package_info import __version__

PROGRAM = "nemo-lite"
GROUP = "nemo_lite.commands"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the first argument names; its exit code."""
    words = without_passed_rank(sys.argv[1:] if arguments is None else arguments)
    commands = subcommands()
    if "_ARGCOMPLETE" in os.environ:
        _complete(commands)
    if not commands:
        return _refuse("no subcommand is installed; install nemo_lite again: pip install .")
    if not words or words[0] in ("-h", "--help"):
        with reported_to_user(PROGRAM):  # `| head` may end before all is printed
            print(_overview(commands), flush=True)
        return 0 if words else 2
    if words == ["--version"]:
        print(f"{PROGRAM} {__version__}")
        return 0
    name, *options = words
    if sys.stdout is None:  # `>&-`: what is opened next would have its number, and get what is printed
        return _refuse(f"stdout is closed, so what {name} prints has no place; add > /dev/null if nobody is to read it")
    if name not in commands:
        elsewhere = (
            "" if find_spec("nemo_lite.factory") else "; others come with nemo-lite in the place of nemo-lite-run"
        )
        near = did_you_mean(name, commands)
        return _refuse(f'"{name}" is not a subcommand; known: {", ".join(commands)}{near}{elsewhere}')
    atexit.register(gc.freeze)  # else Python would look for garbage among all objects, and then end
    code = None
    before, sys.argv = sys.argv, [f"{PROGRAM} {name}", *options]  # what messages, logs and records call the program
    try:
        with reported_to_user(sys.argv[0]):
            logging.set_style(None)  # refuses a style that the environment names and there is not
            code = commands[name].load()(options)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _refuse(f"{name} needs PyTorch, which is not installed; pip install torch")
    finally:
        sys.argv = before
    return code or 0


def subcommands() -> Mapping[str, EntryPoint]:
    """The subcommands of all installed packages, by name, sorted."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def _complete(commands: Mapping[str, EntryPoint]) -> None:
    """A shell asks how the line goes on: complete the subcommand, or let the subcommand's parser complete the rest."""
    words = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", 0))].split(" ")
    if len(words) > 2 and words[1] in commands:
        os.environ["_ARGCOMPLETE"] = "2"  # the number of the word from which the parser reads
        commands[words[1]].load()([])
        return
    import argcomplete

    parser = argparse.ArgumentParser()
    parser.add_argument("subcommand", choices=list(commands))
    argcomplete.autocomplete(parser)


def _overview(commands: Mapping[str, EntryPoint]) -> str:
    lines = two_columns({name: _summary(point) for name, point in commands.items()})
    return "\n".join(
        [
            f"usage: {PROGRAM} SUBCOMMAND ...",
            "",
            *lines,
            "",
            f"{PROGRAM} SUBCOMMAND --help shows the options of one.",
            *_begin_with(commands),
        ]
    )


# What a newcomer gives first, with what it is for: nothing to transcribe with, recordings of one's own, neither.
_FIRST_LINES = (
    ("models", "list", "published models to transcribe with, by name"),
    ("transcribe", "NAME talk.wav", "a transcript; the model is fetched the first time"),
    ("data", "make FOLDER", "own recordings, with a .txt beside each, as a training set"),
    ("demo", "", "the whole way in minutes: a corpus, a training, a transcript"),
)


def _begin_with(commands: Mapping[str, EntryPoint]) -> list[str]:
    if not all(name in commands for name, _, _ in _FIRST_LINES):  # nemo-lite-run fetches and trains nothing
        return []
    lines = {f"{PROGRAM} {name} {words}".rstrip(): told for name, words, told in _FIRST_LINES}
    return ["", "Begin with:", "", *two_columns(lines)]


def _summary(point: EntryPoint) -> str:
    """The first line of a subcommand's docstring. It is read, not imported: that may take seconds."""
    try:
        spec = find_spec(point.module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"No module named {point.module!r}")
        with tokenize.open(spec.origin) as file:
            tree = ast.parse(file.read())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == point.attr]
        text = ast.get_docstring(functions[0] if functions and point.attr != "main" else tree)
    except (ImportError, OSError, SyntaxError) as error:  # of one package; the subcommands of others are still of use
        return f"cannot be loaded: {error}"
    return (text or "").partition("\n")[0]


def _refuse(problem: str) -> int:
    print(f"{PROGRAM}: {marked('error:')} {problem}", file=sys.stderr)
    return 2
