"""Text to label ids: the vocabulary and the character parsers. Reading rules of English live in ``english``."""

from __future__ import annotations

import itertools
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from nemo_asr.run.arguments import look_up
from nemo_asr.run.text.forms import APOSTROPHES, ZERO_WIDTH_SPACE, Forms
from nemo_asr.run.text.labels import (
    OTHER_CASES,
    Marks,
    case_of,
    characters_of,
    is_letter,
    is_one_letter,
    is_piece,
    shown_symbols,
    spoken,
)
from nemo_asr.run.text.languages import NO_LANGUAGE, language_code, language_of
from nemo_asr.run.text.readings import read_out
from nemo_asr.run.text.subwords import Subwords
from nemo_lite.base.errors import ConfigError, DataError, UsageError, counted, printable
from nemo_lite.base.nemo_logging import LogMode, logging

EMPTY = "the text is empty"
UNWRITABLE = "no character of the text is in the vocabulary"
# Marks a byte outside the vocabulary in the table of the fast path; real ids stay below.
_OUTSIDE = 255


def vocabulary(labels: Iterable[object], place_of: Callable[[int], str] = "labels[{}]".format) -> tuple[str, ...]:
    """The labels of a model, checked. Their positions are the ids; the CTC blank is not among them.

    Args:
        labels: the symbols, mostly single characters, perhaps with accents; longer ones are words such as ``<noise>``.
        place_of: where label number ``i`` is written, for messages.

    Raises:
        ConfigError: one line for each label that is not text, empty, repeated, or could never match.
    """
    first_seen: dict[str, int] = {}
    problems = []
    for i, label in enumerate(labels):
        if not isinstance(label, str):
            problems.append(f'{place_of(i)}: label {label!r} is not text; put it in quotes: "{label}"')
        elif not label:
            problems.append(f'{place_of(i)}: the label is empty; the space is written " ", CTC adds its own blank')
        elif printable(label) != label and not label.isspace():
            problems.append(f"{place_of(i)}: label {label!r} has a control character")
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


def _refuse_pieces(labels: Sequence[str]) -> None:
    """Raise UsageError for labels that are pieces of words, without their scores: those say how a text is cut."""
    if (piece := next((label for label in labels if is_piece(label)), None)) is not None:
        raise UsageError(
            "these labels are pieces of words, and texts cannot be cut into pieces here",
            place="labels",
            got=repr(piece),
            wanted="characters, or a tokenizer",
            remedy="give the SentencePiece model that they are from (tokenizer: FILE in the configuration)",
        )


