"""OGG: its pages, which say where a stream begins and ends. Source: RFC 3533, section 6."""

from __future__ import annotations

from nemo_asr.run.audio.kinds import MARKS
from nemo_asr.run.audio.parts import FilePart, ReadAt, positions, whole

_HEAD_BYTES, _MOST_PAGE_BYTES = 27, 65307  # of a page, behind which the sizes of its pieces stand
_FIRST, _LAST = 2, 4  # flags
_MOST_PAGES = 2_000_000  # ten hours of 20 ms each
_MOST_REST = 1 << 16  # bytes that are no pages, behind which pages are looked for


def _page_bytes(page: bytes) -> int:
    return _HEAD_BYTES + page[26] + sum(page[_HEAD_BYTES : _HEAD_BYTES + page[26]])


def ends_ogg(read_at: ReadAt, size: int) -> bool:
    """Whether the last page is whole and says that it is the last one."""
    end = read_at(min(size, _MOST_PAGE_BYTES), max(0, size - _MOST_PAGE_BYTES))
    page = end[end.rfind(b"OggS") :]
    return len(page) > _HEAD_BYTES and len(page) >= _page_bytes(page) and bool(page[5] & _LAST)


def ogg_part(read: ReadAt, start: int, size: int) -> FilePart:
    """A recording of OGG: its streams end where another one begins behind samples."""
    position, has_samples = start, False
    for _ in range(_MOST_PAGES):
        page = read(_HEAD_BYTES + 255, position)
        if len(page) <= _HEAD_BYTES:
            break
        if not page.startswith(b"OggS"):
            position = next(positions(read, MARKS["OGG"], position, min(size, position + _MOST_REST), 8), size)
            continue
        is_beginning = bool(page[5] & _FIRST)
        if is_beginning and has_samples:
            return whole(start, position)
        has_samples |= not is_beginning
        position += _page_bytes(page)
    return whole(start, size)
