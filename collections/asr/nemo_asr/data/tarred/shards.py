"""The paths of tar shards: a pattern with braces, or a list. What is in a shard: `members`."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import TypeAlias

import bracex

from nemo_asr.arguments import ManyPaths
from nemo_lite.errors import DataError, UsageError
from nemo_lite.untrusted import kind_unless_file

# One path, perhaps with braces, or a sequence of such paths.
ShardPaths: TypeAlias = ManyPaths

_MOST_SHARDS = 100_000  # of one pattern: a typing error must not fill the memory
# NeMo's spellings of a range for shells that expand braces themselves.
_OTHER_BRACES = re.compile(r"[(\[<](\d+\.\.\d+)[)\]>]")


def expanded(paths: ShardPaths) -> list[str]:
    """The paths of the shards, in order: ``audio_{0..63}.tar``, or NeMo's ``audio__OP_0..63_CL_.tar``, are 64.

    Braces mean what they mean in bash (``{00..63}``, ``{a,b}``). A path that exists as it is written stays as it is.

    Raises:
        DataError: there is no path, one is given twice, or a shard is missing or no file: the first one, and how many.
        UsageError: a pattern of more than 100,000 shards.
    """
    patterns = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not patterns or not all(map(os.fspath, patterns)):
        raise DataError("the list of tar shards is empty or has an empty part", remedy="name tar files")
    found = [path for pattern in patterns for path in _expanded(os.path.expanduser(os.fspath(pattern)))]
    for path, count in Counter(found).items():
        if count > 1:
            raise DataError(f"the tar shard is given {count} times", place=path, remedy="name it once")
    missing = [path for path in found if not os.path.exists(path)]
    if missing:
        others = f" ({len(missing)} of {len(found)} are missing)" if len(missing) > 1 else ""
        raise DataError(f"the tar shard does not exist{others}", place=missing[0], remedy="mend the list of tar shards")
    for path in found:
        if kind := kind_unless_file(os.stat(path)):
            raise DataError(f"the tar shard is {kind}", place=path, wanted="a tar file")
    return found


def _expanded(pattern: str) -> list[str]:
    if os.path.exists(pattern):
        return [pattern]
    with_braces = _OTHER_BRACES.sub(r"{\1}", pattern.replace("_OP_", "{").replace("_CL_", "}"))
    try:
        return bracex.expand(with_braces, limit=_MOST_SHARDS)
    except bracex.ExpansionLimitException:
        raise UsageError(
            "the pattern has too many tar shards", got=pattern, wanted=f"{_MOST_SHARDS} or fewer"
        ) from None