class CharParser:
    """Turns a transcript into label ids, counting what the vocabulary cannot write.

    Normalising strips the text, makes one space of any white space, composes accents (NFC) and changes the case; no
    letter becomes another one. Apostrophes, hyphens, digits, full and half width and other forms of a letter take the
    form that the labels have, and punctuation that is no label becomes a space: see `nemo_asr.run.text.forms.Forms`.
    Marks that are no words and no labels, such as ``[laughter]``, are left out and counted. Labels of several
    characters match whole words, before any normalising, so ``<noise>`` survives in running text; a letter with its
    accents is a label like any other, also where Unicode has no single code point for it.

    Args:
        labels: see :func:`vocabulary`; or `Subwords`, into whose pieces normalised texts are cut. Those that write all
            texts, of byte-level BPE, get them as they are.
        unk_id: the id given to a character outside the vocabulary. `Subwords` have none: they leave it out.
        blank_id: ids equal to this one are left out. As ``unk_id`` is the same number by default, characters outside
            the vocabulary are left out of the ids, and counted in ``unknown``.
        do_normalize: False takes texts as they are.
        do_lowercase: True lowers the case, False keeps it. None: the case of the labels, where they have one.
        strip_marks: leave out vowel marks of Arabic and Hebrew, and tatweel. None: where the labels have none.

    Attributes:
        labels: the vocabulary; of `Subwords`, the characters and words that texts may hold.
        unknown: how often each character (or word-like label) outside the vocabulary was met.
        refused: how many texts were refused, by reason.
        unaccented: how often each letter with an accent was written without it; English texts only.
    """

    about = "Unicode NFC"
    language = NO_LANGUAGE
    """The language in which numbers are read out."""

    def __init__(
        self,
        labels: Sequence[str],
        *,
        unk_id: int = -1,
        blank_id: int = -1,
        do_normalize: bool = True,
        do_lowercase: bool | None = True,
        strip_marks: bool | None = None,
    ) -> None:
        self._subwords = labels if isinstance(labels, Subwords) else None
        self.labels = vocabulary(labels if self._subwords is None else self._subwords.written)
        _refuse_pieces(self.labels)
        self.unknown: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.unaccented: Counter[str] = Counter()
        self._writes_all = self._subwords is not None and self._subwords.writes_all
        self._unk_id, self._blank_id, self._do_normalize = unk_id, blank_id, do_normalize and not self._writes_all
        self._case = case_of(self.labels) if do_lowercase is None else "lower" if do_lowercase else "kept"
        changes_of_labels = [changes for label, changes in OTHER_CASES[self._case].items() if label in self.labels]
        self._other_cases = str.maketrans({old: new for changes in changes_of_labels for old, new in changes.items()})
        ids = {label: i for i, label in enumerate(self.labels)}
        # Texts are compared with the labels in NFC; of two labels that are equal in it, the one that is in NFC counts.
        self._ids = {_nfc(label): i for label, i in ids.items()} | ids if self._do_normalize else ids
        self._forms = Forms((c for label in self._ids if is_one_letter(label) for c in label), strip_marks)
        self._marks = Marks(self._ids)
        words = "|".join(re.escape(label) for label in self.labels if not is_one_letter(label))
        self._word_labels = re.compile(rf"(?<!\S)({words})(?!\S)") if words else None
        with_marks = sorted((re.escape(label) for label in self._ids if label[1:] and is_one_letter(label)), key=len)
        whole_words = [rf"(?<!\S)(?:{words})(?!\S)"] if words else []
        several = "|".join([*whole_words, *reversed(with_marks)])
        self._symbols = re.compile(rf"{several}|.", re.DOTALL) if several else None
        self._table = None if words else self._byte_table()
        self._single: set[str] = set()

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
        normal = self._counted(text)
        if not normal:  # also of punctuation alone
            raise DataError(UNWRITABLE if text.strip() else EMPTY, got=repr(text))
        ids = self._to_ids(normal)
        is_blank = self._subwords is None and set(ids) == {self._ids.get(" ")} and not text.isspace()
        if not ids or is_blank:
            raise DataError(UNWRITABLE, got=repr(text))
        return ids

    def most_ids(self, text: str) -> int | None:
        """How many ids :meth:`encode` gives at most, found faster than the ids; None where it takes finding them."""
        if type(self) not in _READ_HERE:
            return None
        if self._writes_all:
            return len(text.encode())
        most = self._most_characters(text) if self._do_normalize else len(text)
        # A mark of SentencePiece before the first word may be a piece of its own.
        return most if most is None or self._subwords is None else most + 1

    def _counted(self, text: str) -> str:
        """:meth:`normalize`; the marks that it leaves out are counted."""
        normal = self.normalize(text)
        if self._do_normalize and normal is not text and (marks := self._marks.in_text(text)):
            self.unknown.update(marks)
        return normal

    def joined(self, texts: Sequence[Sequence[int]]) -> list[int]:
        """The ids of several texts as one: a space between them where it is a label. Pieces of words have theirs."""
        if self._writes_all:
            between = self._to_pieces(" ")
        else:
            space = None if self._subwords is not None else self._ids.get(" ")
            between = [] if space is None else [space]
        return [i for number, ids in enumerate(texts) for i in ([*between, *ids] if number else ids)]

    def check_letters(self, text: str, place: str) -> None:
        """Refuse a text with letters, numbers or marks such as ``<unk>`` that the labels lack; punctuation may be.

        Raises:
            DataError: with what they lack.
        """
        if self._writes_all:
            return
        normal = self.normalize(text)
        symbols = self._symbols.findall(normal) if self._symbols else normal
        lost = Counter(symbol for symbol in symbols if symbol not in self._ids and spoken(symbol))
        if any(symbol.isdigit() for symbol in lost):  # whole numbers are told
            lost = Counter({symbol: count for symbol, count in lost.items() if not _DIGIT.fullmatch(symbol)})
            lost.update(_WITH_DIGIT.findall(normal))
        lost.update(self._marks.in_text(text) if self._do_normalize else ())
        if lost:
            kind = "letters" if all(map(is_letter, lost)) else "letters, numbers or marks"
            remedy = "add them to the labels, change the text, or leave out strict_data"
            raise DataError(f"{kind} that the labels lack", place=place, got=shown_symbols(lost), remedy=remedy)

    def without_marks(self, text: str) -> str:
        """``text`` without marks such as ``[laughter]`` that are no labels."""
        return self._marks.left_out(text) if self._do_normalize else text

    def normalize(self, text: str) -> str:
        """``text`` as the vocabulary is meant to write it."""
        if not self._do_normalize:
            return text
        if self._word_labels is None:
            return self._normalize(text)
        pieces = self._word_labels.split(self._marks.left_out(text))  # odd pieces are labels
        return " ".join(filter(None, (piece if i % 2 else self._normalize(piece) for i, piece in enumerate(pieces))))

    def reference(self, text: str) -> str:
        """What a hypothesis is compared with: ``text`` normalised, with letters and digits outside the vocabulary too.

        A model cannot write them, so they count as errors; without them a text would score better than it was read.
        Other symbols outside the vocabulary, such as punctuation, are left out.
        """
        if self._writes_all:
            return " ".join(text.split())
        normal = self.normalize(text)
        symbols = self._symbols.findall(normal) if self._symbols else normal
        written = (self.labels[self._ids[symbol]] if symbol in self._ids else spoken(symbol) for symbol in symbols)
        reference = "".join(written)
        return " ".join(reference.split()) if self._do_normalize else reference

    def hypothesis(self, text: str) -> str:
        """What a model wrote, as it is compared with a reference: without the marks that references are rid of."""
        return " ".join(self._forms.unify(text).split()) if self._do_normalize and self._forms.strips_labels else text

    def report(self) -> str:
        """What was lost, in one line; an empty string when nothing was."""
        parts = []
        if self.unknown:
            some = counted(len(self.unknown), "character")
            parts.append(f"{some} outside the vocabulary: {shown_symbols(self.unknown)}")
        if self.unaccented:
            parts.append(f"letters written without their accents: {shown_symbols(self.unaccented)}")
        if self.refused:
            reasons = ", ".join(f"{reason} x{count}" for reason, count in self.refused.most_common())
            parts.append(f"{counted(self.refused.total(), 'text')} refused: {reasons}")
        return "; ".join(parts)

    def describe(self) -> str:
        """How texts are read, in a few words: ``Unicode NFC, lower case``."""
        case = "case as written" if self._case == "kept" else f"{self._case} case"
        return f"{self.about}, {case}" if self._do_normalize else "as written"

    def _normalize(self, text: str) -> str:
        return self._written(self._unified(self._marks.left_out(text)))

    def _most_characters(self, text: str) -> int | None:
        """How many characters a text has at most when it is normalised; None where it takes normalising it."""
        if _PLAIN.fullmatch(text):
            return len(text)
        if not self._single.issuperset(text):
            self._single |= {character for character in set(text) - self._single if self._is_single(character)}
            if not self._single.issuperset(text):
                return None
        return len(text) if unicodedata.is_normalized("NFC", text) else None

    def _is_single(self, character: str) -> bool:
        """Whether normalising makes at most one character of it, whatever stands around it."""
        unified = self._forms.unify(character)
        changed = (unified, self._forms.punctuate(f" {unified} ").strip(), _nfc(self._in_case(unified)))
        return max(map(len, changed)) <= 1 and len(self._forms.punctuate(f" {unified} ")) <= 3

    def _unified(self, text: str) -> str:
        """``text`` with the widths and digits of the labels: then numbers can be found in it."""
        return _nfc(self._forms.unify(_nfc(text)))

    def _written(self, text: str) -> str:
        """A unified text with the marks and in the case of the labels."""
        words = _nfc(self._in_case(self._forms.punctuate(text))).split()
        return " ".join(word for word in words if word.strip(APOSTROPHES))

    def _in_case(self, text: str) -> str:
        text = text.translate(self._other_cases) if self._other_cases else text
        return text if self._case == "kept" else text.lower() if self._case == "lower" else text.upper()

    def _byte_table(self) -> bytes | None:
        """From an ASCII byte to its id, if every id that can occur fits in a byte and none is to be left out."""
        if self._subwords is not None or len(self.labels) >= _OUTSIDE or 0 <= self._blank_id < len(self.labels):
            return None
        return bytes(self._ids.get(chr(byte), _OUTSIDE) if byte < 128 else _OUTSIDE for byte in range(256))

    def _to_ids(self, text: str) -> list[int]:
        if self._writes_all:
            return self._to_pieces(text)
        if self._table is not None and text.isascii():
            ids = text.encode("ascii").translate(self._table)
            if _OUTSIDE not in ids:
                return list(ids)
        symbols = self._symbols.findall(text) if self._symbols else text
        lost = [symbol for symbol in symbols if symbol not in self._ids]
        self.unknown.update(lost)
        if self._subwords is not None:
            written = "".join(symbol for symbol in symbols if symbol in self._ids) if lost else text
            return self._to_pieces(" ".join(written.split()) if lost and self._do_normalize else written)
        new_ids = (self._ids.get(symbol, self._unk_id) for symbol in symbols)
        kept = [i for i in new_ids if i != self._blank_id]
        return self._without_gaps(kept) if self._do_normalize and lost and self._unk_id == self._blank_id else kept

    def _to_pieces(self, text: str) -> list[int]:
        assert self._subwords is not None, "characters have no pieces"
        ids, lost = self._subwords.ids_of(text)
        self.unknown.update(lost)
        return ids

    def _without_gaps(self, ids: list[int]) -> list[int]:
        """Single spaces between words: what was left out, a dash or a word of other letters, stood between two."""
        space = self._ids.get(" ")
        ids = [i for before, i in itertools.pairwise([space, *ids]) if i is not None and not i == before == space]
        return ids[:-1] if ids and ids[-1] == space else ids


