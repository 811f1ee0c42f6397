"""Where the recordings in an audio file begin and end: files joined by ``cat``, files that grew behind their head.

A head counts the samples that its writer knew of. Here the bytes are compared with it: several recordings behind each
other are several parts, and a head that cannot be right (a size that was never written, samples behind the last one
that it counts, MP3 without a count) is replaced by one that is. Nothing is decoded here, and no file is changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TypeAlias

from nemo_asr.run.audio import heads
from nemo_asr.run.audio.flac import flac_part
from nemo_asr.run.audio.kinds import MARKS, kind_of_container, kind_within
from nemo_asr.run.audio.mp3 import behind_tags, mp3_part
from nemo_asr.run.audio.mp4 import mp4_part
from nemo_asr.run.audio.ogg import ogg_part
from nemo_asr.run.audio.parts import FilePart, ReadAt, positions, whole

# (reads the file, where a recording begins, bytes of the file) -> the recording
Finder: TypeAlias = "Callable[[ReadAt, int, int], FilePart]"

_MOST_PARTS = 10_000
_KEPT_PLANS = 4096

_plans: OrderedDict[Hashable, list[FilePart]] = OrderedDict()
_lock = Lock()


def parts_of(read_at: ReadAt, size: int, identity: Hashable) -> list[FilePart]:
    """The recordings of a file; none where it is one, and is decoded as it stands.

    Args:
        read_at: reads the file.
        size: how many bytes it has.
        identity: of its content.
    """
    kind = kind_within(read_at(heads.HEAD_BYTES, 0))
    if kind is None:
        return []
    with _lock:
        if (parts := _plans.get(identity)) is not None:
            _plans.move_to_end(identity)
            return parts
    parts = []
    position = 0
    while kind is not None and position < size and len(parts) < _MOST_PARTS:
        parts.append(_FINDERS[kind](read_at, position, size))
        position = parts[-1].end
        kind = kind_within(read_at(heads.HEAD_BYTES, position)) if position < size else None
    if len(parts) == 1 and not parts[0].is_changed and parts[0].end == size:
        parts = []
    with _lock:
        _plans[identity] = parts
        if len(_plans) > _KEPT_PLANS:
            _plans.popitem(last=False)
    return parts


def _tagged(read: ReadAt, start: int, size: int) -> FilePart:
    """MP3, or what else stands behind its tags: FLAC, AAC or others."""
    first = behind_tags(read, start)
    head = read(heads.HEAD_BYTES, first) if first > start else b""
    kind = kind_within(head)
    if kind not in (None, "MP3"):
        return _FINDERS[str(kind)](read, first, size)._replace(start=start, is_changed=True)
    if kind_of_container(head) in ("AAC", "MP2"):
        return whole(first, size)._replace(start=start, is_changed=True)
    return mp3_part(read, start, size)


def _marked(kind: str) -> Finder:
    """Finds recordings that begin with a mark which nothing else has: they end where another one begins."""

    def find(read: ReadAt, start: int, size: int) -> FilePart:
        return whole(start, next(positions(read, MARKS[kind], start + 16, size), size))

    return find


def _avi_part(read: ReadAt, start: int, size: int) -> FilePart:
    position = start
    while position == start or read(12, position)[8:] == b"AVIX":  # a long one goes on so
        position += 8 + int.from_bytes(read(4, position + 4).ljust(4, b"\0"), "little")
        position += position % 2
        if position == start + 8 or position >= size:
            return whole(start, size)
    return whole(start, position if MARKS["AVI"].match(read(12, position)) else size)


_FINDERS: dict[str, Finder] = {
    "WAV": heads.wav_part,
    "FLAC": flac_part,
    "OGG": ogg_part,
    "MP3": _tagged,
    "AIFF": heads.aiff_part,
    "AU": heads.au_part,
    "CAF": heads.caf_part,
    "W64": heads.w64_part,
    "SPHERE": heads.sphere_part,
    "WebM": _marked("WebM"),
    "WMA": _marked("WMA"),
    "MP4": mp4_part,
    "AMR": _marked("AMR"),
    "AVI": _avi_part,
}
