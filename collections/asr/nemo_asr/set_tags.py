"""Short names of evaluation sets, by which their rates are logged and their files are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath


def unique_tags(manifests: Sequence[str]) -> list[str]:
    """A short name for each evaluation set: the file's stem, with as many folders before it as make it different.

    Comma-separated manifests are named after each part: ``dev-clean+dev-other``. The same set given twice is numbered.
    """
    sets = [[_parts(manifest) for manifest in together.split(",")] for together in manifests]
    tags: list[str] = []
    for depth in range(1, 1 + max((len(parts) for together in sets for parts in together), default=0)):
        tags = ["+".join("_".join(parts[-depth:]) for parts in together) for together in sets]
        if len(set(tags)) == len(tags):
            return tags
    return _numbered(tags)


def _parts(manifest: str) -> list[str]:
    """The folders and the stem of a path."""
    path = PurePath(manifest.strip())
    return [*(folder.strip("/") for folder in path.parts[:-1]), path.stem]


def _numbered(tags: Sequence[str]) -> list[str]:
    """The tags, those that occur more than once with a number that makes them different."""
    numbered: list[str] = []
    for tag in tags:
        candidates = (f"{tag}_{number}" for number in range(1, 2 + 2 * len(tags)))
        is_taken = tags.count(tag) > 1
        numbered.append(next(c for c in candidates if c not in tags and c not in numbered) if is_taken else tag)
    return numbered
