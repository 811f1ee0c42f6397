"""Digests: what counts of a value, of a file and of a package."""

from __future__ import annotations

import hashlib
import math
from enum import Enum
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_lite.errors import UsageError
from nemo_lite.files import digest_of, digest_of_files, digest_of_package, plain_values


class Colour(Enum):
    RED = 1
    BLUE = 2


DIFFERENT = [
    *(None, True, False, 0, 1, 1.5, "", "1", "None", b"", b"1", [], {}, [[]], ["a", "b"], ["b", "a"], {"a": 1}),
    *({1: "a"}, {"1": "a"}, {"a"}, {"a", "b"}, Path("a"), float("nan"), Colour.RED, Colour.BLUE, digest_of, Path),
]


def test_different_values_have_different_digests() -> None:
    same = [(left, right) for left, right in combinations(DIFFERENT, 2) if digest_of(left) == digest_of(right)]
    assert same == []


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1, 2], (1, 2)),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        (Path("/data/here/train.json"), Path("/mnt/train.json")),
        (np.float64(0.5), 0.5),
        (np.int32(3), 3),
        (object(), object()),
        (lambda: 1, lambda: 2),
    ],
)
def test_order_of_keys_folders_and_identities_do_not_count(left: Any, right: Any) -> None:
    assert digest_of(left) == digest_of(right)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        *((each, each) for each in (0.5, 3, True, None, "relu")),
        (math.inf, "Infinity"),
        (np.float32(0.5), 0.5),
        ([0.9, 0.98], "[0.9,0.98]"),
        (Path("/data/a.json"), '{"file":"a.json"}'),
        (Colour, f"{__name__}.Colour"),
        (Colour.RED, '{"Colour":"RED"}'),
        (["a"] * 200, digest_of(["a"] * 200)),
        ("a" * 200, digest_of("a" * 200)),
        ({}, '{"mapping":{}}'),
        (partial(math.sqrt, 2), '{"partial":[{"object":"math.sqrt"},[2],{"mapping":{}}]}'),
    ],
)
def test_short_values_are_shown_and_long_ones_are_digests(value: Any, plain: Any) -> None:
    assert [*plain_values("name", value)] == [("name", plain)]


def test_a_mapping_is_an_entry_for_each_key() -> None:
    assert dict(plain_values("speed", {"prob": 0.5, "rates": {"low": 0.9}})) == {
        "speed.prob": 0.5,
        "speed.rates.low": 0.9,
    }


def test_a_file_counts_by_name_and_content(tmp_path: Path) -> None:
    paths = []
    for folder, content in (("a", "one"), ("b", "two"), ("c", "one")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.json").write_text(content)
        paths.append(tmp_path / folder / "train.json")
    one, two = (hashlib.sha256(text).hexdigest() for text in (b"one", b"two"))
    assert digest_of_files(paths[:1]) == digest_of_files(paths[2:]) == {"train.json": one}
    assert digest_of_files([paths[0], paths[1], str(paths[0])]) == {"train.json": one, "train.json (2)": two}


def test_a_file_that_is_not_there_counts_as_none_and_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert digest_of_files([tmp_path / "dev.json"]) == {"dev.json": "none"}
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r'folder: the file cannot be read: got "Is a directory"'):
        digest_of_files([tmp_path / "folder"])


def test_a_package_counts_with_its_packages_and_nothing_else(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    for path in (tmp_path / "__init__.py", inner / "__init__.py", inner / "code.py"):
        path.write_text("a = 1\n")
    digest = digest_of_package(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "downloaded.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert digest_of_package(tmp_path) == digest
    (inner / "code.py").write_text("a = 2\n")
    changed = digest_of_package(tmp_path)
    (inner / "code.py").rename(inner / "other.py")
    assert len({digest, changed, digest_of_package(tmp_path)}) == 3
