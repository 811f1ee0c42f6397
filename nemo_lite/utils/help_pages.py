"""Help in pages that fit a screen: ``--help`` shows the most used options, ``--help GROUP`` the others of a group."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nemo_lite.errors import did_you_mean

MOST_COLUMNS = 100  # of a page; longer lines are hard to read
_FEWEST_COLUMNS = 40
_LONGEST_CHOICES = 30  # characters; longer ones are listed in the help text
_ALL = "all"


class Group(NamedTuple):
    """A page of the help: what it is about, and the destinations of the options on it, with spaces between them."""

    summary: str
    options: str


@dataclass(frozen=True)
class HelpPages:
    """What each page shows. Positional arguments are on the first one, options of no group on ``other``.

    Attributes:
        most_used: destinations of the options that ``--help`` shows, with spaces between them.
        groups: the pages by name.
    """

    most_used: str
    groups: Mapping[str, Group]

    def first(self, parser: argparse.ArgumentParser) -> str:
        """What ``--help`` prints."""
        by_name = _by_name(parser)
        positional = [action for action in parser._actions if not action.option_strings]
        text = _page(parser, "most used", [*positional, *_of(self.most_used, by_name)])
        names = {name: group.summary for name, group in self._with_other(by_name).items()}
        lines = two_columns({**names, _ALL: "everything"})
        called = " ".join([parser.prog, *map(_called, positional), "[options]"])
        usage = parser.usage % {"prog": parser.prog} if parser.usage else called
        head = [*textwrap.wrap(f"usage: {usage}", columns(), subsequent_indent="  "), ""]
        head += [*textwrap.wrap(parser.description or "", columns()), ""]
        return "\n".join([*head, text, "--help GROUP shows more:", *lines, ""])

    def page(self, parser: argparse.ArgumentParser, name: str) -> str:
        """What ``--help GROUP`` prints; "" where there is no such group."""
        by_name = _by_name(parser)
        groups = self._with_other(by_name)
        wanted = groups if name == _ALL else {name: groups[name]} if name in groups else {}
        return "\n".join(
            _page(parser, f"{each} ({group.summary})", _of(group.options, by_name)) for each, group in wanted.items()
        )

    def near(self, parser: argparse.ArgumentParser, name: str) -> str:
        """The names of the groups, with the one that is nearest to a wrong one."""
        names = [*self._with_other(_by_name(parser)), _ALL]
        return f"known: {', '.join(names)}{did_you_mean(name, names)}"

    def _with_other(self, by_name: Mapping[str, argparse.Action]) -> dict[str, Group]:
        """The groups of which the script has an option, and one for the options of none."""
        grouped = {name for group in self.groups.values() for name in group.options.split()}
        other = [name for name in by_name if name not in grouped]
        groups = {name: group for name, group in self.groups.items() if _of(group.options, by_name)}
        return {**groups, **({"other": Group("options of no group", " ".join(other))} if other else {})}


class ShowHelp(argparse.Action):
    """``--help``, and ``--help GROUP`` for a parser whose ``help_pages`` are there."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        help: str,  # noqa: A002  # argparse's name
        has_pages: bool = True,
    ) -> None:
        nargs: Any = "?" if has_pages else 0
        metavar = "GROUP" if has_pages else None
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs=nargs, help=help, default=argparse.SUPPRESS, metavar=metavar
        )

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Print the page and end the script."""
        pages: HelpPages | None = getattr(parser, "help_pages", None)
        if pages is None:
            parser.print_help()
        else:
            text = pages.page(parser, str(values)) if values else pages.first(parser)
            if not text:
                parser.error(
                    f'argument --help: "{values}" is not a group of options; {pages.near(parser, str(values))}'
                )
            print(text, end="")
        parser.exit()


def columns() -> int:
    """How wide a page may be: as the terminal, within limits; without a terminal as wide as is good to read."""
    wide = shutil.get_terminal_size((MOST_COLUMNS + 2, 24)).columns - 2
    return max(_FEWEST_COLUMNS, min(MOST_COLUMNS, wide))


def two_columns(summaries: Mapping[str, str]) -> list[str]:
    """Lines with names and what is said about them, as wide as a page."""
    indent = max(map(len, summaries)) + 4
    wrapped = textwrap.TextWrapper(columns(), subsequent_indent=" " * indent, break_on_hyphens=False)
    return [
        line
        for name, summary in summaries.items()
        for line in wrapped.wrap(f"{'  ' + name:{indent}}{summary}") or [name]
    ]


class PageFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Short placeholders, and defaults where there is something to show and the help does not do it itself."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 32, "width": columns(), **options})

    def _get_help_string(self, action: argparse.Action) -> str | None:
        needs_no_default = (
            action.default in (None, False, "") or action.default == [] or "(default" in (action.help or "")
        )
        text = action.help if needs_no_default else super()._get_help_string(action)
        if text is not None and _has_long_choices(action):
            text += f" (one of {', '.join(map(str, action.choices or ()))})"
        return text

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return str(getattr(action.type, "metavar", None) or _placeholder(action))

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Any:
        if action.metavar is None and _has_long_choices(action):
            return lambda size: ("NAME",) * size
        return super()._metavar_formatter(action, default_metavar)


def _has_long_choices(action: argparse.Action) -> bool:
    return len(",".join(map(str, action.choices or ()))) > _LONGEST_CHOICES


def _placeholder(action: argparse.Action) -> str:
    ends = {"dir": "FOLDER", "out": "FOLDER", "config": "FILE", "dataset": "MANIFEST", "datasets": "MANIFEST"}
    return ends.get(action.dest.rpartition("_")[2], "TEXT")


def _by_name(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options that are shown, but for ``--help``, by destination."""
    shown = (action for action in parser._actions if action.help is not argparse.SUPPRESS)
    options = (action for action in shown if action.option_strings)
    return {action.dest: action for action in options if not isinstance(action, ShowHelp)}


def _called(action: argparse.Action) -> str:
    name = action.metavar or action.dest
    return f"{name} ..." if action.nargs in ("+", "*") else str(name)


def _of(names: str, by_name: Mapping[str, argparse.Action]) -> list[argparse.Action]:
    return [by_name[name] for name in names.split() if name in by_name]


def _page(parser: argparse.ArgumentParser, title: str, actions: Iterable[argparse.Action]) -> str:
    formatter = parser._get_formatter()
    formatter.start_section(title)
    formatter.add_arguments(actions)
    formatter.end_section()
    return formatter.format_help()
