"""Whether the head of a FLAC file agrees with its first frame. Source: RFC 9639, sections 8 and 9.1.

libsndfile reports no error where bytes are lost from the head, and then reads nothing; nor where the head states other
sizes of blocks, and then reads zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nemo_lite.errors import DataError, counted

_MAX_BLOCKS = 128
_STREAM_INFO_BYTES = 34
_FRAME_BYTES = 16  # of the longest header of a frame
# By the codes in the header of a frame; code 0 says that the head has it.
_RATES = {1: 88200, 2: 176400, 3: 192000, 4: 8000, 5: 16000, 6: 22050, 7: 24000, 8: 32000, 9: 44100, 10: 48000}
_RATES[11] = 96000
_RATE_UNITS = {12: (1, 1000), 13: (2, 1), 14: (2, 10)}  # bytes behind the header, and Hz for each unit
_SIZES = {1: 192, **{2 + n: 576 << n for n in range(4)}, **{8 + n: 256 << n for n in range(8)}}
_BITS = {1: 8, 2: 12, 4: 16, 5: 20, 6: 24, 7: 32}
_STEREO_CODES = (8, 9, 10)  # as left and side, side and right, mid and side


class _Frame(NamedTuple):
    """What the header of a frame says; ``rate`` and ``bits`` are None where it leaves them to the head."""

    rate: int | None
    num_channels: int
    bits: int | None
    size: int  # samples a channel


def check_flac(read_at: Callable[[int, int], bytes]) -> None:
    """Compare the rate, the channels, the bits and the size of blocks of the head with those of the first frame.

    Args:
        read_at: (number of bytes, position) -> bytes, as ``os.pread``.

    Raises:
        DataError: no frame follows the blocks of the head, or it says something else. Its text completes "a.flac ...".
    """
    info = read_at(4 + _STREAM_INFO_BYTES, 4)
    if len(info) < 4 + _STREAM_INFO_BYTES or info[0] & 0x7F or info[1:4] != _STREAM_INFO_BYTES.to_bytes(3, "big"):
        raise DataError("is damaged: a FLAC file that does not begin with its properties")
    header = read_at(_FRAME_BYTES, _first_frame(read_at))
    if len(header) < _FRAME_BYTES - 4 or header[0] != 0xFF or header[1] & 0xFE != 0xF8:
        raise DataError("is damaged: no frame of samples follows the head of the FLAC file")
    frame = _parsed(header)
    packed = int.from_bytes(info[14:22], "big")  # 20 bits of rate, 3 of channels, 5 of bits, 36 of samples
    rate, channels, bits = packed >> 44, (packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1
    said = (frame.rate or rate, frame.num_channels, frame.bits or bits)
    problem = "is damaged: its head and its first frame of samples disagree"
    if said != (rate, channels, bits):
        raise DataError(problem, got=_in_words(*said), wanted=_in_words(rate, channels, bits))
    least, most = int.from_bytes(info[4:6], "big"), int.from_bytes(info[6:8], "big")
    is_only_one = 0 < packed & (1 << 36) - 1 <= frame.size
    if frame.size > most or (frame.size < least and not is_only_one):  # the last one may be smaller
        raise DataError(problem, got=f"a frame of {frame.size} samples", wanted=f"{least} to {most}")


def _first_frame(read_at: Callable[[int, int], bytes]) -> int:
    """The byte behind the blocks of the head; each says whether it is the last one, and its size."""
    position = 4
    for _ in range(_MAX_BLOCKS):
        block = read_at(4, position)
        position += 4 + int.from_bytes(block[1:4], "big")
        if len(block) < 4 or block[0] & 0x80:
            break
    return position


def _parsed(header: bytes) -> _Frame:
    size_code, rate_code, channel_code = header[2] >> 4, header[2] & 15, header[3] >> 4
    # Behind four bytes comes the frame's number, as long as the ones at its beginning say; then what has no code.
    at = 4 + max(1, 8 - (header[4] ^ 0xFF).bit_length())
    if size_code in (6, 7):
        size, at = int.from_bytes(header[at : at + size_code - 5], "big") + 1, at + size_code - 5
    else:
        size = _SIZES.get(size_code, 0)
    num_bytes, hertz = _RATE_UNITS.get(rate_code, (0, 0))
    rate = int.from_bytes(header[at : at + num_bytes], "big") * hertz if num_bytes else _RATES.get(rate_code)
    num_channels = 2 if channel_code in _STEREO_CODES else channel_code + 1
    return _Frame(rate, num_channels, _BITS.get(header[3] >> 1 & 7), size)


def _in_words(rate: int, channels: int, bits: int) -> str:
    return f"{rate} Hz, {counted(channels, 'channel')}, {bits} bits"
