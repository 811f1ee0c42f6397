"""Text to label ids: the vocabulary and the character parsers. English reading rules live in english.py."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nemo_asr.arguments import look_up
from nemo_asr.text.english import normalize_english
from nemo_lite.errors import ConfigError, DataError

# Marks a byte outside the vocabulary in the table of the fast path; real ids stay below.
_OUTSIDE = 255


def vocabulary(labels: Iterable[object], place_of: Callable[[int], str] = "labels[{}]".format) -> tuple[str, ...]:
    """The labels of a model, checked. Their positions are the ids; the CTC blank is not among them.

    Args:
        labels: the symbols, usually single characters; longer ones stand for whole words such as ``<noise>``.
        place_of: where label number ``i`` is written, for the messages: ``lambda i: config.place("labels", i)``.

    Raises:
        ConfigError: one line for each label that is not text, empty, repeated, or could never match.
    """
    first_seen: dict[str, int] = {}
    problems = []
    for i, label in enumerate(labels):
        if not isinstance(label, str):
            problems.append(f'{place_of(i)}: label {label!r} is not text; put it in quotes: "{label}"')
        elif not label:
            problems.append(f'{place_of(i)}: the label is empty; the space is written " ", and CTC adds its own blank')
        elif len(label) > 1 and label.split() != [label]:
            problems.append(f"{place_of(i)}: label {label!r} has white space in it, so no word of a text can match it")
        elif label in first_seen:
            problems.append(f"{place_of(i)}: label {label!r} repeats the one at {place_of(first_seen[label])}")
        else:
            first_seen[label] = i
    if not first_seen and not problems:
        problems.append(f"{place_of(0)}: the list of labels is empty")
    if problems:
        raise ConfigError(*problems)
    return tuple(first_seen)


class CharParser:
    """Turns a transcript into label ids, counting what the vocabulary cannot write.

    Normalising strips the text, makes one space of any white space, composes accents (NFC) and lowers the case. Labels
    of several characters match whole words, before any normalising, so ``<noise>`` survives in running text.

    Args:
        labels: see :func:`vocabulary`.
        unk_id: the id given to a character outside the vocabulary.
        blank_id: ids equal to this one are left out. As ``unk_id`` is the same number by default, characters outside
            the vocabulary are left out of the ids, and counted in ``unknown``.
        do_normalize: False takes texts as they are.
        do_lowercase: False keeps the case.

    Attributes:
        unknown: how often each character (or word-like label) outside the vocabulary was met.
        refused: how many texts were refused, by reason.
    """

    def __init__(
        self,
        labels: Sequence[str],
        *,
        unk_id: int = -1,
        blank_id: int = -1,
        do_normalize: bool = True,
        do_lowercase: bool = True,
    ) -> None:
        self.labels = vocabulary(labels)
        self.unknown: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._unk_id, self._blank_id = unk_id, blank_id
        self._do_normalize, self._do_lowercase = do_normalize, do_lowercase
        self._ids = {label: i for i, label in enumerate(self.labels)}
        words = "|".join(re.escape(label) for label in self.labels if len(label) > 1)
        self._word_labels = re.compile(rf"(?<!\S)({words})(?!\S)") if words else None
        self._symbols = re.compile(rf"(?<!\S)(?:{words})(?!\S)|.", re.DOTALL) if words else None
        self._table = None if words else self._byte_table()

    def __call__(self, text: str) -> list[int] | None:
        """The ids of ``text``, or None for a text that :meth:`encode` refuses; the reason is counted in ``refused``."""
        try:
            return self.encode(text)
        except DataError as error:
            self.refused[error.problem] += 1
            return None

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``.

        Raises:
            DataError: the text is not a string, is empty, or has nothing in it that the vocabulary can write.
        """
        if not isinstance(text, str):
            raise DataError("the text is not a string", got=type(text).__name__)
        normal = self.normalize(text)
        if not normal:
            raise DataError("the text is empty", got=repr(text))
        ids = self._to_ids(normal)
        if not ids:
            raise DataError("no character of the text is in the vocabulary", got=repr(text))
        return ids

    def normalize(self, text: str) -> str:
        """``text`` as the vocabulary is meant to write it."""
        if not self._do_normalize:
            return text
        if self._word_labels is None:
            return self._normalize(text)
        pieces = self._word_labels.split(text)  # odd pieces are labels
        return " ".join(filter(None, (piece if i % 2 else self._normalize(piece) for i, piece in enumerate(pieces))))

    def report(self) -> str:
        """What was lost, in one line; an empty string when nothing was."""
        parts = []
        if self.unknown:
            kinds = [f'"{symbol}" x{count}' for symbol, count in self.unknown.most_common(10)]
            more = f" and {len(self.unknown) - 10} more" if len(self.unknown) > 10 else ""
            noun = "character" if len(self.unknown) == 1 else "characters"
            parts.append(f"{len(self.unknown)} {noun} outside the vocabulary: {' '.join(kinds)}{more}")
        if self.refused:
            reasons = ", ".join(f"{reason} x{count}" for reason, count in self.refused.most_common())
            parts.append(f"{self.refused.total()} texts refused: {reasons}")
        return "; ".join(parts)

    def _normalize(self, text: str) -> str:
        if not text.isascii():
            text = unicodedata.normalize("NFC", text)
        return " ".join((text.lower() if self._do_lowercase else text).split())

    def _byte_table(self) -> bytes | None:
        """From an ASCII byte to its id, if every id that can occur fits in a byte and none is to be left out."""
        if len(self.labels) >= _OUTSIDE or 0 <= self._blank_id < len(self.labels):
            return None
        return bytes(self._ids.get(chr(byte), _OUTSIDE) if byte < 128 else _OUTSIDE for byte in range(256))

    def _to_ids(self, text: str) -> list[int]:
        if self._table is not None and text.isascii():
            ids = text.encode("ascii").translate(self._table)
            if _OUTSIDE not in ids:
                return list(ids)
        symbols = self._symbols.findall(text) if self._symbols else text
        self.unknown.update(symbol for symbol in symbols if symbol not in self._ids)
        found = (self._ids.get(symbol, self._unk_id) for symbol in symbols)
        return [i for i in found if i != self._blank_id]


