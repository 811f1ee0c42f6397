"""MP3: frames, of which each says its own size, counted where no head does. Source: ISO/IEC 11172-3, 2.4.2.3.

The count in a head, Xing or Info, is LAME's.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import NamedTuple

from nemo_asr.run.audio.kinds import FilePart, ReadAt, Stretch, is_small_lack, positions, whole

_SEARCH_BYTES = 1 << 20  # read at a time
_MOST_REST = 1 << 16  # bytes that are no frames, behind which frames are looked for
_MARK = re.compile(rb"\xff[\xe2\xe3\xea\xeb\xf2\xf3\xfa\xfb]")
_LAYER_3 = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
)
_RATES = {3: (44100, 48000, 32000, 0), 2: (22050, 24000, 16000, 0), 0: (11025, 12000, 8000, 0)}
_MONO = 3
_MOST_TAGS = 64
_SMALL_REST = 160  # behind the bytes that a head counts: a tag of ID3v1, and some filling
_LAME_PADDING_AT = 21  # of what follows the fields of Xing: 12 bits of delay, 12 of padding


class Mp3Frame(NamedTuple):
    """The head of a frame: bytes and samples a channel in it, samples a second, and bytes in front of its sound."""

    num_bytes: int
    rate: int
    num_samples: int
    is_mono: bool
    side_bytes: int


@lru_cache(4096)
def frame_of(head: bytes) -> Mp3Frame | None:
    """What the four bytes at the beginning of a frame of layer III say; None: they are none, or do not say its size."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2 or head[1] >> 3 & 3 == 1:
        return None
    version = head[1] >> 3 & 3  # 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    rate, kilobits = _RATES[version][head[2] >> 2 & 3], _LAYER_3[version != 3][head[2] >> 4]
    if not rate or not kilobits:
        return None
    is_mono = head[3] >> 6 == _MONO
    units, samples = (144, 1152) if version == 3 else (72, 576)
    side = (17 if is_mono else 32) if version == 3 else (9 if is_mono else 17)
    return Mp3Frame(units * kilobits * 1000 // rate + (head[2] >> 1 & 1), rate, samples, is_mono, side)


class _Count(NamedTuple):
    """What the first frame of an MP3 file says of the others; 0: nothing.

    Attributes:
        frames: how many, without itself.
        num_bytes: itself counted.
        frames_at: where ``frames`` is, within the frame.
        padding_at: where LAME's delay and padding are; 0: nowhere.
    """

    frames: int
    num_bytes: int
    frames_at: int = 0
    padding_at: int = 0


def _count_in(content: bytes, frame: Mp3Frame) -> _Count | None:
    """The count of a frame that is a head; None: it has sound."""
    for at in (4 + frame.side_bytes, 6 + frame.side_bytes):  # behind a check sum
        if content[at : at + 4] in (b"Xing", b"Info"):
            flags = int.from_bytes(content[at + 4 : at + 8], "big")
            position, values = at + 8, {}
            for flag, length in ((1, 4), (2, 4), (4, 100), (8, 4)):
                if flags & flag:
                    values[flag] = int.from_bytes(content[position : position + 4], "big")
                    position += length
            padding_at = position + _LAME_PADDING_AT if any(content[position : position + 9]) else 0
            return _Count(values.get(1, 0), values.get(2, 0), at + 8 if flags & 1 else 0, padding_at)
    if content[36:40] == b"VBRI":
        return _Count(0, 0)  # libmpg123 does not know it
    return None


def behind_tags(read: ReadAt, position: int) -> int:
    """The byte behind tags that stand in front of sound (ID3v2, APE), and behind zeros that fill them up."""
    for _ in range(_MOST_TAGS):
        head = read(32, position)
        if head.startswith(b"ID3") and len(head) > 10 and not any(byte & 0x80 for byte in head[6:10]):
            size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
            position += 10 + size + (10 if head[5] & 0x10 else 0)
        elif head.startswith(b"APETAGEX") and len(head) == 32:
            position += int.from_bytes(head[12:16], "little") + (32 if head[23] & 0x20 else 0)
        elif head.startswith(b"TAG"):
            position += 128
        else:
            break
    return position


def mp3_part(read: ReadAt, start: int, size: int) -> FilePart:
    """The frames of an MP3 file, up to the next one that is a head."""
    first = _first_frame(read, behind_tags(read, start), size)
    frame = None if first is None else frame_of(read(4, first))
    if first is None or frame is None:
        return whole(start, size)
    count = _count_in(read(frame.num_bytes, first), frame)
    if count and not count.frames:
        first, count = first + frame.num_bytes, None
    if count and count.num_bytes and 0 <= size - first - count.num_bytes <= _SMALL_REST:
        return whole(start, size)
    stretches, num_frames, end = _stretches(read, first + (frame.num_bytes if count else 0), size, frame)
    if not num_frames:
        return whole(start, size)
    if count is None:
        head = _new_head(read(4, first), num_frames, sum(map(len, stretches)))
        return FilePart((head, *stretches), start, end, True)
    is_small = is_small_lack(count.frames - num_frames, count.frames, frame.rate / frame.num_samples)
    if num_frames == count.frames or not is_small:
        is_plain = end == size and len(stretches) == 1
        return FilePart((range(first, first + frame.num_bytes), *stretches), start, end, not is_plain)
    changed = bytearray(read(frame.num_bytes, first))
    struct.pack_into(">I", changed, count.frames_at, num_frames)
    if count.padding_at:  # the end is another one than that which was filled up
        changed[count.padding_at + 1] &= 0xF0
        changed[count.padding_at + 2] = 0
    return FilePart((bytes(changed), *stretches), start, end, True, num_frames > count.frames)


def _first_frame(read: ReadAt, first: int, size: int) -> int | None:
    """Where the next frame begins that another one follows, or the end; behind bytes that are none."""
    if (frame := frame_of(read(4, first))) and (first + frame.num_bytes >= size or _goes_on(read, first, frame)):
        return first
    for at in positions(read, _MARK, first, min(size, first + _MOST_REST), 4):
        frame = frame_of(read(4, at))
        if frame and _goes_on(read, at, frame):
            return at
    return None


def _goes_on(read: ReadAt, at: int, frame: Mp3Frame) -> bool:
    following = frame_of(read(4, at + frame.num_bytes))
    return following is not None and following.rate == frame.rate


def _stretches(read: ReadAt, first: int, size: int, frame: Mp3Frame) -> tuple[list[Stretch], int, int]:
    """The frames from a byte on: where they lie, how many they are, and where the next recording begins."""
    stretches: list[Stretch] = []
    num_frames, position, begin, rest_bytes = 0, first, first, 0
    while True:
        count, num_bytes = _whole_frames(read(min(_SEARCH_BYTES, size - position), position), frame)
        num_frames, position = num_frames + count, position + num_bytes
        if count and position < size:
            continue
        if position > begin:
            stretches.append(range(begin, position))
        behind = behind_tags(read, position)
        is_lost = rest_bytes > _MOST_REST
        following = _next_start(read, position, behind, size, frame) if position < size and not is_lost else None
        if following is None:
            return stretches, num_frames, behind if size - behind > _MOST_REST else size
        begin, is_other = following
        rest_bytes += begin - behind
        if is_other:
            return stretches, num_frames, begin
        position = begin


def _whole_frames(content: bytes, frame: Mp3Frame) -> tuple[int, int]:
    """How many frames of the rate and channels of one there are, without a head among them, and their bytes."""
    at = count = 0
    while (here := frame_of(content[at : at + 4])) is not None:
        end, tag_at = at + here.num_bytes, at + 4 + here.side_bytes
        if end > len(content) or here.rate != frame.rate or here.is_mono != frame.is_mono:
            break
        if content[tag_at : tag_at + 4] in (b"Xing", b"Info") or content[at + 36 : at + 40] == b"VBRI":
            break
        at, count = end, count + 1
    return count, at


def _next_start(read: ReadAt, position: int, behind: int, size: int, frame: Mp3Frame) -> tuple[int, bool] | None:
    """Where frames go on, and whether it is another recording, with its own head or tags; None: nowhere.

    Args:
        read: reads the file.
        position: where the last one ends.
        behind: the same, or behind the tags there.
        size: bytes of the file.
        frame: one of the recording so far.
    """
    at = _first_frame(read, behind, size)
    here = None if at is None else frame_of(read(4, at))
    if at is None or here is None:
        return None
    is_other = here.rate != frame.rate or here.is_mono != frame.is_mono or read(3, position) == b"ID3"
    if not is_other and at == position and at + here.num_bytes > size:
        return None  # cut off within its last frame
    return at, is_other or _count_in(read(here.num_bytes, at), here) is not None


def _new_head(head: bytes, num_frames: int, num_bytes: int) -> bytes:
    """A frame without sound that says how many follow; of the largest size, where the fields have room."""
    changed = bytes([head[0], head[1] | 1, 14 << 4 | head[2] & 0x0C, head[3]])
    frame = frame_of(changed)
    assert frame is not None
    fields = b"Xing" + struct.pack(">III", 3, num_frames, min(frame.num_bytes + num_bytes, 0xFFFFFFFF))
    return (changed + bytes(frame.side_bytes) + fields).ljust(frame.num_bytes, b"\0")
