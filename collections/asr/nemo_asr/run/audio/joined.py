"""Where the recordings in an audio file begin and end: files joined by ``cat``, files that grew behind their head.

A head counts the samples that its writer knew of. Here the bytes are compared with it: several recordings behind each
other are several parts, and a head that cannot be right (a size that was never written, samples behind the last one
that it counts, MP3 without a count) is replaced by one that is. Nothing is decoded here, and no file is changed.
"""

from __future__ import annotations

import io
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate
from threading import Lock
from typing import NamedTuple, TypeAlias

ReadAt: TypeAlias = "Callable[[int, int], bytes]"  # (number of bytes, position) -> bytes, as os.pread
Stretch: TypeAlias = "bytes | range"  # bytes that stand in the place of others, or positions in the file


class Part(NamedTuple):
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


_MOST_PARTS = 10_000
_MOST_CHUNKS = 10_000  # of one recording that are looked at
_HEAD_BYTES = 64
_PROBES_BEHIND = 16
_KEPT_PLANS = 4096
_SEARCH_BYTES = 1 << 20  # read at a time
_MOST_REST = 1 << 16  # bytes that are no frames, behind which frames of OGG and MP3 are looked for
_UNKNOWN_SIZE = 0x7F000000  # and above: programs that write into pipes; sox 0x7FFFF000, ffmpeg 0xFFFFFFFF
_UNKNOWN_LARGE_SIZE = 1 << 62  # likewise of 64 bits; ffmpeg has 2**63 - 1 and 2**64 - 1
_LEAST_SECONDS = 0.1  # fewer behind the samples of a head are a rest of something else
_LACKING_SECONDS, _LACKING_SHARE = 0.1, 0.1  # that are no damage: recorders count their head, or a block not written


def is_small_lack(lack: float, promised: float, in_a_second: float) -> bool:
    """Whether a file lacks so little of what its head promises that it is taken as it is: at most 0.1 s, and a tenth.

    Args:
        lack: bytes or samples that are missing; below 0: there are more.
        promised: by the head.
        in_a_second: how many of them last a second.
    """
    return lack <= 0 or lack <= min(_LACKING_SECONDS * in_a_second, _LACKING_SHARE * promised)


class Window(io.RawIOBase):
    """Stretches of a file as a file of their own, for a decoder.

    Args:
        read_at: reads the file.
        stretches: what it has, in this order.
    """

    def __init__(self, read_at: ReadAt, stretches: Sequence[Stretch]) -> None:
        super().__init__()
        self._read_at, self._stretches, self._position = read_at, list(stretches), 0
        self._ends = list(accumulate(map(len, stretches)))
        self.size = self._ends[-1] if self._ends else 0
        self._number = 0  # of the stretch that was read last: most reads go on there

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position in bytes."""
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        """As of a file; a place before the beginning leaves the position as it is, which libsndfile notices."""
        target = position + (0, self._position, self.size)[whence]
        if target >= 0:
            self._position = target
        return self._position

    def readinto(self, buffer: object) -> int:
        """Fill a buffer as far as there are bytes."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # Buffer has no name before 3.12
        content = self.read_at(len(view), self._position)
        view[: len(content)] = content
        self._position += len(content)
        return len(content)

    def read_at(self, count: int, position: int) -> bytes:
        """Bytes from a position on; fewer at the end."""
        found = b""
        while len(found) < count and 0 <= position < self.size:
            number = self._number_at(position)
            stretch = self._stretches[number]
            first = position - self._ends[number] + len(stretch)
            wanted = min(count - len(found), len(stretch) - first)
            at = stretch[first : first + wanted]
            some = at if isinstance(at, bytes) else self._read_at(wanted, at.start)
            if not some:
                break
            found, position = found + some, position + len(some)
        return found

    def _number_at(self, position: int) -> int:
        number = self._number
        if number and position < self._ends[number - 1]:
            number = 0
        while position >= self._ends[number]:
            number += 1
        self._number = number
        return number


_plans: OrderedDict[Hashable, list[Part]] = OrderedDict()
_lock = Lock()


def parts_of(read_at: ReadAt, size: int, identity: Hashable) -> list[Part]:
    """The recordings of a file; none where it is one, and is decoded as it stands.

    Args:
        read_at: reads the file.
        size: how many bytes it has.
        identity: of its content.
    """
    finder = _finder_of(read_at(_HEAD_BYTES, 0))
    if finder is None:
        return []
    with _lock:
        if (known := _plans.get(identity)) is not None:
            _plans.move_to_end(identity)
            return known
    parts: list[Part] = []
    position = 0
    while finder is not None and position < size and len(parts) < _MOST_PARTS:
        part = finder(read_at, position, size)
        parts.append(part)
        position = part.end
        finder = _finder_of(read_at(_HEAD_BYTES, position)) if position < size else None
    if len(parts) == 1 and not parts[0].is_changed and parts[0].end == size:
        parts = []
    with _lock:
        _plans[identity] = parts
        if len(_plans) > _KEPT_PLANS:
            _plans.popitem(last=False)
    return parts