class ENCharParser(CharParser):
    """A :class:`CharParser` (with its arguments) for English: numbers, dates, abbreviations, symbols become words."""

    about = "English: numbers, abbreviations and symbols as words"
    language = "en"

    def __init__(self, labels: Sequence[str], **settings: Any) -> None:
        super().__init__(labels, **settings)
        # Only labels of one character exempt punctuation; those of several were taken out of the text before.
        keep = "".join(
            label for label in self.labels if len(label) == 1 and (label in string.punctuation or not label.isascii())
        )
        self._keep = keep + keep.lower() if self._case == "upper" else keep
        letters = {"lower": "a-z", "upper": "A-Z", "kept": "A-Za-z"}[self._case]
        word = rf"(?!'+(?: |$))[{letters}{re.escape(keep)}]+"
        # Text that is already words needs nothing; months, abbreviations and "no." act only beside a digit or a point.
        self._already_words = re.compile(f"{word}(?: {word})*") if "." not in keep else re.compile(r"(?!)")

    def _normalize(self, text: str) -> str:
        if self._already_words.fullmatch(text):
            return text
        # Compiling its rules takes 0.1 s, for which no command waits that reads no text.
        from nemo_asr.run.text.english import accented_letters, normalize_english

        text = self._marks.left_out(text).replace(ZERO_WIDTH_SPACE, " ")
        self.unaccented.update(accented_letters(text, self._keep))
        text = normalize_english(text, self._keep, lowercase=self._case != "kept")
        return self._in_case(text) if self._case == "upper" else text

    def _most_characters(self, text: str) -> int | None:
        if self._already_words.fullmatch(text):
            return len(text)
        if not text.isascii() or "." in self._keep or _SAID_IN_ENGLISH.search(text):
            return None
        return len(text) + _LONGER_THAN_ABBREVIATION * text.count(".")


