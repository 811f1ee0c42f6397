"""Whether the head of a FLAC file agrees with its first frame. Source: RFC 9639, sections 8 and 9.1.

libsndfile reads no samples, and reports no error, where bytes are lost from the head.
"""

from __future__ import annotations

from collections.abc import Callable

from nemo_lite.errors import DataError

_MAX_BLOCKS = 128
_STREAM_INFO_BYTES = 34
# By the codes in the header of a frame; the codes left out say that the head has it, or that more bytes follow.
_RATES = {1: 88200, 2: 176400, 3: 192000, 4: 8000, 5: 16000, 6: 22050, 7: 24000, 8: 32000, 9: 44100, 10: 48000}
_RATES[11] = 96000
_BITS = {1: 8, 2: 12, 4: 16, 5: 20, 6: 24, 7: 32}
_STEREO_CODES = (8, 9, 10)  # as left and side, side and right, mid and side


def check_flac(read_at: Callable[[int, int], bytes]) -> None:
    """Compare the rate, the channels and the bits of the head with those of the first frame.

    Args:
        read_at: (number of bytes, position) -> bytes, as ``os.pread``.

    Raises:
        DataError: no frame follows the blocks of the head, or it says something else. Its text completes "a.flac ...".
    """
    info = read_at(4 + _STREAM_INFO_BYTES, 4)
    if len(info) < 4 + _STREAM_INFO_BYTES or info[0] & 0x7F or info[1:4] != _STREAM_INFO_BYTES.to_bytes(3, "big"):
        raise DataError("is damaged: a FLAC file that does not begin with its properties")
    frame = read_at(4, _first_frame(read_at))
    if len(frame) < 4 or frame[0] != 0xFF or frame[1] & 0xFE != 0xF8:
        raise DataError("is damaged: no frame of samples follows the head of the FLAC file")
    packed = int.from_bytes(info[14:22], "big")  # 20 bits of rate, 3 of channels, 5 of bits, 36 of samples
    rate, channels, bits = packed >> 44, (packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1
    code = frame[3] >> 4
    said = (
        _RATES.get(frame[2] & 15, rate),
        2 if code in _STEREO_CODES else code + 1,
        _BITS.get(frame[3] >> 1 & 7, bits),
    )
    if said != (rate, channels, bits):
        problem = "is damaged: its head and its first frame of samples disagree"
        raise DataError(problem, got=_in_words(*said), wanted=_in_words(rate, channels, bits))


def _first_frame(read_at: Callable[[int, int], bytes]) -> int:
    """The byte behind the blocks of the head; each says whether it is the last one, and its size."""
    position = 4
    for _ in range(_MAX_BLOCKS):
        block = read_at(4, position)
        position += 4 + int.from_bytes(block[1:4], "big")
        if len(block) < 4 or block[0] & 0x80:
            break
    return position


def _in_words(rate: int, channels: int, bits: int) -> str:
    return f"{rate} Hz, {channels} {'channel' if channels == 1 else 'channels'}, {bits} bits"
