"""FLAC: whether the head agrees with the first frame, and how many samples the frames have.

Source: RFC 9639, sections 8 and 9. libsndfile reports no error where bytes are lost from the head, and then reads
nothing; nor where the head states other sizes of blocks, and then reads zeros; nor where its count of samples is short.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from nemo_asr.run.audio.kinds import MARKS, FilePart, ReadAt, is_small_lack, positions, whole
from nemo_lite.base.errors import DataError, counted

_INFO_BYTES = 34  # of the properties, behind four bytes of the file's name and four of their block
_FRAME_HEAD_BYTES = 16
_MOST_BLOCKS = 128
_LEAST_TAIL_BYTES = 1 << 16  # as many as the largest frame has, where the head does not say its size
_MOST_TAIL_BYTES = 1 << 18
_MOST_LAST_FRAMES = 8  # whose check sums are looked at
_TAG_BYTES = 128  # of ID3v1, at the end
_PROBES = (0.37, 0.5, 0.71)  # of the file: of two to ten recordings of one length, numbers there do not rise
# By the codes in the header of a frame; code 0 says that the head has it.
_RATES = (0, 88200, 176400, 192000, 8000, 16000, 22050, 24000, 32000, 44100, 48000, 96000)
_RATE_UNITS = {12: (1, 1000), 13: (2, 1), 14: (2, 10)}  # bytes behind the header, and Hz for each unit
_SIZES = {1: 192, **{2 + n: 576 << n for n in range(4)}, **{8 + n: 256 << n for n in range(8)}}
_BITS = {1: 8, 2: 12, 4: 16, 5: 20, 6: 24, 7: 32}
_STEREO_CODES = (8, 9, 10)  # as left and side, side and right, mid and side


def _check_sums(polynomial: int, num_bits: int) -> list[int]:
    """The table by which a check sum goes on byte by byte."""
    table = []
    for byte in range(256):
        value = byte << num_bits - 8
        for _ in range(8):
            value = value << 1 ^ (polynomial if value >> num_bits - 1 else 0)
            value &= (1 << num_bits) - 1
        table.append(value)
    return table


_CRC8, _CRC16 = _check_sums(0x07, 8), _check_sums(0x8005, 16)


class _Head:
    """The head of a FLAC file.

    Args:
        read: reads the file.
        start: where the stream begins.

    Raises:
        DataError: it does not begin with its properties. Its text completes "a.flac ...".
    """

    def __init__(self, read: ReadAt, start: int) -> None:
        info = read(4 + _INFO_BYTES, start + 4)
        if len(info) < 4 + _INFO_BYTES or info[0] & 0x7F or info[1:4] != _INFO_BYTES.to_bytes(3, "big"):
            raise DataError("is damaged: a FLAC file that does not begin with its properties")
        self.least_block, self.most_block = int.from_bytes(info[4:6], "big"), int.from_bytes(info[6:8], "big")
        self.frame_bytes = int.from_bytes(info[11:14], "big")  # of the largest; 0: not known
        self.packed = int.from_bytes(info[14:22], "big")  # 20 bits of rate, 3 of channels, 5 of bits, 36 of samples
        self.rate, self.num_channels = self.packed >> 44, (self.packed >> 41 & 7) + 1
        self.bits, self.total = (self.packed >> 36 & 31) + 1, self.packed & (1 << 36) - 1
        self.end = start + 4
        for _ in range(_MOST_BLOCKS):  # each says whether it is the last one, and its size
            block = read(4, self.end)
            self.end += 4 + int.from_bytes(block[1:4], "big")
            if len(block) < 4 or block[0] & 0x80:
                break


class _FrameHead(NamedTuple):
    """The header of a frame; 0 is what it leaves to the head of the file.

    Attributes:
        number: of its first sample, or its own where all frames have as many.
        num_samples: a channel.
        rate, num_channels, bits: of its samples.
        num_bytes: of the header, without its check sum.
    """

    number: int
    num_samples: int
    rate: int
    num_channels: int
    bits: int
    num_bytes: int


def _frame_head(content: bytes) -> _FrameHead:
    size_code, rate_code, channel_code = content[2] >> 4, content[2] & 15, content[3] >> 4
    # Behind four bytes comes the frame's number, as long as the ones at its beginning say; then what has no code.
    length = max(1, 8 - (content[4] ^ 0xFF).bit_length())
    number = content[4] & (0x7F if length == 1 else 0x7F >> length)
    for byte in content[5 : 4 + length]:
        number = number << 6 | byte & 0x3F
    at = 4 + length
    if size_code in (6, 7):
        num_samples, at = int.from_bytes(content[at : at + size_code - 5], "big") + 1, at + size_code - 5
    else:
        num_samples = _SIZES.get(size_code, 0)
    num_bytes, hertz = _RATE_UNITS.get(rate_code, (0, 0))
    rate = int.from_bytes(content[at : at + num_bytes], "big") * hertz
    if rate_code < len(_RATES):
        rate = _RATES[rate_code]
    num_channels = 2 if channel_code in _STEREO_CODES else channel_code + 1
    return _FrameHead(number, num_samples, rate, num_channels, _BITS.get(content[3] >> 1 & 7, 0), at + num_bytes)


def check_flac(read_at: ReadAt) -> None:
    """Compare the rate, the channels, the bits and the size of blocks of the head with those of the first frame.

    Args:
        read_at: (number of bytes, position) -> bytes, as ``os.pread``.

    Raises:
        DataError: no frame follows the blocks of the head, or it says something else. Its text completes "a.flac ...".
    """
    head = _Head(read_at, 0)
    content = read_at(_FRAME_HEAD_BYTES, head.end)
    if len(content) < _FRAME_HEAD_BYTES - 4 or content[0] != 0xFF or content[1] & 0xFE != 0xF8:
        raise DataError("is damaged: no frame of samples follows the head of the FLAC file")
    frame = _frame_head(content)
    in_frame = (frame.rate or head.rate, frame.num_channels, frame.bits or head.bits)
    problem = "is damaged: its head and its first frame of samples disagree"
    if in_frame != (head.rate, head.num_channels, head.bits):
        got, wanted = (
            f"{rate} Hz, {counted(channels, 'channel')}, {bits} bits"
            for rate, channels, bits in (in_frame, (head.rate, head.num_channels, head.bits))
        )
        raise DataError(problem, got=got, wanted=wanted)
    size, is_only_one = frame.num_samples, 0 < head.total <= frame.num_samples
    if size > head.most_block or (size < head.least_block and not is_only_one):  # the last one may be smaller
        wanted = f"{head.least_block} to {head.most_block}"
        raise DataError(problem, got=f"a frame of {size} samples", wanted=wanted)


class _FlacFrame(NamedTuple):
    at: int  # in the file
    first: int  # sample
    num_samples: int


class FlacStream:
    """A FLAC stream of a file.

    Args:
        read: reads the file.
        start: where it begins.

    Raises:
        DataError: it does not begin with its properties.
    """

    def __init__(self, read: ReadAt, start: int) -> None:
        self._read, self.head = read, _Head(read, start)
        most = self.head.frame_bytes
        self.tail_bytes = min(most + 256, _MOST_TAIL_BYTES) if most else _LEAST_TAIL_BYTES
        first = read(4, self.head.end).ljust(4, b"\0")
        self._mark, self._alike = first[:2], (first[2] & 15, first[3] & 15)  # the codes of the rate and of the bits

    def frames(self, first: int, end: int, *, from_behind: bool = False) -> Iterator[_FlacFrame]:
        """Frames whose headers lie in these bytes of the file, each with a right check sum of its header."""
        content = self._read(max(0, end - first) + _FRAME_HEAD_BYTES, first)
        last = end - first + 1  # two bytes of a mark
        at = content.rfind(self._mark, 0, last) if from_behind else content.find(self._mark, 0, last)
        while at >= 0:
            frame = self._frame(content[at : at + _FRAME_HEAD_BYTES])
            if frame is not None:
                number = frame.number if content[at + 1] & 1 else frame.number * self.head.most_block
                yield _FlacFrame(first + at, number, frame.num_samples)
            at = content.rfind(self._mark, 0, at + 1) if from_behind else content.find(self._mark, at + 1, last)

    def _frame(self, content: bytes) -> _FrameHead | None:
        """A header like that of the first frame, with a right check sum; None: there is none."""
        if len(content) < 6 or (content[2] & 15, content[3] & 15) != self._alike:
            return None
        if content[3] >> 4 > 10 or content[3] & 1 or content[2] & 15 == 15 or not content[2] >> 4:
            return None
        if 0x80 <= content[4] < 0xC0 or content[4] == 0xFF:  # the beginning of no number
            return None
        frame = _frame_head(content)
        check = 0
        for byte in content[: frame.num_bytes]:
            check = _CRC8[check ^ byte]
        return frame if frame.num_bytes < len(content) and check == content[frame.num_bytes] else None

    def last(self, end: int) -> _FlacFrame | None:
        """The last frame that begins before a byte of the file."""
        first = max(self.head.end, end - self.tail_bytes)
        return next(self.frames(first, end, from_behind=True), None)

    def rises(self, size: int) -> bool:
        """Whether the numbers of frames rise up to the end of the file, as they do in one recording alone."""
        before = 0
        for share in _PROBES:
            first = int(size * share)
            frame = next(self.frames(first, min(size, first + self.tail_bytes)), None)
            if frame is not None:
                if frame.first < before or frame.first >= self.head.total:
                    return False
                before = frame.first
        return True

    def held(self, end: int) -> tuple[int, int]:
        """How many samples there are up to a byte of the file, and behind which byte their last frame ends."""
        frames = list(self.frames(max(self.head.end, end - 2 * self.tail_bytes), end))[-_MOST_LAST_FRAMES:]
        for frame in reversed(frames):
            for cut in (end, end - _TAG_BYTES):
                check = 0
                for byte in self._read(max(0, cut - frame.at), frame.at):
                    check = check << 8 & 0xFFFF ^ _CRC16[check >> 8 ^ byte]
                if not check:  # the frame lies in these bytes and no others
                    return frame.first + frame.num_samples, cut
        # The last one is cut off: those before it count.
        for before, frame in reversed(list(pairwise(frames))):
            if before.first + before.num_samples == frame.first:
                return frame.first, frame.at
        return 0, end


def flac_part(read: ReadAt, start: int, size: int) -> FilePart:
    """A FLAC stream, with the number of samples that its frames have."""
    try:
        stream = FlacStream(read, start)
    except DataError:
        return whole(start, size)
    total, last = stream.head.total, stream.last(size)
    is_one = last is not None and last.first + last.num_samples == total and start == 0
    if is_one and stream.rises(size):
        return whole(start, size)
    end = next(positions(read, MARKS["FLAC"], start + 8 + _INFO_BYTES, size, 8), size)
    if end < size and total:
        return whole(start, end)
    # What follows is for heads without a count, or with another one than the frames have.
    last = last if end == size else stream.last(end)
    if last is None or last.first + last.num_samples == total:
        return whole(start, end)
    held, cut = stream.held(end)
    if not held or not is_small_lack(total - held, total, stream.head.rate):
        return whole(start, end)
    packed = (stream.head.packed - total | min(held, (1 << 36) - 1)).to_bytes(8, "big")
    return FilePart((range(start, start + 18), packed, range(start + 26, cut)), start, end, True, 0 < total < held)
