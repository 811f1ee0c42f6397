"""JSON that others may have written: refused before it fills the memory, and each key counts once."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest

from nemo_lite.errors import DataError
from nemo_lite.files import FileKind, JsonLimits, parse_json, problem_of_json, read_json

KIND = FileKind("the index", 1 << 20)
LIMITS = JsonLimits(depth=8, values=100)

REFUSED = {
    "lists in lists": (b"[" * 100_000 + b"]" * 100_000, "it is nested 100000 levels deep, at most 8 are read"),
    "objects in objects": (b'{"a":' * 9 + b"1" + b"}" * 9, "nested 9 levels deep"),
    "lists that do not end": (b"[" * 100_000, "nested 100000 levels deep"),
    "many values": (b"[" + b"1," * 200 + b"1]", "it has 202 values, at most 100 are read"),
    "many empty lists": (b"[" + b"[]," * 100 + b"[]]", "values, at most 100"),
    "a key twice": (b'{"ab": 1, "ab": 2}', "the key ab occurs twice"),
    "a key twice by escapes": (rb'{"ab": 1, "\u0061b": 2}', "the key ab occurs twice"),
    "a key twice within": (b'[{"x": {"a": 1, "a": 1}}]', "the key a occurs twice"),
    "Infinity": (b'{"a": Infinity}', "Infinity is no finite number"),
    "NaN": (b"[NaN]", "NaN is no finite number"),
    "1e999": (b"[-1e999]", "-1e999 is no finite number"),
    "many digits": (b"[" + b"9" * 301 + b"]", "has 301 digits, at most 300 are read"),
    "many digits after the point": (b"[0." + b"9" * 300 + b"]", "has 302 digits"),
    "half of a surrogate pair": (rb'["\ud800"]', "a text has half of a surrogate pair"),
    "half of one in a key": (rb'{"a": [{"\udfff": 1}]}', "half of a surrogate pair"),
    "not UTF-8": (b'["\xff"]', "the byte 0xff is not UTF-8"),
    "no JSON": (b"{a}", "invalid JSON"),
    "nothing": (b"", "invalid JSON"),
    "a raw control character": (b'["a\x1bb"]', "invalid JSON"),
    "a text without an end": (b'["' + rb"\"" * 100_000, "invalid JSON"),
}


@pytest.mark.parametrize("trick", REFUSED)
def test_hostile_json_is_refused_with_the_reason(trick):
    raw, reason = REFUSED[trick]
    with pytest.raises(DataError, match=f"^index.json: the index cannot be read: .*{reason}"):
        parse_json(raw, "index.json", KIND, LIMITS)
    assert reason in problem_of_json(raw, LIMITS)


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(DataError, match="the index is too large: got 1048578 bytes, wanted at most 1048576 bytes"):
        parse_json(b'"' + b"a" * (1 << 20) + b'"', "index.json", KIND)


def test_brackets_and_commas_in_texts_do_not_count():
    value = {"[[[[[[[[[[[[": r'},,,\\"[{[{[{[{[{[{[{[' * 20, "b": "\\"}
    assert parse_json(json.dumps(value), "index.json", KIND, LIMITS) == value


def test_plain_values_are_read_as_the_library_reads_them():
    value = {"a": [1, -2.5, 1e-300, True, None, "ü \U0001f600 \n"], "": {}, "big": 2**60}
    assert parse_json(json.dumps(value), "index.json", KIND, LIMITS) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode(), "index.json", KIND, LIMITS) == value


def test_halves_of_surrogate_pairs_are_read_where_the_kind_may_have_them():
    assert parse_json(rb'["\ud800"]', "", KIND, JsonLimits(surrogates=True)) == ["\ud800"]


def test_the_structure_is_checked_before_anything_is_built():
    raw = b"[" + b"[]," * 300_000 + b"[]]"
    tracemalloc.start()
    started = time.process_time()
    assert "values, at most 1000" in problem_of_json(raw, JsonLimits(values=1000))
    assert tracemalloc.get_traced_memory()[1] < 4 * len(raw)
    tracemalloc.stop()
    assert time.process_time() - started < 2.0


def test_a_file_is_read_within_the_bounds_of_its_kind(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "a.json", KIND) == {"a": 1}
