"""Kinds of audio files, told by their first bytes: those that libsndfile reads, and those that PyAV reads.

And a recording in a file of any kind, as stretches of its bytes (`FilePart`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

_MP3 = rb"ID3|\xff[\xe2\xe3\xea\xeb\xf2\xf3\xfa\xfb]"  # a tag, or the header of an MPEG frame of layer III
_WAV, _AIFF, _AU = rb"(?:RIFF|RIFX|RF64)....WAVE", rb"FORM....AIF[FC]", rb"\.snd|dns\."
_W64 = rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_AMR, _AVI = rb"#!AMR(?:-WB)?\n", rb"RIFF....AVI "
_OF_LIBSNDFILE = {
    "WAV": _WAV,
    "FLAC": rb"fLaC",
    "OGG": rb"OggS",
    "MP3": _MP3,
    "AIFF": _AIFF,
    "AU": _AU,
    "CAF": rb"caff",
    "W64": _W64,
    "SPHERE": rb"NIST_1A",
}
# With ffmpeg's demuxer, which is named to it and never guessed: a guess may take a text for a playlist, and open the
# files and addresses in it.
_OF_PYAV = {
    "MP4": (rb"....(?:ftyp|moov|mdat|wide|free|skip)", "mov"),
    "WebM": (rb"\x1a\x45\xdf\xa3", "matroska"),
    "AMR": (_AMR, "amr"),
    "AAC": (rb"\xff[\xf0\xf1\xf8\xf9]", "aac"),
    "WMA": (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),
    "MPEG-TS": (rb"\x47.{187}\x47|(?!RIF|ID3|\xff).{4}(?:\x47.{191}){2}\x47", "mpegts"),
    "AVI": (_AVI, "avi"),
    "AC-3": (rb"\x0b\x77...[\x00-\x57]", "ac3"),
    "E-AC-3": (rb"\x0b\x77...[\x58-\x87]", "eac3"),
    "MP2": (rb"\xff[\xe4\xe5\xf4\xf5\xfc\xfd]", "mp3"),
    # Of kinds that libsndfile reads: codecs that it does not.
    "CAF (ALAC and others)": (rb"caff....desc.{16}(?:alac|aac |ima4|samr|opus|flac|ac-3|\.mp[123])", "caf"),
    "OGG (FLAC or Speex)": (rb"OggS.{22}.{1,256}?(?:\x7fFLAC|Speex   )", "ogg"),
}
DEMUXERS = {kind: demuxer for kind, (_, demuxer) in _OF_PYAV.items()}
# Where a recording begins within a file: marks that samples hardly have by chance, but for those of MP3.
_MARKS = {
    "WAV": _WAV,
    "FLAC": rb"fLaC[\0\x80]\0\0\x22",
    "OGG": rb"OggS\0",
    "MP3": _MP3,
    "AIFF": _AIFF,
    "AU": _AU,
    "CAF": rb"caff\x00\x01",
    "W64": _W64,
    "SPHERE": rb"NIST_1A\n",
    "WebM": rb"\x1a\x45\xdf\xa3.{1,64}?\x42\x82.(?:webm|matroska)",
    "WMA": rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c",
    "MP4": rb"....ftyp",
    "AMR": _AMR,
    "AVI": _AVI,
}
MARKS = {kind: re.compile(mark, re.DOTALL) for kind, mark in _MARKS.items()}


def _alternatives(patterns: Sequence[bytes]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(b"(%b)" % pattern for pattern in patterns), re.DOTALL)


_FOR_LIBSNDFILE = tuple(_OF_LIBSNDFILE), _alternatives(list(_OF_LIBSNDFILE.values()))
_FOR_PYAV = tuple(_OF_PYAV), _alternatives([pattern for pattern, _ in _OF_PYAV.values()])
_WITHIN = tuple(_MARKS), _alternatives(list(_MARKS.values()))


def _matched(kinds: tuple[tuple[str, ...], re.Pattern[bytes]], start: bytes) -> str | None:
    names, pattern = kinds
    match = pattern.match(start)
    return None if match is None else names[(match.lastindex or 1) - 1]


def kind_of(start: bytes) -> str | None:
    """WAV, FLAC, ..., by the first bytes of a file that libsndfile may read; None: another kind."""
    return _matched(_FOR_LIBSNDFILE, start)


def kind_of_container(start: bytes) -> str | None:
    """MP4, WebM, AMR, ..., by the first bytes of a file that only PyAV reads; None: another kind."""
    return _matched(_FOR_PYAV, start)


def kind_within(start: bytes) -> str | None:
    """The kind of a recording that begins with these bytes of a file, also behind another one; None: none does."""
    return _matched(_WITHIN, start)


def _one_of(kinds: Sequence[str]) -> str:
    return f"{', '.join(kinds[:-1])} or {kinds[-1]}"


# The one list of what is read, for help and messages.
KINDS = _one_of(list(_OF_LIBSNDFILE))
CONTAINER_KINDS = _one_of([kind for kind in _OF_PYAV if "(" not in kind])
ALL_KINDS = f"{KINDS}; with PyAV {CONTAINER_KINDS}"

AUDIO_SUFFIXES = frozenset(
    {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf", ".w64", ".sph"}
)
# Not .ts and .mts, which are programs in most folders; a file that is named is read whatever its name is.
CONTAINER_SUFFIXES = frozenset(
    {".m4a", ".m4b", ".mp4", ".mov", ".3gp", ".webm", ".mka", ".mkv", ".amr", ".awb", ".aac", ".wma"}
    | {".m2ts", ".avi", ".ac3", ".eac3", ".mp2"}
)
ALL_SUFFIXES = AUDIO_SUFFIXES | CONTAINER_SUFFIXES


def has_av() -> bool:
    """Whether PyAV is installed."""
    return find_spec("av") is not None


def audio_suffixes() -> frozenset[str]:
    """The ends of names of audio files in small letters: of all that can be read with what is installed."""
    return ALL_SUFFIXES if has_av() else AUDIO_SUFFIXES


ReadAt: TypeAlias = "Callable[[int, int], bytes]"  # (number of bytes, position) -> bytes, as os.pread
Stretch: TypeAlias = "bytes | range"  # bytes that stand in the place of others, or positions in the file

_SEARCH_BYTES = 1 << 20  # read at a time
_LACKING_SECONDS, _LACKING_SHARE = 0.1, 0.1  # that are no damage: recorders count their head, or a block not written


class FilePart(NamedTuple):
    """A recording in a file.

    Attributes:
        stretches: its bytes.
        start, end: where it begins in the file, and where another one does, or the file ends.
        is_changed: ``stretches`` are not just the bytes between both.
        is_longer: it holds more than its head counts.
    """

    stretches: tuple[Stretch, ...]
    start: int
    end: int
    is_changed: bool = False
    is_longer: bool = False


def whole(start: int, end: int) -> FilePart:
    """The recording that has all bytes of the file from ``start`` to ``end``."""
    return FilePart((range(start, end),), start, end)


def positions(read: ReadAt, pattern: re.Pattern[bytes], first: int, size: int, most: int = 128) -> Iterator[int]:
    """Where a pattern of at most so many bytes is in a file, between two positions."""
    position = first
    while position < size:
        content = read(min(_SEARCH_BYTES + most, size - position), position)
        if not content:
            return
        for match in pattern.finditer(content):
            if match.start() < _SEARCH_BYTES:
                yield position + match.start()
        position += _SEARCH_BYTES


def is_small_lack(lack: float, promised: float, in_a_second: float) -> bool:
    """Whether a file lacks so little of what its head promises that it is taken as it is: at most 0.1 s, and a tenth.

    Args:
        lack: bytes or samples that are missing; below 0: there are more.
        promised: by the head.
        in_a_second: how many of them last a second.
    """
    return lack <= 0 or lack <= min(_LACKING_SECONDS * in_a_second, _LACKING_SHARE * promised)
