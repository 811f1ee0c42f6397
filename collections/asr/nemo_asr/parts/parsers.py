"""NeMo's text parsers: those of ``text/parser.py``, for which an empty text is a list without ids."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from nemo_asr.arguments import look_up
from nemo_asr.text import parser


class CharParser(parser.CharParser):
    """Turns a text into ids; see `nemo_asr.text.parser.CharParser` for the arguments."""

    def __call__(self, text: str) -> list[int] | None:
        """The ids, perhaps none; None for what is no text."""
        return self._to_ids(self.normalize(text)) if isinstance(text, str) else None


class ENCharParser(CharParser, parser.ENCharParser):
    """The same for English.

    Args:
        abbreviation_version: taken for NeMo's sake; there is one list of abbreviations.
        labels: the vocabulary.
        settings: as those of `CharParser`.
    """

    def __init__(self, labels: Sequence[str], abbreviation_version: str | None = None, **settings: Any) -> None:
        super().__init__(labels, **settings)


NAME_TO_PARSER: dict[str, type[CharParser]] = {"base": CharParser, "en": ENCharParser}


def make_parser(labels: Sequence[str] | None = None, name: str = "base", **settings: Any) -> CharParser:
    """The parser called ``base`` or ``en``; ``labels`` default to printable ASCII.

    Raises:
        UnknownNameError: another name.
    """
    return look_up("parser", name, NAME_TO_PARSER)(string.printable if labels is None else labels, **settings)
