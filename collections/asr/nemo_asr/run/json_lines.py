"""JSON lines: the usual kind of manifest, one object a line; and what people give in place of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from nemo_asr.run.manifest_kinds import (
    LEAST_SECONDS,
    MAX_LINE_BYTES,
    MOST_SECONDS,
    Block,
    Line,
    Needs,
    Problems,
    Source,
    register_manifest,
)
from nemo_asr.run.utterances import Integers, Seconds
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import JsonLimits, may_be_deeper, problem_of_json

_BLOCK_BYTES = 1 << 20  # stays in the second-level cache: scanning whole files at once is bound by memory
_GUESSED_LINE_BYTES = 1 << 12
_READ_AHEAD_BYTES = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NEWLINE, _BRACE = ord("\n"), ord("{")
# The only character that no path can have, and letters of keys, as JSON may spell them: then a key may be there twice.
_NULL_OR_KEY_LETTER = re.compile(rb"\\u00(?:00|5[fF]|[67][0-9a-fA-F])")
_LIMITS = JsonLimits(depth=32, values=10_000)
# All but the characters that are counted: quotes, opening brackets, ends of lines.
_NO_MARKS = bytes(set(range(256)) - set(b'"[{\n'))
_COPIED_KEYS = ("audio_filepath", "audio_filename", "duration", "text", "text_filepath", "normalized_text")

_OBJECTS = re.compile(rb'\}[\s,]*\{\s*"')

_decoder = msgspec.json.Decoder(Line)


@register_manifest
class JsonLines(Source):
    """One JSON object a line, in UTF-8. Blank lines are passed over."""

    suffixes = (".json", ".jsonl")

    def line(self, offset: int) -> Line:
        """Read one line again."""
        return _decoder.decode(self._line_at(offset))

    def _line_at(self, offset: int) -> bytes:
        descriptor, size = self.descriptor(), _GUESSED_LINE_BYTES
        while True:
            data = os.pread(descriptor, size, offset)
            end = data.find(b"\n")
            if end >= 0 or len(data) < size:
                return data[:end] if end >= 0 else data
            size *= 4

    def lines(self, offsets: Iterable[int]) -> Iterator[Line]:
        """Lines in the order of the file.

        Raises:
            DataChangedError: the file is another one now, see `descriptor`.
        """
        if type(self).line is not JsonLines.line:  # a kind of one's own reads lines in its way
            yield from map(self.line, offsets)
            return
        first, data, size = 0, b"", _GUESSED_LINE_BYTES
        for offset in offsets:
            end = data.find(b"\n", offset - first) if first <= offset < first + len(data) else -1
            if end < 0:
                goes_on = first <= offset <= first + len(data)
                size = min(4 * size, _READ_AHEAD_BYTES) if goes_on else _GUESSED_LINE_BYTES
                first, data = offset, os.pread(self.descriptor(), size, offset)
                end = data.find(b"\n")
            if end < 0:  # a longer line, or the last one
                data = self._line_at(offset)
                end = len(data)
            yield _decoder.decode(data[offset - first : end])

    def other_keys(self, offset: int) -> dict[str, Any]:
        """The keys of a line besides its audio, its duration and its text."""
        fields: dict[str, Any] = msgspec.json.decode(self._line_at(offset))
        return {key: value for key, value in fields.items() if key not in _COPIED_KEYS}

    def blocks(self, needs: Needs, problems: Problems) -> Iterator[Block]:
        """The valid lines, about a megabyte of them at a time. Nearly all blocks are decoded in one call."""
        num_lines = 0
        for offset, block in self._whole_lines():
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
            starts = np.concatenate([[0], ends[:-1] + 1])
            lines_and_seconds = _lines_if_all_valid(block, starts, needs)
            if lines_and_seconds is None and num_lines == 0:
                self._refuse_other_kind()
            if lines_and_seconds is None:
                yield self._valid(_one_by_one(block, starts, ends, offset, num_lines), needs, problems)
            else:
                numbers = np.arange(num_lines + 1, num_lines + 1 + len(starts), dtype=np.int32)
                yield Block(starts.astype(np.int64) + offset, numbers, *lines_and_seconds)
            num_lines += len(ends)

    def _refuse_other_kind(self) -> None:
        _refuse_other_kind(self.path, os.pread(self.descriptor(), _LOOKED_AT, 0).removeprefix(_BYTE_ORDER_MARK))

    def _whole_lines(self) -> Iterator[tuple[int, bytes]]:
        """Whole lines, about a block of them at a time, each with the byte where it starts."""
        descriptor, offset, pending = self.descriptor(), 0, b""
        while chunk := os.read(descriptor, _BLOCK_BYTES):
            if offset == 0 and not pending and chunk.startswith(_BYTE_ORDER_MARK):
                offset, chunk = len(_BYTE_ORDER_MARK), chunk[len(_BYTE_ORDER_MARK) :]
            data = pending + chunk
            end = data.rfind(b"\n") + 1
            if end:
                yield offset, data[:end]
            pending, offset = data[end:], offset + end
            if len(pending) > MAX_LINE_BYTES and offset == 0:
                self._refuse_other_kind()
            if len(pending) > MAX_LINE_BYTES:
                problem = f"a line of more than {MAX_LINE_BYTES} bytes starts at byte {offset}"
                problem = f"{problem}, with several objects" if _OBJECTS.search(pending[:_LOOKED_AT]) else problem
                raise DataError(problem, place=self.path, remedy="a manifest has one JSON object a line")
        if pending:
            yield offset, pending + b"\n"


def _lines_if_all_valid(block: bytes, starts: Integers, needs: Needs) -> tuple[list[Line], Seconds] | None:
    """The lines and their durations, or None where some of them need a closer look. Nearly every block ends here."""
    try:
        lines = _decoder.decode_lines(block)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # Objects spread over several lines decode too; then the lines and the objects do not correspond.
    if len(lines) != len(starts) or (np.frombuffer(block, np.uint8)[starts] != _BRACE).any():
        return None
    # As `Line.problem`, which takes three times as long.
    usable = [
        line.duration
        for line in lines
        if (line.audio_filepath or line.audio_filename)
        and (needs != "text" or (line.text or line.text_filepath or line.normalized_text or "").strip())
        and not (line.offset and not 0.0 <= line.offset <= MOST_SECONDS)
        and (line.channel is UNSET or line.has_usable_channel)
    ]
    with np.errstate(over="ignore"):
        seconds = np.array(usable, np.float32)  # NaN where there is none
    if len(usable) != len(lines) or not ((seconds > LEAST_SECONDS[needs]) & (seconds <= MOST_SECONDS)).all():
        return None
    if b"\\" in block and _NULL_OR_KEY_LETTER.search(block):
        return None
    marks = block.translate(None, _NO_MARKS)
    if _may_repeat_keys(block, marks, lines) or may_be_deeper(_LIMITS.depth, marks):
        return None
    return lines, seconds


def _may_repeat_keys(block: bytes, marks: bytes, lines: list[Line]) -> bool:
    """Does a key occur more often than lines have it? (A value may be spelled like a key, hence "may".)"""
    num_texts = len(lines) - [line.text for line in lines].count(None)
    num_paths = len(lines) - [line.audio_filepath for line in lines].count(None)
    num_quotes = marks.count(b'"') - 2 * len(lines) - 4 * (num_texts + num_paths)
    num_offsets = len(lines) - [line.offset for line in lines].count(UNSET)
    speakers = [line.speaker for line in lines if line.speaker is not UNSET]
    channels = [line.channel for line in lines if line.channel is not UNSET]
    num_texts_in_them = sum(isinstance(value, str) for value in (*speakers, *channels))
    if num_quotes == 2 * (num_offsets + len(speakers) + len(channels) + num_texts_in_them):
        return False  # there are no other keys than those that the lines have, and none twice
    counts = {"duration": len(lines), "text": num_texts, "audio_filepath": num_paths}
    counts |= {"offset": num_offsets, "speaker": len(speakers), "channel": len(channels)}
    for key in ("audio_filename", "text_filepath", "normalized_text"):
        counts[key] = len(lines) - [getattr(line, key) for line in lines].count(UNSET)
    return any(block.count(b'"%b"' % key.encode()) > count for key, count in counts.items() if count)


def _one_by_one(
    block: bytes, starts: Integers, ends: Integers, offset: int, num_before: int
) -> Iterator[tuple[int, int, Line | str]]:
    """See `Source.entries`; ``offset`` and ``num_before`` are the bytes and lines before the block."""
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True), num_before + 1):
        if raw := block[start:end].strip():
            yield offset + start, number, _decoded(raw)


# What people give in place of JSON lines: how each kind of file begins, and what to do.
_MAKE = "nemo-lite data make {} writes a manifest of it"
_UNPACK = "unpack it first"
_BEGINNINGS = {
    b"\x1f\x8b": ("the manifest is compressed (gzip)", "unpack it first: gunzip -k {}"),
    b"BZh": ("the manifest is compressed (bzip2)", _UNPACK),
    b"\xfd7zXZ": ("the manifest is compressed (xz)", _UNPACK),
    b"\x28\xb5\x2f\xfd": ("the manifest is compressed (zstd)", _UNPACK),
    b"PK\x03\x04": (
        "the manifest is a ZIP archive or a spreadsheet",
        "save it as CSV, of which nemo-lite data make writes a manifest",
    ),
    b"\xff\xfe": ("the manifest is UTF-16", "save it as UTF-8: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("the manifest is UTF-16", "save it as UTF-8: iconv -f UTF-16 -t UTF-8"),
    **dict.fromkeys(
        (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"NIST_1A", b"FORM", b".snd", b"caff", b"#!AMR"),
        ("this is a recording, no manifest", "nemo-lite data make FOLDER writes a manifest of a folder of them"),
    ),
}
_LOOKED_AT = 1 << 16  # bytes
_TABLES = {"\t": "tabs (TSV)", "|": "bars", ";": "semicolons (CSV)", ",": "commas (CSV)"}
_SPREAD = re.compile(r"\{(?!.*\}\s*,?\s*$)")  # an object that does not end on its line
_LIST_OF_OBJECTS = re.compile(r"\[\s*\{")
_OBJECT_A_LINE = "write one object a line: jq -c {} OLD.json > NEW.json"


def _refuse_other_kind(path: str, start: bytes) -> None:
    """Raise DataError if a file is of another kind than JSON lines, as a whole, by its first bytes."""
    for beginning, (problem, remedy) in _BEGINNINGS.items():
        if start.startswith(beginning):
            raise DataError(problem, place=path, remedy=remedy.format(path))
    if b"\0" in start[:4]:
        raise DataError("the manifest is UTF-16 or no text", place=path, remedy="save it as UTF-8")
    text = start.decode("utf-8", "replace").lstrip()
    first, *others = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    wanted = "one JSON object a line"
    if _LIST_OF_OBJECTS.match(text):
        remedy = _OBJECT_A_LINE.format("'.[]'")
        raise DataError("the manifest is one JSON list", place=path, wanted=wanted, remedy=remedy)
    if first.startswith("{"):
        if others and _SPREAD.match(first) and not others[0].startswith("{"):
            problem, remedy = "the objects of the manifest have several lines each", _OBJECT_A_LINE.format(".")
            raise DataError(problem, place=path, wanted=wanted, remedy=remedy)
        return
    for delimiter, kind in _TABLES.items():
        if others and all(delimiter in line and not line.startswith("{") for line in (first, others[0])):
            problem = f"the manifest is a table by {kind}"
            is_named = path.lower().endswith((".csv", ".tsv"))
            remedy = _MAKE.format(path) if is_named else f"call it .csv or .tsv: then {_MAKE.format('FILE')}"
            raise DataError(problem, place=path, got=first[:60], wanted=wanted, remedy=remedy)


def _decoded(raw: bytes) -> Line | str:
    """The keys of a line, or in words why it cannot be read."""
    if problem := problem_of_json(raw, _LIMITS):
        return f"{_known_mistake(raw) or problem}; a manifest has one JSON object a line, each key once"
    try:
        return _decoder.decode(raw)
    except msgspec.ValidationError as error:
        expected, _, key = str(error).partition(" - at `$.")
        problem = expected.replace("`", "").replace("Expected ", "expected ")
        return f"{key.rstrip('`')}: {problem}" if key else f"{problem}; a manifest has one JSON object a line"
    except (msgspec.DecodeError, ValueError) as error:
        return f"invalid JSON ({error}); a manifest has one JSON object a line"


def _known_mistake(raw: bytes) -> str:
    """What is wrong with a line that is no JSON, in words that help; "" for what is not known."""
    if raw.endswith(b",") and not problem_of_json(raw[:-1], _LIMITS):
        return "there is a comma behind the object; leave it out"
    if _OBJECTS.search(raw):
        return "there are several objects on the line; write each on a line of its own"
    if raw.startswith(b"{'"):
        return "this is written as Python prints it; write it with json.dumps"
    return ""