class SpokenNumbersParser(CharParser):
    """A :class:`CharParser` (with its arguments) that reads numbers out in a language; no other letter is changed.

    A number whose words the labels cannot write, or whose form is not known, stays as it is, and its digits are counted
    as lost.

    Args:
        language: a code of `nemo_asr.run.text.languages.LANGUAGES` other than ``en``.
    """

    def __init__(self, labels: Sequence[str], language: str, **settings: Any) -> None:
        super().__init__(labels, **settings)
        self.language = language
        self._unread: dict[str, None] = {}  # the first few, in order
        self.about = f"Unicode NFC, numbers in words ({language})"

    def _normalize(self, text: str) -> str:
        text = self._unified(self._marks.left_out(text))
        if _DIGIT.search(text):
            text = read_out(text, self.language, self._can_write)
            if len(self._unread) < _SHOWN_NUMBERS:
                self._unread |= dict.fromkeys(_WITH_DIGIT.findall(text)[:_SHOWN_NUMBERS])
        return self._written(text)

    def _is_single(self, character: str) -> bool:
        return super()._is_single(character) and not _DIGIT.search(self._unified(character))

    def report(self) -> str:
        report = super().report()
        some = " ".join(f'"{number}"' for number in [*self._unread][:_SHOWN_NUMBERS])
        return f"{report}; numbers that are not read out: {some}" if some and self.unknown else report

    def _can_write(self, words: str) -> bool:
        symbols = super()._normalize(words)
        symbols_in_labels = self._symbols.findall(symbols) if self._symbols else symbols
        return all(symbol in self._ids or symbol in " -" for symbol in symbols_in_labels)


