"""What kind of audio file this is, judged from its first bytes before any decoder sees it. Nothing is decoded here.

libsndfile decodes the first block of some codecs while it opens a file, so a list of allowed codecs has to be checked
earlier: its IMA ADPCM reader (CVE-2026-37555) must not even be started.
"""

from __future__ import annotations

import os
import struct

from nemo_lite.errors import DataError

SUBTYPES = frozenset(
    {"PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW", "VORBIS", "OPUS"}
)  # libsndfile's names for the codecs that are let through
_WAV_TAGS = {0x0001: "PCM", 0x0003: "float", 0x0006: "A-law", 0x0007: "mu-law"}
_EXTENSIBLE = 0xFFFE
_KNOWN_REFUSED = {0x0002: "MS ADPCM", 0x0011: "IMA ADPCM", 0x0031: "GSM 6.10", 0x0040: "G.721", 0x0055: "MP3"}
_BYTE_ORDER = {b"RIFF": "<", b"RF64": "<", b"RIFX": ">"}
_MAX_CHUNKS = 64
REMEDY = "convert it to 16-bit WAV or FLAC"


def check_header(descriptor: int, path: str, place: str) -> None:
    """Let through WAV (PCM, float, A-law, mu-law), FLAC and OGG.

    Args:
        descriptor: the open file; its position is left alone.
        path: its name, for messages.
        place: who asks for it (``manifest:line``), for messages.

    Raises:
        DataError: an empty file, another kind of file, or a codec that is not allowed.
    """
    head = os.pread(descriptor, 12, 0)
    if not head:
        raise DataError(f"{path} is empty (0 bytes)", place=place)
    if head[:4] in (b"fLaC", b"OggS"):
        return
    if head[:4] not in _BYTE_ORDER or head[8:12] != b"WAVE":
        raise DataError(f"{path} is not a WAV, FLAC or OGG file", place=place, remedy=REMEDY)
    tags = _wav_tags(descriptor, _BYTE_ORDER[head[:4]])
    if not tags:
        raise DataError(f"{path} is damaged: a WAV file without a format", place=place)
    refused = [tag for tag in tags if tag not in _WAV_TAGS]
    if refused:
        codec = _KNOWN_REFUSED.get(refused[0], f"0x{refused[0]:04x}")
        raise DataError(f"{path} has the WAV codec {codec}", place=place, wanted="PCM or float", remedy=REMEDY)


def _wav_tags(descriptor: int, order: str) -> list[int]:
    """The format tag of every ``fmt`` chunk: a reader may obey the last one, so none may be overlooked."""
    tags: list[int] = []
    position = 12
    for _ in range(_MAX_CHUNKS):
        header = os.pread(descriptor, 8 + 26, position)
        if len(header) < 8:
            return tags
        name, size = struct.unpack(f"{order}4sI", header[:8])
        if name == b"fmt ":
            if len(header) < 8 + 14:
                return []
            tag = struct.unpack_from(f"{order}H", header, 8)[0]
            # An extensible format has the real tag at the start of its GUID, 24 bytes into the chunk.
            if tag == _EXTENSIBLE and len(header) == 8 + 26:
                tag = struct.unpack_from(f"{order}H", header, 8 + 24)[0]
            tags.append(tag)
        position += 8 + size + size % 2
    return []
