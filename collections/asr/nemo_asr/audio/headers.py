"""What libsndfile does not refuse by itself: looks at the head of an audio file before it is opened."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from nemo_lite.errors import DataError, counted

# Whether the head of a FLAC file agrees with its first frame. Source: RFC 9639, sections 8 and 9.1.
# libsndfile reports no error where bytes are lost from the head, and then reads nothing; nor where the head states
# other sizes of blocks, and then reads zeros.


_MAX_BLOCKS = 128
_STREAM_INFO_BYTES = 34
_FRAME_BYTES = 16  # of the longest header of a frame
# By the codes in the header of a frame; code 0 says that the head has it.
_FLAC_RATES = {1: 88200, 2: 176400, 3: 192000, 4: 8000, 5: 16000, 6: 22050, 7: 24000, 8: 32000, 9: 44100, 10: 48000}
_FLAC_RATES[11] = 96000
_RATE_UNITS = {12: (1, 1000), 13: (2, 1), 14: (2, 10)}  # bytes behind the header, and Hz for each unit
_SIZES = {1: 192, **{2 + n: 576 << n for n in range(4)}, **{8 + n: 256 << n for n in range(8)}}
_BITS = {1: 8, 2: 12, 4: 16, 5: 20, 6: 24, 7: 32}
_STEREO_CODES = (8, 9, 10)  # as left and side, side and right, mid and side


class _Frame(NamedTuple):
    """The header of a frame; ``rate`` and ``bits`` are None where it leaves them to the head."""

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
    in_frame = (frame.rate or rate, frame.num_channels, frame.bits or bits)
    problem = "is damaged: its head and its first frame of samples disagree"
    if in_frame != (rate, channels, bits):
        raise DataError(problem, got=_in_words(*in_frame), wanted=_in_words(rate, channels, bits))
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
    rate = int.from_bytes(header[at : at + num_bytes], "big") * hertz if num_bytes else _FLAC_RATES.get(rate_code)
    num_channels = 2 if channel_code in _STEREO_CODES else channel_code + 1
    return _Frame(rate, num_channels, _BITS.get(header[3] >> 1 & 7), size)


def _in_words(rate: int, channels: int, bits: int) -> str:
    return f"{rate} Hz, {counted(channels, 'channel')}, {bits} bits"


# The kind of a file, by its first bytes, and the sizes in heads of ADPCM. Other codecs, lengths and rates are checked
# when libsndfile has opened the file: see `reading`.


ReadAt: TypeAlias = "Callable[[int, int], bytes]"  # (number of bytes, position) -> bytes, as os.pread

KINDS = "WAV, FLAC, OGG, MP3, AIFF, AU, CAF, W64 or SPHERE"
REMEDY = "convert it to 16-bit WAV or FLAC"
# MP3 starts with an ID3 tag, or with the header of an MPEG frame of layer III.
_FIRST_BYTES = {
    "WAV": rb"(?:RIFF|RIFX|RF64)....WAVE",
    "W64": rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00",
    "FLAC": rb"fLaC",
    "AIFF": rb"FORM....AIF[FC]",
    "AU": rb"\.snd|dns\.",
    "CAF": rb"caff",
    "SPHERE": rb"NIST_1A",
    "OGG": rb"OggS",
    "MP3": rb"ID3|\xff[\xe2\xe3\xea\xeb\xf2\xf3\xfa\xfb]",
}
_KIND = re.compile(b"|".join(b"(?P<%b>%b)" % (kind.encode(), start) for kind, start in _FIRST_BYTES.items()), re.DOTALL)
_MS_ADPCM, _IMA_ADPCM, _EXTENSIBLE = 0x0002, 0x0011, 0xFFFE
_HEAD_BYTES = 4096  # read at once; most heads end within them
_MAX_CHUNKS = 64
_FMT_BYTES = 26  # of a format: up to the codec of an extensible one


def check_head(read_at: ReadAt, path: str, place: str) -> str:
    """Refuse an audio file that libsndfile must not see, or would read wrongly without an error.

    That is: an empty one, all but ``KINDS``, FLAC whose head is damaged, and WAV and W64 whose sizes of ADPCM blocks
    contradict each other, which libsndfile believes (CVE-2026-37555).

    Args:
        read_at: reads the file.
        path: what messages call it.
        place: where it is named.

    Returns:
        The kind: WAV, FLAC, ...

    Raises:
        DataError: what is wrong with ``path``, at ``place``.
    """
    start = read_at(_HEAD_BYTES, 0)
    if not start:
        raise DataError(f"{path} is empty (0 bytes)", place=place)

    def read(count: int, at: int) -> bytes:
        return start[at : at + count] if at + count <= len(start) else read_at(count, at)

    match = _KIND.match(start)
    if match is None:
        raise DataError(f"{path} is not a {KINDS} file", place=place, remedy=REMEDY)
    kind = str(match.lastgroup)
    try:
        if kind == "FLAC":
            check_flac(read)
        elif kind in ("WAV", "W64"):
            _check_adpcm(read, start)
    except DataError as error:
        raise DataError(f"{path} {error.problem}", place=place, got=error.got, wanted=error.wanted) from None
    return kind


def _check_adpcm(read_at: ReadAt, start: bytes) -> None:
    """See that the samples of an ADPCM block are those that its bytes can hold, for one or two channels."""
    order = ">" if start.startswith(b"RIFX") else "<"
    formats = list(_formats(read_at, order, is_w64=start.startswith(b"riff")))
    if not formats:
        raise DataError("is damaged: a WAV file without a format")
    for content in formats:
        tag, channels, _, _, block_bytes, bits, _, samples = struct.unpack_from(f"{order}HHIIHHHH", content)
        if tag == _EXTENSIBLE:
            tag = struct.unpack_from(f"{order}H", content, 24)[0]
        if tag in (_MS_ADPCM, _IMA_ADPCM):
            head, first = (7, 2) if tag == _MS_ADPCM else (4, 1)  # bytes and samples at a block's head, per channel
            codes = block_bytes - head * channels
            if channels not in (1, 2) or bits != 4 or codes <= 0 or samples != 2 * codes // channels + first:
                raise DataError("is damaged: its ADPCM header contradicts itself")


def _formats(read_at: ReadAt, order: str, *, is_w64: bool) -> Iterator[bytes]:
    """The first bytes of all format chunks, padded with zeros: a decoder may obey the last of several."""
    position, head_bytes, unit = (40, 24, 8) if is_w64 else (12, 8, 2)
    for _ in range(_MAX_CHUNKS):
        chunk = read_at(head_bytes + _FMT_BYTES, position)
        if len(chunk) < head_bytes:
            return
        if chunk[:4] == b"fmt ":
            yield chunk[head_bytes:].ljust(_FMT_BYTES, b"\0")
        if is_w64:  # the size of a chunk of W64 counts these 24 bytes as well
            size = max(head_bytes, struct.unpack_from("<Q", chunk, 16)[0])
        else:
            size = head_bytes + struct.unpack_from(f"{order}I", chunk, 4)[0]
        position += size + -size % unit