_DIGIT, _WITH_DIGIT = re.compile("[0-9]"), re.compile(r"\S*[0-9]\S*")
_SHOWN_NUMBERS = 6
_TAKEN_AS_ENGLISH = (
    "Texts are read as English, because the letters of the labels are a to z: numbers, abbreviations and symbols "
    "become English words. For another language say which (--language CODE, or none)"
)
_TAKEN_AS_NONE = (
    "The labels do not tell the language of the texts, so none is taken: numbers are not read out, and their digits, "
    "which are no labels, are left out and counted. Say which language it is (--language CODE, or none)"
)
_TAKEN_BY_SCRIPT = (
    "Texts are read as {0}, because of the script of the labels: numbers become words of it. For another language say "
    "which (--language CODE, or none)"
)
_READ_HERE = (CharParser, ENCharParser, SpokenNumbersParser)  # other classes may make several of a character
# Letters and marks of ASCII of which each becomes one character, or none.
_PLAIN = re.compile(r"[A-Za-z .,?!;:'\"()-]*")
# What becomes words in an English text besides abbreviations with a point: numerals, also Roman ones behind a name, and
# signs.
_SAID_IN_ENGLISH = re.compile(r"[0-9/+&%@=]|[A-Z][a-z]+\s+[IVXLCDM]")
_LONGER_THAN_ABBREVIATION = 16
"""More characters than words have beyond the abbreviation that they stand for."""
_PARSERS = {"base": CharParser, "en": ENCharParser}
_NAMES = {"auto": "by language and labels", "none": "texts as they are", **_PARSERS}


def make_parser(
    labels: Sequence[str] | None = None,
    name: str = "base",
    unk_id: int = -1,
    blank_id: int = -1,
    do_normalize: bool = True,
    do_lowercase: bool | None = True,
    language: str | None = None,
    strip_marks: bool | None = None,
) -> CharParser:
    """The parser called ``name``.

    ``base`` is for any language and ``en`` for English; ``none`` takes texts as they are. ``auto`` is for a language:
    ``en`` for English, the parser that reads numbers out for the others, ``base`` for none, and where a digit is a
    label: the model can write numbers as they are. ``labels`` default to printable ASCII.

    Args:
        language: of the texts, with ``auto``: see `nemo_asr.run.text.languages.language_code`. None: what the labels
            tell, see :func:`nemo_asr.run.text.languages.language_of`.

    The other arguments: see :class:`CharParser`.

    Raises:
        UnknownNameError: no parser or language has that name.
        UsageError: a language with a parser that is not for it.
        ConfigError: the labels cannot be a vocabulary.
    """
    look_up("parser", name, _NAMES)
    code = None if language is None else language_code(language)
    parser_language = "en" if name == "en" else NO_LANGUAGE
    if name != "auto" and code not in (None, parser_language):
        raise UsageError(
            f"parser {name} does not read texts of this language",
            place="language",
            got=str(language),
            wanted=parser_language,
            remedy="leave out parser, or language",
        )
    if isinstance(labels, Subwords):
        labels = labels.for_language(code)
    else:
        labels = string.printable if labels is None else vocabulary(labels)
    settings: dict[str, Any] = {"unk_id": unk_id, "blank_id": blank_id, "do_lowercase": do_lowercase}
    settings |= {"do_normalize": do_normalize and name != "none", "strip_marks": strip_marks}
    if name == "auto":
        spoken = code or language_of(labels)
        if any(character.isdigit() for character in characters_of(labels)):
            spoken = NO_LANGUAGE
        elif code is None:
            lines = {"en": _TAKEN_AS_ENGLISH, NO_LANGUAGE: _TAKEN_AS_NONE}
            logging.info(lines.get(spoken, _TAKEN_BY_SCRIPT.format(spoken)), mode=LogMode.ONCE)
        if spoken not in ("en", NO_LANGUAGE):
            return SpokenNumbersParser(labels, spoken, **settings)
        name = "en" if spoken == "en" else "base"
    return _PARSERS.get(name, CharParser)(labels, **settings)


def _nfc(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def parser_maker(
    labels: Sequence[str], name: str, normalize: bool, language: str | None, strip_marks: bool | None
) -> Callable[[], CharParser]:
    """A function that gives a new text parser, with the settings of a data layer's constructor, which it checks here.

    Raises:
        UsageError, ConfigError: settings that contradict each other, labels that cannot be a vocabulary.
    """
    make = partial(
        make_parser,
        labels,
        name,
        do_normalize=normalize,
        do_lowercase=None,
        language=language,
        strip_marks=strip_marks,
    )
    make()
    return make


class TextReading(msgspec.Struct, frozen=True):
    """How a data layer reads texts: its arguments of these names."""

    parser: str = "auto"
    normalize_transcripts: bool = True
    language: str | None = None
    strip_marks: bool | None = None

    def new_parser(self, labels: Sequence[str]) -> CharParser:
        """A parser of these labels, or `Subwords`. Errors as of `parser_maker`."""
        return parser_maker(labels, self.parser, self.normalize_transcripts, self.language, self.strip_marks)()
