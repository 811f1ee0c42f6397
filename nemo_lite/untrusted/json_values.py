"""JSON that others may have written: depth and number of values first, keys once, numbers finite."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from nemo_lite.untrusted.opening import FileKind, FilePath, read_bytes

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

# The end of a text is optional: else one that lacks it would be looked for from each of its quotes.
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
_NOT_OPENING = bytes(set(range(256)) - set(b"[{\n"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord(","): 0}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SHOWN = 40  # characters of a key or a number in a message


@dataclass(frozen=True)
class JsonLimits:
    """What is checked before a value is built.

    Attributes:
        depth: lists and objects within each other.
        values: numbers, texts, lists and objects in all.
        digits: of one number. More than NumPy's generators need for theirs, and fewer than Python takes long for.
        surrogates: texts may hold halves of surrogate pairs, which cannot be written as UTF-8.
        constants: numbers may be NaN or infinite, as Python writes them.
    """

    depth: int = 64
    values: int = 1_000_000
    digits: int = 1_000
    surrogates: bool = False
    constants: bool = False


class _RefusedError(Exception):
    """What is wrong with a JSON text, in words."""


def read_json(path: FilePath, kind: FileKind, limits: JsonLimits = JsonLimits()) -> Json:
    """The value in a JSON file.

    Raises:
        NemoLiteError: of the kind, as :func:`read_bytes` and :func:`parse_json`.
    """
    return parse_json(read_bytes(path, kind), path, kind, limits)


def parse_json(
    data: bytes | str,
    place: FilePath,
    kind: FileKind,
    limits: JsonLimits = JsonLimits(),
) -> Json:
    """The value that a JSON text stands for.

    Args:
        data: the text; bytes are UTF-8.
        place: of the text, for messages.
        kind: of the file; ``max_bytes`` bounds the text.
        limits: checked before the value is built.

    Raises:
        NemoLiteError: of the kind: the text is no JSON, is nested too deeply, has too many values, a number that is
            not finite or too long, or a key twice in an object (also where it is spelled in two ways).
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > kind.max_bytes:
        raise kind.too_large(place, len(raw))
    try:
        return _parsed(raw, limits)
    except _RefusedError as error:
        raise kind.refusal(f"{kind.name} cannot be read: {error}", place) from None


def problem_of_json(raw: bytes, limits: JsonLimits = JsonLimits()) -> str:
    """What :func:`parse_json` would refuse a text for, in words; "" where it would not."""
    try:
        _parsed(raw, limits)
    except _RefusedError as error:
        return str(error)
    return ""


def may_be_deeper(depth: int, block: bytes) -> bool:
    """Whether some line has more opening brackets than it may have levels. For lines by the million.

    Args:
        depth: the most levels.
        block: whole lines, or their opening brackets and ends alone.
    """
    opening = block.translate(None, _NOT_OPENING)
    num_lines = opening.count(b"\n")
    return len(opening) - 2 * num_lines >= depth and max(map(len, opening.split(b"\n"))) > depth


def _parsed(raw: bytes, limits: JsonLimits) -> Json:
    _check_structure(raw, limits)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _RefusedError(f"the byte {raw[error.start]:#04x} is not UTF-8") from None

    def integer(digits: str) -> int:
        if len(digits) > limits.digits:
            raise _RefusedError(
                f"the number {digits[:_SHOWN]}... has {len(digits)} digits, at most {limits.digits} are read"
            )
        return int(digits)

    def fraction(digits: str) -> float:
        value = float(digits) if len(digits) <= limits.digits else math.nan
        if math.isnan(value) or (math.isinf(value) and not limits.constants):
            raise _RefusedError(f"the number {digits[:_SHOWN]} is out of range")
        return value

    try:
        value: Json = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=integer,
            parse_float=fraction,
            parse_constant=float if limits.constants else _refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise _RefusedError(f"invalid JSON ({error})") from None
    if not limits.surrogates and _SURROGATE.search(raw):
        _check_texts(value)
    return value


def _check_structure(raw: bytes, limits: JsonLimits) -> None:
    """Depth and number of values, from the brackets and commas outside of texts."""
    if len(raw) <= limits.depth and len(raw) <= limits.values:
        return  # nothing so short is too deep
    structure = _TEXT.sub(b"", raw).translate(None, _NOT_STRUCTURE)
    depth = max(accumulate(map(_STEP.__getitem__, structure)), default=0)
    if depth > limits.depth:
        raise _RefusedError(f"it is nested {depth} levels deep, at most {limits.depth} are read")
    num_values = 1 + len(structure) - structure.count(b"]") - structure.count(b"}")
    if num_values > limits.values:
        raise _RefusedError(f"it has {num_values} values, at most {limits.values} are read")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    values = dict(pairs)
    if len(values) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise _RefusedError(f"the key {twice[:_SHOWN]} occurs twice")
    return values


def _refuse_constant(name: str) -> Json:
    raise _RefusedError(f"{name} is no finite number")


def _check_texts(value: Json) -> None:
    """Texts that cannot be written as UTF-8 would end the program where it writes them."""
    if isinstance(value, str):
        if not _is_utf_8(value):
            raise _RefusedError("a text has half of a surrogate pair")
    elif isinstance(value, list):
        for item in value:
            _check_texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_texts(key)
            _check_texts(item)


def _is_utf_8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