class ENCharParser(CharParser):
    """A :class:`CharParser` (with its arguments) for English: numbers, dates, abbreviations, symbols become words."""

    def __init__(self, labels: Sequence[str], *, do_lowercase: bool = True, **settings: Any) -> None:
        super().__init__(labels, do_lowercase=do_lowercase, **settings)
        # Only labels of one character exempt punctuation; those of several were taken out of the text before.
        self._keep = "".join(
            label for label in self.labels if len(label) == 1 and (label in string.punctuation or not label.isascii())
        )
        letters = "a-z" if do_lowercase else "A-Za-z"
        word = f"[{letters}{re.escape(self._keep)}]+"
        # Text that is already words needs nothing; months, abbreviations and "no." act only beside a digit or a point.
        self._already_words = re.compile(f"{word}(?: {word})*") if "." not in self._keep else re.compile(r"(?!)")

    def _normalize(self, text: str) -> str:
        if self._already_words.fullmatch(text):
            return text
        return normalize_english(text, self._keep, self._do_lowercase)


_PARSERS = {"base": CharParser, "en": ENCharParser}


def make_parser(
    labels: Sequence[str] | None = None,
    name: str = "base",
    unk_id: int = -1,
    blank_id: int = -1,
    do_normalize: bool = True,
    do_lowercase: bool = True,
) -> CharParser:
    """The parser called ``name``: ``base`` (any language) or ``en`` (English). ``labels`` default to printable ASCII.

    Raises:
        UnknownNameError: no parser has that name.
        ConfigError: the labels cannot be a vocabulary.
    """
    parser, labels = look_up("parser", name, _PARSERS), string.printable if labels is None else labels
    return parser(labels, unk_id=unk_id, blank_id=blank_id, do_normalize=do_normalize, do_lowercase=do_lowercase)