def _whole(start: int, end: int) -> Part:
    return Part((range(start, end),), start, end)


def _found(read: ReadAt, pattern: re.Pattern[bytes], first: int, size: int, most: int = 128) -> Iterator[int]:
    """Positions of a pattern of at most so many bytes."""
    position = first
    while position < size:
        content = read(min(_SEARCH_BYTES + most, size - position), position)
        if not content:
            return
        for match in pattern.finditer(content):
            if match.start() < _SEARCH_BYTES:
                yield position + match.start()
        position += _SEARCH_BYTES


# WAV, AIFF, AU, CAF, W64, SPHERE: one head says where the samples end.


_WAV = re.compile(rb"(?:RIFF|RIFX|RF64)....WAVE", re.DOTALL)
_AIFF = re.compile(rb"FORM....AIF[FC]", re.DOTALL)
_AU = re.compile(rb"\.snd|dns\.")
_CAF = re.compile(rb"caff\x00\x01")
_W64 = re.compile(rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0")
_SPHERE = re.compile(rb"NIST_1A\n")
_SPHERE_NUMBER = re.compile(rb"\n(sample_count|channel_count|sample_n_bytes|sample_rate) -i (\d{1,18})")
_FMT_BYTES = 26
_MP3_IN_WAV, _EXTENSIBLE = 0x55, 0xFFFE
# Behind the samples, and no samples, also where their own size is wrong.
_KNOWN_CHUNK = re.compile(
    rb"LIST|[iI][dD]3 |bext|cue |smpl|inst|fact|PEAK|JUNK|junk|FLLR|PAD |iXML|afsp|plst|cart|levl|axml|chna|umid|_PMX"
    rb"|DISP|fmt |data|NAME|AUTH|ANNO|COMT|MARK|INST|APPL|COMM|SSND|info|strg|mark|regn|free|pakt|chan|kuki|uuid|midi"
    rb"|ovvw|peak|edct|list|summ|TAG|APET|ID3"
)


class _Samples(NamedTuple):
    """Where the samples of a recording lie, as its head has it.

    Attributes:
        at: their first byte.
        num_bytes: how many.
        frame_bytes: of one moment.
        rate: moments a second.
        head: makes the head, up to ``at``, for another number of bytes.
        order: of the bytes in the sizes of chunks as RIFF and AIFF have them; "": there are none.
    """

    at: int
    num_bytes: int
    frame_bytes: int
    rate: int
    head: Callable[[int], tuple[Stretch, ...]]
    order: str = ""


def _ended(read: ReadAt, start: int, size: int, samples: _Samples, behind: int) -> Part:
    """The part of these samples.

    Args:
        read: reads the file.
        start: where the part begins.
        size: bytes of the file.
        samples: its samples, which end within the file.
        behind: where the next chunk begins; the padding of an odd one counts.
    """
    end = samples.at + samples.num_bytes
    for at in (behind, end):
        if _finder_of(read(_HEAD_BYTES, at)) not in (None, _mp3):  # two bytes, which samples have too, may be MP3
            return _whole(start, at)
    least = _LEAST_SECONDS * samples.rate * samples.frame_bytes
    if size - end < least or _KNOWN_CHUNK.match(read(4, behind)):
        return _whole(start, size)
    if samples.order and _are_chunks(read, behind, size, samples.order):
        return _whole(start, size)
    if all(read(_HEAD_BYTES, end + (size - end) * n // _PROBES_BEHIND).isascii() for n in range(_PROBES_BEHIND)):
        return _whole(start, size)  # zeros, with which it was filled up, or a text
    return Part((*samples.head(size - samples.at), range(samples.at, size)), start, size, True, True)


def _wav(read: ReadAt, start: int, size: int) -> Part:
    first = read(12, start)
    order = ">" if first.startswith(b"RIFX") else "<"
    position, large, ds64_at, fmt = start + 12, 0, 0, b""
    for _ in range(_MOST_CHUNKS):
        head = read(8, position)
        if len(head) < 8:
            return _whole(start, size)
        name, length = head[:4], struct.unpack_from(f"{order}I", head, 4)[0]
        if name == b"data":
            break
        if name == b"fmt ":
            fmt = read(_FMT_BYTES, position + 8).ljust(_FMT_BYTES, b"\0")
        elif name == b"ds64":
            ds64_at = position + 8
            large = int.from_bytes(read(8, ds64_at + 8).ljust(8, b"\0"), "little")
        position += 8 + length + length % 2
    else:
        return _whole(start, size)
    at, is_large = position + 8, bool(ds64_at) and length == 0xFFFFFFFF
    if is_large:
        length = large
    if not is_large and length > 0 and at + length >= size:  # also an unknown size, which libsndfile understands
        is_mp3 = bool(fmt) and struct.unpack_from(f"{order}H", fmt)[0] == _MP3_IN_WAV
        return _of_mp3_in_wav(read, start, at, size, size) if is_mp3 else _whole(start, size)
    if not fmt:
        return _whole(start, size)
    tag, _, rate, _, frame_bytes = struct.unpack_from(f"{order}HHIIH", fmt)
    if tag == _EXTENSIBLE:
        tag = struct.unpack_from(f"{order}H", fmt, 24)[0]

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        if is_large:
            counted = struct.pack("<Q", num_bytes)
            return range(start, ds64_at + 8), counted, range(ds64_at + 16, at)
        return range(start, at - 4), struct.pack(f"{order}I", min(num_bytes, 0xFFFFFFFF))

    samples = _Samples(at, length, frame_bytes, rate, head_of, order)
    if (length == 0 and not _are_chunks(read, at, size, order)) or length >= _UNKNOWN_LARGE_SIZE:
        if tag == _MP3_IN_WAV:
            return _of_mp3_in_wav(read, start, at, size, size)
        return Part((*head_of(size - at), range(at, size)), start, size, size > at)
    if at + length >= size:
        return _whole(start, size)
    behind = at + length + length % 2
    if tag == _MP3_IN_WAV:
        return _of_mp3_in_wav(read, start, at, at + length, behind if _WAV.match(read(12, behind)) else size)
    return _ended(read, start, size, samples, behind)


def _are_chunks(read: ReadAt, position: int, size: int, order: str) -> bool:
    """Whether there are chunks of RIFF or AIFF from a byte on, up to the end of the file or to another recording."""
    for _ in range(_MOST_CHUNKS):
        head = read(12, position)
        if len(head) < 8 or _WAV.match(head) or _AIFF.match(head):
            return True
        length = struct.unpack_from(f"{order}I", head, 4)[0]
        position += 8 + length + length % 2
        if not (head[:4].isascii() and head[:4].decode().isprintable()) or position > size + 1:
            return False
    return False


def _of_mp3_in_wav(read: ReadAt, start: int, at: int, samples_end: int, end: int) -> Part:
    """MP3 as the samples of a WAV file: its frames, without the head around them."""
    part = _mp3(read, at, samples_end)
    return part._replace(start=start, end=part.end if part.end < samples_end else end, is_changed=True)


def _w64(read: ReadAt, start: int, size: int) -> Part:
    position, fmt = start + 40, b""
    for _ in range(_MOST_CHUNKS):
        head = read(24, position)
        if len(head) < 24 or position >= size:
            return _whole(start, size)
        length = int.from_bytes(head[16:], "little")
        if head.startswith(b"data"):
            break
        if head.startswith(b"fmt "):
            fmt = read(16, position + 24).ljust(16, b"\0")
        length = max(length, 24)
        position += length + -length % 8
    else:
        return _whole(start, size)
    at = position + 24
    if not fmt or at >= size:
        return _whole(start, size)
    _, _, rate, _, frame_bytes = struct.unpack_from("<HHIIH", fmt)

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        return range(start, at - 8), struct.pack("<Q", num_bytes + 24)

    if length <= 24 or length >= _UNKNOWN_LARGE_SIZE:
        return Part((*head_of(size - at), range(at, size)), start, size, True)
    if at + length - 24 >= size:
        return _whole(start, size)
    samples = _Samples(at, length - 24, frame_bytes, rate, head_of)
    return _ended(read, start, size, samples, at + length - 24 + -length % 8)


def _aiff(read: ReadAt, start: int, size: int) -> Part:
    position, count_at, rate, frame_bytes = start + 12, 0, 0, 1
    for _ in range(_MOST_CHUNKS):
        head = read(8, position)
        if len(head) < 8:
            return _whole(start, size)
        name, length = head[:4], int.from_bytes(head[4:], "big")
        if name == b"SSND":
            break
        if name == b"COMM" and len(content := read(18, position + 8)) == 18:
            channels, _, bits, exponent, mantissa = struct.unpack(">HIHHQ", content)
            count_at, frame_bytes = position + 10, max(1, channels * ((bits + 7) // 8))
            rate = mantissa >> max(0, 16446 - (exponent & 0x7FFF)) if (exponent & 0x7FFF) < 16446 else 0
        position += 8 + length + length % 2
    else:
        return _whole(start, size)
    at = position + 16  # behind the offset and the size of blocks
    end = position + 8 + length
    # As of other sizes that a pipe does not know, libsndfile goes by the number of samples.
    if not count_at or not 8 < length < _UNKNOWN_SIZE or end >= size:
        return _whole(start, size)

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        count = struct.pack(">I", min(num_bytes // frame_bytes, 0xFFFFFFFF))
        size_of = struct.pack(">I", min(num_bytes + 8, 0xFFFFFFFF))
        form = struct.pack(">I", min(at + num_bytes - start - 8, 0xFFFFFFFF))
        return (
            range(start, start + 4),
            form,
            range(start + 8, count_at),
            count,
            range(count_at + 4, position + 4),
            size_of,
            range(position + 8, at),
        )

    samples = _Samples(at, length - 8, frame_bytes, rate, head_of, ">")
    return _ended(read, start, size, samples, end + length % 2)


def _au(read: ReadAt, start: int, size: int) -> Part:
    head = read(24, start)
    if len(head) < 24:
        return _whole(start, size)
    order = ">" if head.startswith(b".snd") else "<"
    first, length, encoding, rate, channels = struct.unpack_from(f"{order}IIIII", head, 4)
    at = start + first
    if first < 24 or length >= _UNKNOWN_SIZE or at + length >= size:
        return _whole(start, size)

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        return range(start, start + 8), struct.pack(f"{order}I", min(num_bytes, 0xFFFFFFFF)), range(start + 12, at)

    if not length:
        return Part((*head_of(size - at), range(at, size)), start, size, True)
    sample_bytes = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}.get(encoding, 1)
    samples = _Samples(at, length, sample_bytes * channels, rate, head_of)
    return _ended(read, start, size, samples, at + length)


def _caf(read: ReadAt, start: int, size: int) -> Part:
    position, rate, frame_bytes = start + 8, 0, 1
    for _ in range(_MOST_CHUNKS):
        head = read(12, position)
        if len(head) < 12:
            return _whole(start, size)
        name, length = head[:4], int.from_bytes(head[4:], "big", signed=True)
        if name == b"data":
            break
        if name == b"desc" and len(content := read(32, position + 12)) == 32:
            seconds, _, _, packet_bytes, _, _, _ = struct.unpack(">d4sIIIII", content)
            rate, frame_bytes = int(seconds) if 0 < seconds < 1e7 else 0, max(1, packet_bytes)
        if length < 0:
            return _whole(start, size)
        position += 12 + length
    else:
        return _whole(start, size)
    at = position + 16  # behind the count of edits

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        return range(start, position + 4), struct.pack(">q", num_bytes + 4), range(position + 12, at)

    if length <= 4 or length >= _UNKNOWN_LARGE_SIZE:
        return Part((*head_of(size - at), range(at, size)), start, size, size > at)
    if at + length - 4 >= size:
        return _whole(start, size)
    samples = _Samples(at, length - 4, frame_bytes, rate, head_of)
    return _ended(read, start, size, samples, at + length - 4)


def _sphere(read: ReadAt, start: int, size: int) -> Part:
    text = read(1024, start)
    head_bytes = text[8:16].strip()
    numbers = {name: int(number) for name, number in _SPHERE_NUMBER.findall(text)}
    if not head_bytes.isdigit() or len(numbers) < 4 or int(head_bytes) > len(text):
        return _whole(start, size)
    at, count = start + int(head_bytes), numbers[b"sample_count"]
    frame_bytes = numbers[b"channel_count"] * numbers[b"sample_n_bytes"]
    length = count * frame_bytes
    if not length or at + length >= size or b"shorten" in text:
        return _whole(start, size)

    def head_of(num_bytes: int) -> tuple[Stretch, ...]:
        changed = re.sub(rb"\nsample_count -i \d+", b"\nsample_count -i %d" % (num_bytes // frame_bytes), text)
        return (changed[: int(head_bytes)].ljust(int(head_bytes)),)

    samples = _Samples(at, length, frame_bytes, numbers[b"sample_rate"], head_of)
    return _ended(read, start, size, samples, at + length)


# FLAC: the numbers in the heads of its frames tell how many samples there are. Source: RFC 9639, sections 8 and 9.1.


_FLAC = re.compile(rb"fLaC[\0\x80]\0\0\x22")
_FLAC_HEAD_BYTES = 16
_FLAC_TAIL_BYTES = 1 << 16  # at least as many as the largest frame, where the head does not say its size
_MOST_TAIL_BYTES = 1 << 18
_MOST_FLAC_BLOCKS = 128
_MOST_LAST_FRAMES = 8  # whose check sums are looked at
_TAG_BYTES = 128  # of ID3v1, at the end
_PROBES = (0.37, 0.5, 0.71)  # of the file: of two to ten recordings of one length, numbers there do not rise
_CRC8 = [0] * 256
for _byte in range(256):
    _value = _byte
    for _ in range(8):
        _value = _value << 1 & 0xFF ^ (0x07 if _value & 0x80 else 0)
    _CRC8[_byte] = _value
_CRC16 = [0] * 256
for _byte in range(256):
    _value = _byte << 8
    for _ in range(8):
        _value = _value << 1 & 0xFFFF ^ (0x8005 if _value & 0x8000 else 0)
    _CRC16[_byte] = _value
_BLOCK_SIZES = {1: 192, **{2 + n: 576 << n for n in range(4)}, **{8 + n: 256 << n for n in range(8)}}


class _Frame(NamedTuple):
    at: int  # in the file
    first: int  # sample
    num_samples: int


class _Flac:
    """A FLAC stream of a file.

    Args:
        read: reads the file.
        start: where it begins.
        info: its properties, 34 bytes.
    """

    def __init__(self, read: ReadAt, start: int, info: bytes) -> None:
        self._read = read
        self.packed = int.from_bytes(info[10:18], "big")
        self.total = self.packed & (1 << 36) - 1
        self._block = int.from_bytes(info[2:4], "big")
        frame_bytes = int.from_bytes(info[7:10], "big")
        self.tail_bytes = min(frame_bytes + 256, _MOST_TAIL_BYTES) if frame_bytes else _FLAC_TAIL_BYTES
        self.first_frame = start + 4
        for _ in range(_MOST_FLAC_BLOCKS):
            block = read(4, self.first_frame)
            self.first_frame += 4 + int.from_bytes(block[1:4], "big")
            if len(block) < 4 or block[0] & 0x80:
                break

        head = read(4, self.first_frame).ljust(4, b"\0")
        self._mark, self._alike = head[:2], (head[2] & 15, head[3] & 15)  # the codes of the rate and of the bits

    def frames(self, first: int, end: int, *, from_behind: bool = False) -> Iterator[_Frame]:
        """Frames whose heads lie in these bytes of the file, each with a right check sum of its head."""
        content = self._read(max(0, end - first) + _FLAC_HEAD_BYTES, first)
        last = end - first + 1  # two bytes of a mark
        at = content.rfind(self._mark, 0, last) if from_behind else content.find(self._mark, 0, last)
        while at >= 0:
            head = content[at : at + _FLAC_HEAD_BYTES]
            if len(head) > 4 and (head[2] & 15, head[3] & 15) == self._alike:
                found = self._parsed(head)
                if found is not None:
                    yield _Frame(first + at, *found)
            at = content.rfind(self._mark, 0, at + 1) if from_behind else content.find(self._mark, at + 1, last)

    def _parsed(self, head: bytes) -> tuple[int, int] | None:
        if len(head) < 6 or head[3] >> 4 > 10 or head[3] & 1 or head[2] & 15 == 15 or not head[2] >> 4:
            return None
        length = max(1, 8 - (head[4] ^ 0xFF).bit_length())
        if length > 7 or (head[4] >= 0x80 and length == 1):
            return None
        number = head[4] & (0x7F if length == 1 else 0x7F >> length)
        for byte in head[5 : 4 + length]:
            number = number << 6 | byte & 0x3F
        at, code = 4 + length, head[2] >> 4
        if code in (6, 7):
            count, at = int.from_bytes(head[at : at + code - 5], "big") + 1, at + code - 5
        else:
            count = _BLOCK_SIZES[code]
        at += {12: 1, 13: 2, 14: 2}.get(head[2] & 15, 0)
        check = 0
        for byte in head[:at]:
            check = _CRC8[check ^ byte]
        if at >= len(head) or check != head[at]:
            return None
        return number * (1 if head[1] & 1 else self._block), count

    def is_whole(self, first: int, end: int) -> bool:
        """Whether a frame lies in these bytes and no others."""
        check = 0
        for byte in self._read(max(0, end - first), first):
            check = check << 8 & 0xFFFF ^ _CRC16[check >> 8 ^ byte]
        return not check


def _flac(read: ReadAt, start: int, size: int) -> Part:
    info = read(34, start + 8)
    if len(info) < 34:
        return _whole(start, size)
    stream = _Flac(read, start, info)
    last = _last(stream, size)
    is_one = last is not None and last.first + last.num_samples == stream.total and start == 0
    if is_one and _rises(stream, size):
        return _whole(start, size)
    end = next(_found(read, _FLAC, start + 42, size, 8), size)
    if end < size and stream.total:
        return _whole(start, end)
    # What follows is for heads without a count, or with another one than the frames have.
    last = last if end == size else _last(stream, end)
    if last is None or last.first + last.num_samples == stream.total:
        return _whole(start, end)
    held, cut = _held(stream, end)
    if not held or not is_small_lack(stream.total - held, stream.total, stream.packed >> 44):
        return _whole(start, end)
    packed = (stream.packed - stream.total | min(held, (1 << 36) - 1)).to_bytes(8, "big")
    stretches = (range(start, start + 18), packed, range(start + 26, cut))
    return Part(stretches, start, end, True, 0 < stream.total < held)


def _held(stream: _Flac, end: int) -> tuple[int, int]:
    """How many samples there are up to a byte of the file, and behind which byte their last frame ends."""
    frames = list(stream.frames(max(stream.first_frame, end - 2 * stream.tail_bytes), end))[-_MOST_LAST_FRAMES:]
    for frame in reversed(frames):
        for cut in (end, end - _TAG_BYTES):
            if stream.is_whole(frame.at, cut):
                return frame.first + frame.num_samples, cut
    # The last one is cut off: those before it count.
    for before, frame in zip(reversed(frames[:-1]), reversed(frames[1:]), strict=True):
        if before.first + before.num_samples == frame.first:
            return frame.first, frame.at
    return 0, end


def _last(stream: _Flac, end: int) -> _Frame | None:
    """The last frame that begins before a byte of the file."""
    first = max(stream.first_frame, end - stream.tail_bytes)
    return next(stream.frames(first, end, from_behind=True), None)


def _rises(stream: _Flac, size: int) -> bool:
    """Whether the numbers of frames rise from the beginning to the end, as they do in one recording alone."""
    before = 0
    for share in _PROBES:
        first = int(size * share)
        frame = next(stream.frames(first, min(size, first + stream.tail_bytes)), None)
        if frame is not None:
            if frame.first < before or frame.first >= stream.total:
                return False
            before = frame.first
    return True


# OGG: pages say where a stream begins. Source: RFC 3533, section 6.


_OGG = re.compile(rb"OggS\0")
_OGG_FIRST = 2
_MOST_PAGES = 2_000_000  # ten hours of 20 ms each


def _ogg(read: ReadAt, start: int, size: int) -> Part:
    position, has_samples = start, False
    for _ in range(_MOST_PAGES):
        page = read(282, position)
        if len(page) < 28:
            break
        if not page.startswith(b"OggS"):
            position = next(_found(read, _OGG, position, min(size, position + _MOST_REST), 8), size)
            continue
        is_begin = bool(page[5] & _OGG_FIRST)
        if is_begin and has_samples:
            return _whole(start, position)
        has_samples |= not is_begin
        position += 27 + page[26] + sum(page[27 : 27 + page[26]])
    return _whole(start, size)


# MP3: frames, of which each says its own size. Source: ISO/IEC 11172-3, 2.4.2.3; the count of Xing is LAME's.


_MP3 = re.compile(rb"\xff[\xe2\xe3\xea\xeb\xf2\xf3\xfa\xfb]")
_LAYER_3 = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
)
_MP3_RATES = {3: (44100, 48000, 32000, 0), 2: (22050, 24000, 16000, 0), 0: (11025, 12000, 8000, 0)}
_MONO = 3
_MOST_TAGS = 64
_SMALL_REST = 160  # behind the bytes that a head counts: a tag of ID3v1, and some filling
_LAME_PADDING_AT = 21  # of what follows the fields of Xing: 12 bits of delay, 12 of padding


class _Mp3Frame(NamedTuple):
    num_bytes: int
    rate: int
    num_samples: int
    is_mono: bool
    side_bytes: int


_mp3_frames: dict[bytes, _Mp3Frame | None] = {}


def mp3_frame(head: bytes) -> _Mp3Frame | None:
    """What the four bytes at the beginning of a frame of layer III say; None: they are none, or do not say its size."""
    if head in _mp3_frames:
        return _mp3_frames[head]
    frame = _parsed_mp3(head)
    if len(_mp3_frames) < 4096:
        _mp3_frames[head] = frame
    return frame


def _parsed_mp3(head: bytes) -> _Mp3Frame | None:
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2 or head[1] >> 3 & 3 == 1:
        return None
    version = head[1] >> 3 & 3  # 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    rate, kilobits = _MP3_RATES[version][head[2] >> 2 & 3], _LAYER_3[version != 3][head[2] >> 4]
    if not rate or not kilobits:
        return None
    is_mono = head[3] >> 6 == _MONO
    units, samples = (144, 1152) if version == 3 else (72, 576)
    side = (17 if is_mono else 32) if version == 3 else (9 if is_mono else 17)
    return _Mp3Frame(units * kilobits * 1000 // rate + (head[2] >> 1 & 1), rate, samples, is_mono, side)


class _Count(NamedTuple):
    """What the first frame of an MP3 file says of the others; 0: nothing.

    Attributes:
        frames: how many, without itself.
        num_bytes: itself counted.
        frames_at: where ``frames`` is, within the frame.
        padding_at: where LAME's delay and padding are; 0: nowhere.
    """

    frames: int
    num_bytes: int
    frames_at: int = 0
    padding_at: int = 0


def _count_in(content: bytes, frame: _Mp3Frame) -> _Count | None:
    """The count of a frame that is a head; None: it has sound."""
    for at in (4 + frame.side_bytes, 6 + frame.side_bytes):  # behind a check sum
        if content[at : at + 4] in (b"Xing", b"Info"):
            flags = int.from_bytes(content[at + 4 : at + 8], "big")
            position, values = at + 8, {}
            for flag, length in ((1, 4), (2, 4), (4, 100), (8, 4)):
                if flags & flag:
                    values[flag] = int.from_bytes(content[position : position + 4], "big")
                    position += length
            padding_at = position + _LAME_PADDING_AT if any(content[position : position + 9]) else 0
            return _Count(values.get(1, 0), values.get(2, 0), at + 8 if flags & 1 else 0, padding_at)
    if content[36:40] == b"VBRI":
        return _Count(0, 0)  # libmpg123 does not know it
    return None


def behind_tags(read: ReadAt, position: int) -> int:
    """The byte behind tags that stand in front of sound (ID3v2, APE), and behind zeros that fill them up."""
    for _ in range(_MOST_TAGS):
        head = read(32, position)
        if head.startswith(b"ID3") and len(head) > 10 and not any(byte & 0x80 for byte in head[6:10]):
            size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
            position += 10 + size + (10 if head[5] & 0x10 else 0)
        elif head.startswith(b"APETAGEX") and len(head) == 32:
            position += int.from_bytes(head[12:16], "little") + (32 if head[23] & 0x20 else 0)
        elif head.startswith(b"TAG"):
            position += 128
        else:
            break
    return position


def _mp3(read: ReadAt, start: int, size: int) -> Part:
    """The frames of an MP3 file, up to the next one that is a head."""
    first = behind_tags(read, start)
    if first > start and (other := _behind_tag(read, first, size)) is not None:
        return other._replace(start=start, is_changed=True)
    first = next(_mp3_starts(read, first, size), size)
    frame = mp3_frame(read(4, first))
    if frame is None:
        return _whole(start, size)
    count = _count_in(read(frame.num_bytes, first), frame)
    if count and not count.frames:
        first, count = first + frame.num_bytes, None
    if count and count.num_bytes and 0 <= size - first - count.num_bytes <= _SMALL_REST:
        return _whole(start, size)
    stretches, num_frames, end = _mp3_stretches(read, first + (frame.num_bytes if count else 0), size, frame)
    if not num_frames:
        return _whole(start, size)
    if count is None:
        head = _mp3_head(read(4, first), num_frames, sum(map(len, stretches)))
        return Part((head, *stretches), start, end, True)
    is_small = is_small_lack(count.frames - num_frames, count.frames, frame.rate / frame.num_samples)
    if num_frames == count.frames or not is_small:
        is_plain = end == size and len(stretches) == 1
        return Part((range(first, first + frame.num_bytes), *stretches), start, end, not is_plain)
    changed = bytearray(read(frame.num_bytes, first))
    struct.pack_into(">I", changed, count.frames_at, num_frames)
    if count.padding_at:  # the end is another one than that which was filled up
        changed[count.padding_at + 1] &= 0xF0
        changed[count.padding_at + 2] = 0
    return Part((bytes(changed), *stretches), start, end, True, num_frames > count.frames)


def _behind_tag(read: ReadAt, first: int, size: int) -> Part | None:
    """FLAC or AAC behind a tag of ID3; None: something else is there."""
    start = read(_HEAD_BYTES, first)
    if re.match(rb"\xff[\xf0\xf1\xf8\xf9\xfc\xfd\xf4\xf5]", start):
        return _whole(first, size)
    finder = _finder_of(start)
    return None if finder in (None, _mp3) else finder(read, first, size)


def _mp3_starts(read: ReadAt, first: int, size: int) -> Iterator[int]:
    """Where frames begin that another one follows, or the end; behind bytes that are none."""
    if (frame := mp3_frame(read(4, first))) and (first + frame.num_bytes >= size or _goes_on(read, first, frame)):
        yield first
    for at in _found(read, _MP3, first, min(size, first + _MOST_REST), 4):
        frame = mp3_frame(read(4, at))
        if frame and _goes_on(read, at, frame):
            yield at


def _goes_on(read: ReadAt, at: int, frame: _Mp3Frame) -> bool:
    following = mp3_frame(read(4, at + frame.num_bytes))
    return following is not None and following.rate == frame.rate


def _mp3_stretches(read: ReadAt, first: int, size: int, frame: _Mp3Frame) -> tuple[list[Stretch], int, int]:
    """The frames from a byte on: where they lie, how many they are, and where the next recording begins."""
    stretches: list[Stretch] = []
    num_frames, position, begin, rest_bytes = 0, first, first, 0
    while True:
        count, num_bytes = _whole_frames(read(min(_SEARCH_BYTES, size - position), position), frame)
        num_frames, position = num_frames + count, position + num_bytes
        if count and position < size:
            continue
        if position > begin:
            stretches.append(range(begin, position))
        behind = behind_tags(read, position)
        is_lost = rest_bytes > _MOST_REST
        following = _next_mp3(read, position, behind, size, frame) if position < size and not is_lost else None
        if following is None:
            return stretches, num_frames, behind if size - behind > _MOST_REST else size
        begin, is_other = following
        rest_bytes += begin - behind
        if is_other:
            return stretches, num_frames, begin
        position = begin


def _whole_frames(content: bytes, frame: _Mp3Frame) -> tuple[int, int]:
    """How many frames of the rate and channels of one there are, without a head among them, and their bytes."""
    at = count = 0
    while (here := mp3_frame(content[at : at + 4])) is not None:
        end, tag_at = at + here.num_bytes, at + 4 + here.side_bytes
        if end > len(content) or here.rate != frame.rate or here.is_mono != frame.is_mono:
            break
        if content[tag_at : tag_at + 4] in (b"Xing", b"Info") or content[at + 36 : at + 40] == b"VBRI":
            break
        at, count = end, count + 1
    return count, at


def _next_mp3(read: ReadAt, position: int, behind: int, size: int, frame: _Mp3Frame) -> tuple[int, bool] | None:
    """Where frames go on, and whether it is another recording, with its own head or tags; None: nowhere.

    Args:
        read: reads the file.
        position: where the last one ends.
        behind: the same, or behind the tags there.
        size: bytes of the file.
        frame: one of the recording so far.
    """
    at = next(_mp3_starts(read, behind, size), None)
    if at is None:
        return None
    here = mp3_frame(read(4, at))
    assert here is not None
    is_other = here.rate != frame.rate or here.is_mono != frame.is_mono or read(3, position) == b"ID3"
    if not is_other and at == position and at + here.num_bytes > size:
        return None  # cut off within its last frame
    return at, is_other or _count_in(read(here.num_bytes, at), here) is not None


def _mp3_head(head: bytes, num_frames: int, num_bytes: int) -> bytes:
    """A frame without sound that says how many follow; of the largest size, where the fields have room."""
    changed = bytes([head[0], head[1] | 1, 14 << 4 | head[2] & 0x0C, head[3]])
    frame = mp3_frame(changed)
    assert frame is not None
    fields = b"Xing" + struct.pack(">III", 3, num_frames, min(frame.num_bytes + num_bytes, 0xFFFFFFFF))
    return (changed + bytes(frame.side_bytes) + fields).ljust(frame.num_bytes, b"\0")


# What PyAV and ffmpeg decode: recordings that they would not go on to.


_WEBM = re.compile(rb"\x1a\x45\xdf\xa3.{1,64}?\x42\x82.(?:webm|matroska)", re.DOTALL)
_WMA = re.compile(rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c")
_MP4 = re.compile(rb"....ftyp", re.DOTALL)
_AMR = re.compile(rb"#!AMR(?:-WB)?\n")
_MOST_BOXES = 100_000
_AVI = re.compile(rb"RIFF....AVI ", re.DOTALL)


def _marked(pattern: re.Pattern[bytes]) -> Callable[[ReadAt, int, int], Part]:
    """A finder of parts that begin with a mark which nothing else has."""

    def find(read: ReadAt, start: int, size: int) -> Part:
        return _whole(start, next(_found(read, pattern, start + 16, size), size))

    return find


def _mp4(read: ReadAt, start: int, size: int) -> Part:
    position, has_samples = start, False
    for _ in range(_MOST_BOXES):
        if position >= size:
            break
        length, name, longer = struct.unpack(">I4sQ", read(16, position).ljust(16, b"\0"))
        if name == b"ftyp" and has_samples:
            return _whole(start, position)
        has_samples |= name in (b"mdat", b"moov")
        length = {0: size - position, 1: longer}.get(length, length)
        position += max(length, 8)
    return _whole(start, size)


def _avi(read: ReadAt, start: int, size: int) -> Part:
    position = start
    while position == start or read(12, position)[8:] == b"AVIX":  # a long one goes on so
        position += 8 + int.from_bytes(read(4, position + 4).ljust(4, b"\0"), "little")
        position += position % 2
        if position == start + 8 or position >= size:
            return _whole(start, size)
    return _whole(start, position if _AVI.match(read(12, position)) else size)


_FINDERS: tuple[tuple[re.Pattern[bytes], Callable[[ReadAt, int, int], Part]], ...] = (
    (_WAV, _wav),
    (_FLAC, _flac),
    (_OGG, _ogg),
    (_MP3, _mp3),
    (re.compile(rb"ID3"), _mp3),
    (_AIFF, _aiff),
    (_AU, _au),
    (_CAF, _caf),
    (_W64, _w64),
    (_SPHERE, _sphere),
    (_WEBM, _marked(_WEBM)),
    (_WMA, _marked(_WMA)),
    (_MP4, _mp4),
    (_AMR, _marked(_AMR)),
    (_AVI, _avi),
)


def _finder_of(start: bytes) -> Callable[[ReadAt, int, int], Part] | None:
    return next((finder for pattern, finder in _FINDERS if pattern.match(start)), None)
