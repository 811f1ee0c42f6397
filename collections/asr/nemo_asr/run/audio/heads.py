"""Heads of audio files: where a recording in a file begins and ends, and which heads cannot be right.

Files joined by ``cat`` have several recordings (`parts_of`). WAV, AIFF, AU, CAF, W64 and SPHERE count their samples;
where a size was never written, or sound follows behind the samples, the recording gets a head that is right. Nothing is
decoded here, and no file is changed. FLAC and MP3, which have a head for each frame, are in files of their own.

Sources: MP4, ISO/IEC 14496-12, 4.2; pages of OGG, RFC 3533, section 6.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from threading import Lock
from typing import NamedTuple, TypeAlias

from nemo_asr.run.audio.flac import flac_part
from nemo_asr.run.audio.kinds import (
    MARKS,
    FilePart,
    ReadAt,
    Stretch,
    kind_of,
    kind_of_container,
    kind_within,
    positions,
    whole,
)
from nemo_asr.run.audio.mp3 import behind_tags, frame_of, mp3_part
from nemo_lite.base.errors import DataError

HEAD_BYTES = 64  # enough to tell what kind of recording begins there
_MOST_CHUNKS = 10_000  # of one recording that are looked at
_MOST_BYTES = 1 << 62  # beyond this no file has a byte: W64 says so where a size was not known
_UNKNOWN_SIZE = 0x7F000000  # and above: programs that write into pipes; sox 0x7FFFF000, ffmpeg 0xFFFFFFFF
_UNKNOWN_LARGE_SIZE = 1 << 62  # likewise of 64 bits; ffmpeg has 2**63 - 1 and 2**64 - 1
_LEAST_SECONDS = 0.1  # fewer behind the samples of a head are a rest of something else
_PROBES_BEHIND = 16
_FMT_BYTES = 26  # of a format: up to the codec of an extensible one
_MS_ADPCM, _IMA_ADPCM, _MP3_IN_WAV, _EXTENSIBLE = 0x0002, 0x0011, 0x0055, 0xFFFE
_SPHERE_NUMBER = re.compile(rb"\n(sample_count|channel_count|sample_n_bytes|sample_rate) -i (\d{1,18})")
# Behind the samples, and no samples, also where their own size is wrong.
_KNOWN_CHUNK = re.compile(
    rb"LIST|[iI][dD]3 |bext|cue |smpl|inst|fact|PEAK|JUNK|junk|FLLR|PAD |iXML|afsp|plst|cart|levl|axml|chna|umid|_PMX"
    rb"|DISP|fmt |data|NAME|AUTH|ANNO|COMT|MARK|INST|APPL|COMM|SSND|info|strg|mark|regn|free|pakt|chan|kuki|uuid|midi"
    rb"|ovvw|peak|edct|list|summ|TAG|APET|ID3"
)


class _Chunks(NamedTuple):
    """How a format has its chunks: a name of four letters, the size at the end of a head, the content.

    Attributes:
        size: as `struct` reads it.
        head_bytes: of the head.
        unit: bytes of which the content is filled up to a multiple.
        counts_head: the size counts the head as well.
    """

    size: str
    head_bytes: int
    unit: int = 1
    counts_head: bool = False

    def walk(self, read: ReadAt, position: int) -> Iterator[tuple[bytes, int, int]]:
        """Of each chunk from a byte of the file on its name, where its content begins, and the size of that."""
        size_bytes = struct.calcsize(self.size)
        for _ in range(_MOST_CHUNKS):
            head = read(self.head_bytes, position)
            if len(head) < self.head_bytes:
                return
            (size,) = struct.unpack(self.size, head[-size_bytes:])
            if self.counts_head:
                size = max(size - self.head_bytes, 0)
            yield head[:4], position + self.head_bytes, size
            position += self.head_bytes + size + -size % self.unit
            if size < 0 or position > _MOST_BYTES:
                return

    def until(self, read: ReadAt, position: int, last: bytes) -> tuple[dict[bytes, int], int, int]:
        """Chunks from a byte of the file on, up to the first of a name.

        Returns:
            Where the contents of those before it begin, by name, and that of the last one, with its size; both 0, where
            there is none of the name.
        """
        before: dict[bytes, int] = {}
        for name, at, size in self.walk(read, position):
            if name == last:
                return before, at, size
            before[name] = at
        return before, 0, 0


_RIFF, _RIFX = _Chunks("<I", 8, unit=2), _Chunks(">I", 8, unit=2)  # AIFF has those of RIFX
_CAF, _W64 = _Chunks(">q", 12), _Chunks("<Q", 24, unit=8, counts_head=True)
_WAV_CHUNKS_AT, _W64_CHUNKS_AT = 12, 40


def check_adpcm(read_at: ReadAt, kind: str) -> None:
    """See that the samples of an ADPCM block of WAV or W64 are those that its bytes can hold, for one or two channels.

    libsndfile believes what the head says of them (CVE-2026-37555).

    Raises:
        DataError: they are not, or there is no format. Its text completes "a.wav ...".
    """
    chunks, order = (_RIFX, ">") if read_at(4, 0) == b"RIFX" else (_RIFF, "<")
    if kind == "W64":
        chunks = _W64
    has_format = False
    for name, at, _ in chunks.walk(read_at, _W64_CHUNKS_AT if kind == "W64" else _WAV_CHUNKS_AT):
        if name != b"fmt ":  # a decoder may obey the last of several
            continue
        has_format = True
        content = read_at(_FMT_BYTES, at).ljust(_FMT_BYTES, b"\0")
        tag, channels, _, _, block_bytes, bits, _, samples = struct.unpack_from(f"{order}HHIIHHHH", content)
        if tag == _EXTENSIBLE:
            (tag,) = struct.unpack_from(f"{order}H", content, 24)
        if tag in (_MS_ADPCM, _IMA_ADPCM):
            head, first = (7, 2) if tag == _MS_ADPCM else (4, 1)  # bytes and samples at a block's head, per channel
            codes = block_bytes - head * channels
            if channels not in (1, 2) or bits != 4 or codes <= 0 or samples != 2 * codes // channels + first:
                raise DataError("is damaged: its ADPCM header contradicts itself")
    if not has_format:
        raise DataError("is damaged: a WAV file without a format")


class _DataChunk(NamedTuple):
    """Where the samples of a recording lie, as its head has it.

    Attributes:
        at: their first byte.
        num_bytes: how many; None: the writer did not know.
        frame_bytes: of one moment.
        rate: moments a second.
        head: makes the head, up to ``at``, for another number of bytes.
        chunks: of the format.
        is_riff: chunks of other programs may follow, as in RIFF and AIFF.
    """

    at: int
    num_bytes: int | None
    frame_bytes: int
    rate: int
    head: Callable[[int], tuple[Stretch, ...]]
    chunks: _Chunks
    is_riff: bool = False


_PLAIN = _Chunks("", 0)  # of formats that have none


def _part_of(read: ReadAt, start: int, size: int, data: _DataChunk) -> FilePart:
    """The recording of these samples, which begins at a byte of the file and ends at the latest at its ``size``."""
    if data.num_bytes is None:
        return FilePart((*data.head(size - data.at), range(data.at, size)), start, size, size > data.at)
    end = data.at + data.num_bytes
    if end >= size:
        return whole(start, size)
    behind = end + -data.num_bytes % data.chunks.unit
    for at in (behind, end):
        if kind_within(read(HEAD_BYTES, at)) not in (None, "MP3"):  # two bytes, which samples have too, may be MP3
            return whole(start, at)
    least = _LEAST_SECONDS * data.rate * data.frame_bytes
    if size - end < least or _KNOWN_CHUNK.match(read(4, behind)):
        return whole(start, size)
    if data.is_riff and _are_chunks(read, behind, size, data.chunks):
        return whole(start, size)
    if all(read(HEAD_BYTES, end + (size - end) * n // _PROBES_BEHIND).isascii() for n in range(_PROBES_BEHIND)):
        return whole(start, size)  # zeros, with which it was filled up, or a text
    return FilePart((*data.head(size - data.at), range(data.at, size)), start, size, True, True)


def _are_chunks(read: ReadAt, position: int, size: int, chunks: _Chunks) -> bool:
    """Whether there are chunks of RIFF or AIFF from a byte on, up to the end of the file or to another recording."""
    for name, at, length in chunks.walk(read, position):
        if kind_within(read(12, at - chunks.head_bytes)) in ("WAV", "AIFF"):
            return True
        if not (name.isascii() and name.decode().isprintable()) or at + length + length % 2 > size + 1:
            return False
    return True


def wav_part(read: ReadAt, start: int, size: int) -> FilePart:
    """A recording of WAV, also of RIFX and RF64."""
    chunks, order = (_RIFX, ">") if read(4, start) == b"RIFX" else (_RIFF, "<")
    before, at, length = chunks.until(read, start + _WAV_CHUNKS_AT, b"data")
    if not at or b"fmt " not in before:
        return whole(start, size)
    ds64_at = before.get(b"ds64", 0)
    is_large = ds64_at > 0 and length == 0xFFFFFFFF
    if is_large:
        length = int.from_bytes(read(8, ds64_at + 8).ljust(8, b"\0"), "little")
    fmt = read(_FMT_BYTES, before[b"fmt "]).ljust(_FMT_BYTES, b"\0")
    tag, _, rate, _, frame_bytes = struct.unpack_from(f"{order}HHIIH", fmt)
    if tag == _EXTENSIBLE:
        (tag,) = struct.unpack_from(f"{order}H", fmt, 24)

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        if is_large:
            return range(start, ds64_at + 8), struct.pack("<Q", num_bytes), range(ds64_at + 16, at)
        return range(start, at - 4), struct.pack(f"{order}I", min(num_bytes, 0xFFFFFFFF))

    is_unknown = length == 0 and not _are_chunks(read, at, size, chunks)
    is_unknown |= length >= _UNKNOWN_LARGE_SIZE
    if tag == _MP3_IN_WAV:  # its frames, without the head around them
        end = size if is_unknown else min(at + length, size)
        behind = end + -length % 2
        is_joined = end < size and MARKS["WAV"].match(read(12, behind))
        part = mp3_part(read, at, end)
        last = part.end if part.end < end else behind if is_joined else size
        return part._replace(start=start, end=last, is_changed=True)
    data = _DataChunk(at, None if is_unknown else length, frame_bytes, rate, head_of, chunks, is_riff=True)
    return _part_of(read, start, size, data)


def w64_part(read: ReadAt, start: int, size: int) -> FilePart:
    """A recording of W64."""
    before, at, length = _W64.until(read, start + _W64_CHUNKS_AT, b"data")
    if not at or b"fmt " not in before or at >= size:
        return whole(start, size)
    _, _, rate, _, frame_bytes = struct.unpack_from("<HHIIH", read(16, before[b"fmt "]).ljust(16, b"\0"))

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        return range(start, at - 8), struct.pack("<Q", num_bytes + _W64.head_bytes)

    is_known = 0 < length < _UNKNOWN_LARGE_SIZE - _W64.head_bytes
    return _part_of(read, start, size, _DataChunk(at, length if is_known else None, frame_bytes, rate, head_of, _W64))


def aiff_part(read: ReadAt, start: int, size: int) -> FilePart:
    """A recording of AIFF or AIFF-C."""
    before, at, length = _RIFX.until(read, start + 12, b"SSND")
    # As of other sizes that a pipe does not know, libsndfile goes by the number of samples.
    if b"COMM" not in before or not 8 < length < _UNKNOWN_SIZE:
        return whole(start, size)
    channels, _, bits, exponent, mantissa = struct.unpack(">HIHHQ", read(18, before[b"COMM"]))
    frame_bytes = max(1, channels * ((bits + 7) // 8))
    rate = mantissa >> max(0, 16446 - (exponent & 0x7FFF)) if (exponent & 0x7FFF) < 16446 else 0
    count_at, first = before[b"COMM"] + 2, at + 8  # behind the offset and the size of blocks

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        form, count, size_of = (
            struct.pack(">I", min(number, 0xFFFFFFFF))
            for number in (first + num_bytes - start - 8, num_bytes // frame_bytes, num_bytes + 8)
        )
        before, between = range(start + 8, count_at), range(count_at + 4, at - 4)
        return range(start, start + 4), form, before, count, between, size_of, range(at, first)

    return _part_of(read, start, size, _DataChunk(first, length - 8, frame_bytes, rate, head_of, _RIFX, is_riff=True))


def au_part(read: ReadAt, start: int, size: int) -> FilePart:
    """A recording of AU."""
    head = read(24, start)
    if len(head) < 24:
        return whole(start, size)
    order = ">" if head.startswith(b".snd") else "<"
    first, length, encoding, rate, channels = struct.unpack_from(f"{order}IIIII", head, 4)
    at = start + first
    if first < 24 or length >= _UNKNOWN_SIZE or at >= size:
        return whole(start, size)

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        return range(start, start + 8), struct.pack(f"{order}I", min(num_bytes, 0xFFFFFFFF)), range(start + 12, at)

    frame_bytes = channels * {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}.get(encoding, 1)
    return _part_of(read, start, size, _DataChunk(at, length or None, frame_bytes, rate, head_of, _PLAIN))


def caf_part(read: ReadAt, start: int, size: int) -> FilePart:
    """A recording of CAF."""
    before, at, length = _CAF.until(read, start + 8, b"data")
    if not at or b"desc" not in before:
        return whole(start, size)
    seconds, _, _, packet_bytes, _, _, _ = struct.unpack(">d4sIIIII", read(32, before[b"desc"]))
    rate, frame_bytes = int(seconds) if 0 < seconds < 1e7 else 0, max(1, packet_bytes)

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        return range(start, at - 8), struct.pack(">q", num_bytes + 4), range(at, at + 4)

    num_bytes = length - 4 if 4 < length < _UNKNOWN_LARGE_SIZE else None  # behind the count of edits
    return _part_of(read, start, size, _DataChunk(at + 4, num_bytes, frame_bytes, rate, head_of, _CAF))


def sphere_part(read: ReadAt, start: int, size: int) -> FilePart:
    """A recording of NIST SPHERE."""
    text = read(1024, start)
    head_bytes = text[8:16].strip()
    numbers = {name: int(number) for name, number in _SPHERE_NUMBER.findall(text)}
    if not head_bytes.isdigit() or len(numbers) < 4 or int(head_bytes) > len(text):
        return whole(start, size)
    at, frame_bytes = start + int(head_bytes), numbers[b"channel_count"] * numbers[b"sample_n_bytes"]
    num_bytes = numbers[b"sample_count"] * frame_bytes
    if not num_bytes or b"shorten" in text:
        return whole(start, size)

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        changed = re.sub(rb"\nsample_count -i \d+", b"\nsample_count -i %d" % (num_bytes // frame_bytes), text)
        return (changed[: int(head_bytes)].ljust(int(head_bytes)),)

    return _part_of(read, start, size, _DataChunk(at, num_bytes, frame_bytes, numbers[b"sample_rate"], head_of, _PLAIN))


# Whose first bytes may as well be samples.
_SHORT_MARKS = ("MP3", "AAC", "AC-3", "E-AC-3", "MP2", "MPEG-TS")
_TS_BYTES = 188  # of a packet


def kind_of_start(start: bytes) -> str | None:
    """The kind of file that begins so, where samples without a header are wanted; None: these may be samples.

    Args:
        start: the first bytes; of kinds with short marks, as MP3 and AAC, enough for a frame and the next one's mark.
    """
    kind = kind_of(start) or kind_of_container(start)
    if kind not in _SHORT_MARKS or start.startswith(b"ID3"):
        return kind
    frame = frame_of(start[:4]) if kind == "MP3" else None
    num_bytes = frame.num_bytes if frame else 0
    if kind == "AAC" and len(start) > 5:
        num_bytes = (start[3] & 3) << 11 | start[4] << 3 | start[5] >> 5
    if kind == "MPEG-TS":
        return kind if set(start[: 4 * _TS_BYTES : _TS_BYTES]) == {start[0]} and len(start) > 3 * _TS_BYTES else None
    return kind if num_bytes > 4 and start[num_bytes : num_bytes + 2] == start[:2] else None


_MOST_BOXES = 1000  # that are looked at; a fragmented file has two for each second, behind its index
_MOST_JOINED_BOXES = 100_000


def _boxes(read: ReadAt, position: int, size: int, most: int) -> Iterator[tuple[bytes, int, int]]:
    """Of each box from a byte of the file on its name, where it begins, and its size."""
    for _ in range(most):
        if position >= size:
            return
        length, name, longer = struct.unpack(">I4sQ", read(16, position).ljust(16, b"\0"))
        length = {0: size - position, 1: longer}.get(length, length)
        yield name, position, length
        position += max(length, 8)


def check_boxes(read_at: ReadAt, size: int) -> None:
    """See that an MP4 file has its index, and the samples that its boxes promise: of both, decoders say "invalid data".

    Args:
        read_at: (number of bytes, position) -> bytes, as ``os.pread``.
        size: bytes of the file.

    Raises:
        DataError: one is missing. Its text completes "a.m4a ...".
    """
    end, has_index = 0, False
    for name, position, length in _boxes(read_at, 0, size, _MOST_BOXES):
        if name in (b"moov", b"mdat") and position + length > size:
            problem = f"is damaged: {position + length} bytes promised, {size} are there"
            raise DataError(problem, remedy="copy it anew: its end is missing")
        has_index |= name == b"moov"
        end = position + max(length, 8)
    if end >= size and not has_index:
        problem = "is damaged: the index of its samples (moov) is missing"
        raise DataError(problem, remedy="copy it anew; a recording that was broken off may never have had it")


def mp4_part(read: ReadAt, start: int, size: int) -> FilePart:
    """A recording of MP4, which ends where another one begins."""
    has_samples = False
    for name, position, _ in _boxes(read, start, size, _MOST_JOINED_BOXES):
        if name == b"ftyp" and has_samples:
            return whole(start, position)
        has_samples |= name in (b"mdat", b"moov")
    return whole(start, size)


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


# (reads the file, where a recording begins, bytes of the file) -> the recording
Finder: TypeAlias = "Callable[[ReadAt, int, int], FilePart]"

_MOST_PARTS = 10_000
_KEPT_PLANS = 4096

_plans: OrderedDict[Hashable, list[FilePart]] = OrderedDict()
_lock = Lock()


def parts_of(read_at: ReadAt, size: int, identity: Hashable) -> list[FilePart]:
    """The recordings of a file; none where it is one, and is decoded as it stands.

    Args:
        read_at: reads the file.
        size: how many bytes it has.
        identity: of its content.
    """
    kind = kind_within(read_at(HEAD_BYTES, 0))
    if kind is None:
        return []
    with _lock:
        if (parts := _plans.get(identity)) is not None:
            _plans.move_to_end(identity)
            return parts
    parts = []
    position = 0
    while kind is not None and position < size and len(parts) < _MOST_PARTS:
        parts.append(_FINDERS[kind](read_at, position, size))
        position = parts[-1].end
        kind = kind_within(read_at(HEAD_BYTES, position)) if position < size else None
    if len(parts) == 1 and not parts[0].is_changed and parts[0].end == size:
        parts = []
    with _lock:
        _plans[identity] = parts
        if len(_plans) > _KEPT_PLANS:
            _plans.popitem(last=False)
    return parts


def _tagged(read: ReadAt, start: int, size: int) -> FilePart:
    """MP3, or what else stands behind its tags: FLAC, AAC or others."""
    first = behind_tags(read, start)
    head = read(HEAD_BYTES, first) if first > start else b""
    kind = kind_within(head)
    if kind not in (None, "MP3"):
        return _FINDERS[str(kind)](read, first, size)._replace(start=start, is_changed=True)
    if kind_of_container(head) in ("AAC", "MP2"):
        return whole(first, size)._replace(start=start, is_changed=True)
    return mp3_part(read, start, size)


def _marked(kind: str) -> Finder:
    """Finds recordings that begin with a mark which nothing else has: they end where another one begins."""

    def find(read: ReadAt, start: int, size: int) -> FilePart:
        return whole(start, next(positions(read, MARKS[kind], start + 16, size), size))

    return find


def _avi_part(read: ReadAt, start: int, size: int) -> FilePart:
    position = start
    while position == start or read(12, position)[8:] == b"AVIX":  # a long one goes on so
        position += 8 + int.from_bytes(read(4, position + 4).ljust(4, b"\0"), "little")
        position += position % 2
        if position == start + 8 or position >= size:
            return whole(start, size)
    return whole(start, position if MARKS["AVI"].match(read(12, position)) else size)


_FINDERS: dict[str, Finder] = {
    "WAV": wav_part,
    "FLAC": flac_part,
    "OGG": ogg_part,
    "MP3": _tagged,
    "AIFF": aiff_part,
    "AU": au_part,
    "CAF": caf_part,
    "W64": w64_part,
    "SPHERE": sphere_part,
    "WebM": _marked("WebM"),
    "WMA": _marked("WMA"),
    "MP4": mp4_part,
    "AMR": _marked("AMR"),
    "AVI": _avi_part,
}
