"""What kind of audio a file is, by its head: refuses what no decoder is to see. Nothing is decoded in this file.

libsndfile decodes the first block of some codecs while it opens a file. Its IMA ADPCM reader believes a WAV header that
contradicts itself (CVE-2026-37555), so such a header must not reach it; nor must codecs that no corpus uses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TypeAlias

from nemo_lite.errors import DataError

ReadAt: TypeAlias = "Callable[[int, int], bytes]"  # (number of bytes, position) -> bytes, as os.pread

KINDS = "WAV, FLAC, OGG, MP3, AIFF, AU, CAF, W64 or SPHERE"
REMEDY = "convert it to 16-bit WAV or FLAC"

_MS_ADPCM, _IMA_ADPCM, _EXTENSIBLE = 0x0002, 0x0011, 0xFFFE
_WAV_TAGS = frozenset({0x0001, 0x0003, 0x0006, 0x0007, _MS_ADPCM, _IMA_ADPCM})  # PCM, float, A-law, mu-law, ADPCM
_KNOWN_REFUSED = {0x0031: "GSM 6.10", 0x0040: "G.721", 0x0055: "MP3"}
_BYTE_ORDER = {b"RIFF": "<", b"RF64": "<", b"RIFX": ">"}
_MAX_CHUNKS = 64
_FMT_BYTES = 26  # of a format chunk: up to the tag in the GUID of an extensible one
# The last bytes of a chunk's GUID in Sony Wave64; the first four are the name as in WAV.
_W64_RIFF = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_W64_FORMAT = b"fmt \xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
_AIFC_CODECS = frozenset(
    {b"NONE", b"sowt", b"twos", b"raw ", b"fl32", b"FL32", b"fl64", b"FL64", b"in24", b"in32"}
    | {b"alaw", b"ALAW", b"ulaw", b"ULAW"}
)
_CAF_CODECS = frozenset({b"lpcm", b"alaw", b"ulaw"})
_AU_ENCODINGS = frozenset({*range(1, 8), 27})  # mu-law, PCM of 8 to 32 bits, float, double; A-law


def check_header(read_at: ReadAt, path: str, place: str) -> None:
    """Refuse empty files, and all but the kinds of ``KINDS`` with plain samples, G.711 or (in WAV) ADPCM.

    Raises:
        DataError: what is wrong with ``path``, at ``place``.
    """
    head = read_at(32, 0)
    if not head:
        raise DataError(f"{path} is empty (0 bytes)", place=place)
    if head[:4] in _BYTE_ORDER and head[8:12] == b"WAVE":
        order = _BYTE_ORDER[head[:4]]
        _check_formats(list(_wav_formats(read_at, order)), order, path, place)
    elif head[:16] == _W64_RIFF:
        _check_formats(list(_w64_formats(read_at)), "<", path, place)
    elif not _is_plain(head, read_at):
        raise DataError(f"{path} is not a {KINDS} file, or has an unusual codec", place=place, remedy=REMEDY)


def _is_plain(head: bytes, read_at: ReadAt) -> bool:
    """Whether this is another file than WAV and W64 that is known, with a codec that is known."""
    if head[:4] in (b"fLaC", b"OggS") or head[:7] == b"NIST_1A" or _is_mp3(head):
        return True
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        commons = [chunk for name, chunk in _chunks(read_at, ">") if name == b"COMM"]
        return head[8:12] == b"AIFF" or (bool(commons) and all(each[18:22] in _AIFC_CODECS for each in commons))
    if head[:4] in (b".snd", b"dns."):
        return len(head) >= 16 and struct.unpack_from(">I" if head[:1] == b"." else "<I", head, 12)[0] in _AU_ENCODINGS
    return head[:4] == b"caff" and head[8:12] == b"desc" and head[28:32] in _CAF_CODECS


def _is_mp3(head: bytes) -> bool:
    """Whether a file starts with an ID3 tag, or with the header of an MPEG frame of layer III."""
    return head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2)


def _chunks(read_at: ReadAt, order: str) -> Iterator[tuple[bytes, bytes]]:
    """The name and the first bytes of each chunk of a RIFF or AIFF file."""
    position = 12
    for _ in range(_MAX_CHUNKS):
        header = read_at(8 + _FMT_BYTES, position)
        if len(header) < 8:
            return
        name, size = struct.unpack(f"{order}4sI", header[:8])
        yield name, header[8:]
        position += 8 + size + size % 2


def _wav_formats(read_at: ReadAt, order: str) -> Iterator[bytes]:
    """Each ``fmt`` chunk: a decoder may obey the last one, so all of them count."""
    return (chunk for name, chunk in _chunks(read_at, order) if name == b"fmt ")


def _w64_formats(read_at: ReadAt) -> Iterator[bytes]:
    position = 40
    for _ in range(_MAX_CHUNKS):
        header = read_at(24 + _FMT_BYTES, position)
        if len(header) < 24:
            return
        size = struct.unpack_from("<Q", header, 16)[0]  # with the 24 bytes before the content
        if header[:16] == _W64_FORMAT:
            yield header[24:]
        position += max(24, size + -size % 8)


def _check_formats(formats: list[bytes], order: str, path: str, place: str) -> None:
    tags = [_tag(chunk, order) for chunk in formats]
    if not tags or None in tags:
        raise DataError(f"{path} is damaged: a WAV file without a format", place=place)
    for chunk, tag in zip(formats, tags, strict=True):
        if tag not in _WAV_TAGS:
            codec = _KNOWN_REFUSED.get(tag or 0, f"0x{tag:04x}")
            problem = f"{path} has the WAV codec {codec}"
            raise DataError(problem, place=place, wanted="PCM, float, G.711 or ADPCM", remedy=REMEDY)
        if tag in (_MS_ADPCM, _IMA_ADPCM) and not _is_sound_adpcm(chunk, order, tag):
            raise DataError(f"{path} is damaged: its ADPCM header contradicts itself", place=place, remedy=REMEDY)


def _tag(chunk: bytes, order: str) -> int | None:
    """The codec; an extensible format has it at the start of its GUID, 24 bytes into the chunk."""
    if len(chunk) < 14:
        return None
    tag: int = struct.unpack_from(f"{order}H", chunk)[0]
    if tag == _EXTENSIBLE and len(chunk) == _FMT_BYTES:
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
