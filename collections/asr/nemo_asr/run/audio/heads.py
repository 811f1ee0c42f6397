"""WAV, AIFF, AU, CAF, W64 and SPHERE: one head says where the samples end, and it may be wrong.

Where a size was never written, or sound follows behind the samples that the head counts, the recording gets a head
that is right. Of ADPCM the sizes of blocks are checked, which libsndfile believes (CVE-2026-37555).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nemo_asr.run.audio.kinds import MARKS, kind_within
from nemo_asr.run.audio.mp3 import mp3_part
from nemo_asr.run.audio.parts import FilePart, ReadAt, Stretch, whole
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
