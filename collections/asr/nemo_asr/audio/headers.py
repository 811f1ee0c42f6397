"""Headers of audio files: lengths and rates before samples are decoded."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
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
    rate = int.from_bytes(header[at : at + num_bytes], "big") * hertz if num_bytes else _FLAC_RATES.get(rate_code)
    num_channels = 2 if channel_code in _STEREO_CODES else channel_code + 1
    return _Frame(rate, num_channels, _BITS.get(header[3] >> 1 & 7), size)


def _in_words(rate: int, channels: int, bits: int) -> str:
    return f"{rate} Hz, {counted(channels, 'channel')}, {bits} bits"


# What the head of an audio file says: its kind, its codec, how many samples. Nothing is decoded in this file.
# libsndfile decodes the first block of some codecs while it opens a file. Its IMA ADPCM reader believes a WAV header
# that contradicts itself (CVE-2026-37555), so such a header must not reach it; nor must codecs that no corpus uses.
# It also takes the end of a file for the end of the samples, without a word: so what the header promises is compared
# here.


ReadAt: TypeAlias = "Callable[[int, int], bytes]"  # (number of bytes, position) -> bytes, as os.pread

KINDS = "WAV, FLAC, OGG, MP3, AIFF, AU, CAF, W64 or SPHERE"
REMEDY = "convert it to 16-bit WAV or FLAC"

_MS_ADPCM, _IMA_ADPCM, _EXTENSIBLE = 0x0002, 0x0011, 0xFFFE
_WAV_TAGS = frozenset({0x0001, 0x0003, 0x0006, 0x0007, _MS_ADPCM, _IMA_ADPCM})  # PCM, float, A-law, mu-law, ADPCM
_KNOWN_REFUSED = {0x0031: "GSM 6.10", 0x0040: "G.721", 0x0055: "MP3"}
_BYTE_ORDER = {b"RIFF": "<", b"RF64": "<", b"RIFX": ">"}
_RATES = (1000, 768000)
_HEAD_BYTES = 4096  # read at once; most headers end within them
_MAX_CHUNKS = 64
_FMT_BYTES = 28  # the most that is looked at of a chunk: up to the sizes in ds64
_SIZE_IN_DS64 = 0xFFFFFFFF
# A program that writes into a pipe cannot know the size. sox writes 0x7FFFF000, arecord 0x80000000, ffmpeg 0xFFFFFFFF.
_LEAST_UNKNOWN_SIZE = 0x7F000000
# The last bytes of a chunk's GUID in Sony Wave64; the first four are the name as in WAV.
_W64_RIFF = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_W64_NAMES = {
    b"fmt \xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a": b"fmt ",
    b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a": b"data",
}
_AIFC_CODECS = frozenset(
    {b"NONE", b"sowt", b"twos", b"raw ", b"fl32", b"FL32", b"fl64", b"FL64", b"in24", b"in32"}
    | {b"alaw", b"ALAW", b"ulaw", b"ULAW"}
)
_CAF_CODECS = frozenset({b"lpcm", b"alaw", b"ulaw"})
_AU_ENCODINGS = frozenset({*range(1, 8), 27})  # mu-law, PCM of 8 to 32 bits, float, double; A-law
_SPHERE_COUNT = re.compile(rb"\nsample_count -i (\d{1,18})\n")
_SPHERE_BYTES = 1024


class Header(NamedTuple):
    """What the head of a file says.

    Attributes:
        kind: of the file.
        frames: samples a channel; None: it does not say, or says it to the decoder only.
        frame_bytes: bytes of one sample of all channels; None: its kind does not say, or its codec has blocks.
    """

    kind: str
    frames: int | None = None
    frame_bytes: int | None = None


class _Chunk(NamedTuple):
    name: bytes
    start: int  # of its content
    size: int
    head: bytes  # the first bytes of its content


def check_header(read_at: ReadAt, size: int, path: str, place: str) -> Header:
    """Refuse empty files, all but ``KINDS`` with plain samples, G.711 or (in WAV) ADPCM, and headers that lie.

    Args:
        read_at: reads the file.
        size: bytes of the file.
        path: what messages call it.
        place: where it is named.

    Raises:
        DataError: what is wrong with ``path``, at ``place``.
    """
    start = read_at(_HEAD_BYTES, 0)
    if not start:
        raise DataError(f"{path} is empty (0 bytes)", place=place)

    def read(count: int, at: int) -> bytes:
        return start[at : at + count] if at + count <= len(start) else read_at(count, at)

    try:
        return _checked(read, size, start[:32])
    except DataError as error:
        wanted, remedy = error.wanted, error.remedy
        raise DataError(f"{path} {error.problem}", place=place, got=error.got, wanted=wanted, remedy=remedy) from None


def _checked(read_at: ReadAt, size: int, head: bytes) -> Header:
    if head[:4] in _BYTE_ORDER and head[8:12] == b"WAVE":
        order = _BYTE_ORDER[head[:4]]
        return _wav("WAV", list(_chunks(read_at, order)), order, size)
    if head[:16] == _W64_RIFF:
        return _wav("W64", list(_w64_chunks(read_at)), "<", size)
    if head[:4] == b"fLaC":
        check_flac(read_at)
        return Header("FLAC")
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return _aiff(list(_chunks(read_at, ">")), head[8:12] == b"AIFC", size)
    if head[:4] in (b".snd", b"dns.") and len(head) >= 24:
        return _au(struct.unpack_from(">5I" if head[:1] == b"." else "<5I", head, 4), size)
    if head[:4] == b"caff" and head[8:12] == b"desc" and head[28:32] in _CAF_CODECS:
        return _caf(read_at, size)
    if head[:7] == b"NIST_1A":
        count = _SPHERE_COUNT.search(read_at(_SPHERE_BYTES, 0))
        return Header("SPHERE", int(count[1]) if count else None)
    if head[:4] == b"OggS" or _is_mp3(head):
        return Header("OGG" if head[:1] == b"O" else "MP3")
    raise _other_kind()


def check_rate(rate: int, path: str = "", place: str = "") -> None:
    """DataError unless a file may have so many samples a second."""
    if not _RATES[0] <= rate <= _RATES[1]:
        problem = f"{path} claims {rate} samples a second".lstrip()
        raise DataError(problem, place=place, wanted=f"{_RATES[0]} to {_RATES[1]}")


def _other_kind() -> DataError:
    return DataError(f"is not a {KINDS} file, or has an unusual codec", remedy=REMEDY)


def _is_mp3(head: bytes) -> bool:
    """Whether a file starts with an ID3 tag, or with the header of an MPEG frame of layer III."""
    return head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2)


def _chunks(read_at: ReadAt, order: str) -> Iterator[_Chunk]:
    """The chunks of a RIFF or AIFF file."""
    position = 12
    for _ in range(_MAX_CHUNKS):
        header = read_at(8 + _FMT_BYTES, position)
        if len(header) < 8:
            return
        name, size = struct.unpack(f"{order}4sI", header[:8])
        yield _Chunk(name, position + 8, size, header[8:])
        position += 8 + size + size % 2


def _w64_chunks(read_at: ReadAt) -> Iterator[_Chunk]:
    position = 40
    for _ in range(_MAX_CHUNKS):
        header = read_at(24 + _FMT_BYTES, position)
        if len(header) < 24:
            return
        size = struct.unpack_from("<Q", header, 16)[0]  # with the 24 bytes before the content
        yield _Chunk(_W64_NAMES.get(header[:16], b""), position + 24, max(0, size - 24), header[24:])
        position += max(24, size + -size % 8)


def _wav(kind: str, chunks: Sequence[_Chunk], order: str, size: int) -> Header:
    """WAV, RF64 and W64. A decoder may obey the last of several formats, so all of them must be allowed ones."""
    formats = [chunk.head for chunk in chunks if chunk.name == b"fmt "]
    tags = [_tag(each, order) for each in formats]
    if not tags or None in tags:
        raise DataError("is damaged: a WAV file without a format")
    for each, tag in zip(formats, tags, strict=True):
        if tag not in _WAV_TAGS:
            codec = _KNOWN_REFUSED.get(tag or 0, f"0x{tag:04x}")
            raise DataError(f"has the WAV codec {codec}", wanted="PCM, float, G.711 or ADPCM", remedy=REMEDY)
        if tag in (_MS_ADPCM, _IMA_ADPCM) and not _is_sound_adpcm(each, order, tag):
            raise DataError("is damaged: its ADPCM header contradicts itself", remedy=REMEDY)
    if len(formats) > 1:
        raise DataError(f"is damaged: a WAV file with {len(formats)} formats")
    _, channels, rate, _, frame_bytes = struct.unpack_from(f"{order}HHIIH", formats[0])
    check_rate(rate)
    if not channels or not frame_bytes:
        raise DataError(f"is damaged: it has {channels} channels, and {frame_bytes} bytes a sample (block align)")
    data_bytes = _wav_data_bytes(chunks, order, size)
    if tags[0] in (_MS_ADPCM, _IMA_ADPCM):
        samples = struct.unpack_from(f"{order}H", formats[0], 18)[0]  # in a block
        # The decoder would make samples of what an earlier block left behind.
        return Header(kind, None if data_bytes is None else data_bytes // frame_bytes * samples)
    return Header(kind, None if data_bytes is None else data_bytes // frame_bytes, frame_bytes)


def _wav_data_bytes(chunks: Sequence[_Chunk], order: str, size: int) -> int | None:
    """Bytes of samples; None where no chunk of samples is found."""
    for chunk in chunks:
        if chunk.name == b"data":
            in_ds64 = [each.head for each in chunks if each.name == b"ds64" and len(each.head) >= 16]
            if chunk.size == _SIZE_IN_DS64 and in_ds64:
                return _held(chunk.start, struct.unpack_from(f"{order}Q", in_ds64[0], 8)[0], size)
            return _held(chunk.start, chunk.size, size, is_32_bits=chunk.size < 1 << 32)
    return None


def _held(start: int, promised: int, size: int, *, is_32_bits: bool = False) -> int:
    """The bytes of samples from ``start`` on: as promised, where a file of ``size`` bytes has them."""
    held = max(0, size - start)
    if promised <= held:
        return promised
    if is_32_bits and promised >= _LEAST_UNKNOWN_SIZE:
        return held
    raise DataError(f"is damaged: {promised} bytes of samples promised, {held} are there")


def _tag(chunk: bytes, order: str) -> int | None:
    """The codec; an extensible format has it at the start of its GUID, 24 bytes into the chunk."""
    if len(chunk) < 14:
        return None
    tag: int = struct.unpack_from(f"{order}H", chunk)[0]
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        tag = struct.unpack_from(f"{order}H", chunk, 24)[0]
    return tag


def _is_sound_adpcm(chunk: bytes, order: str, tag: int) -> bool:
    """Whether the samples of a block are those that its bytes can hold, for one or two channels of 4-bit codes."""
    if len(chunk) < 20:
        return False
    _, channels, _, _, block_bytes, bits, _, samples = struct.unpack_from(f"{order}HHIIHHHH", chunk)
    head, first = (7, 2) if tag == _MS_ADPCM else (4, 1)  # bytes and samples at the head of a block, per channel
    codes = block_bytes - head * channels
    return channels in (1, 2) and bits == 4 and codes > 0 and samples == 2 * codes // channels + first


def _aiff(chunks: Sequence[_Chunk], is_compressed: bool, size: int) -> Header:
    """AIFF, and AIFC with a codec that is known."""
    commons = [chunk.head for chunk in chunks if chunk.name == b"COMM"]
    if is_compressed and not (commons and all(each[18:22] in _AIFC_CODECS for each in commons)):
        raise _other_kind()
    if len(commons) != 1 or len(commons[0]) < 8:
        raise DataError(f"is damaged: an AIFF file with {len(commons)} formats")
    for chunk in chunks:
        if chunk.name == b"SSND":
            if _held(chunk.start, chunk.size, size, is_32_bits=True) < chunk.size:
                return Header("AIFF")
            return Header("AIFF", struct.unpack_from(">I", commons[0], 2)[0])
    return Header("AIFF")


def _caf(read_at: ReadAt, size: int) -> Header:
    """CAF: the first chunk describes the samples, and has 32 bytes."""
    frame_bytes = struct.unpack(">I", read_at(4, 36))[0] if size >= 40 else 0
    position = 8
    for _ in range(_MAX_CHUNKS):
        header = read_at(12, position)
        if len(header) < 12:
            break
        name, chunk_bytes = struct.unpack(">4sq", header)
        position += 12
        if name == b"data" and chunk_bytes >= 4 and frame_bytes:  # 4 bytes count edits; -1: to the end
            return Header("CAF", _held(position + 4, chunk_bytes - 4, size) // frame_bytes, frame_bytes)
        if chunk_bytes < 0:
            break
        position += chunk_bytes
    return Header("CAF")


def _au(fields: tuple[int, ...], size: int) -> Header:
    start, data_bytes, encoding, _, _ = fields
    if encoding not in _AU_ENCODINGS:
        raise _other_kind()
    _held(start, data_bytes, size, is_32_bits=True)
    return Header("AU")
