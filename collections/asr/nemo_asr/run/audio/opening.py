"""Opens audio files: a path or the content of a file, after a look at what it is.

Before the decoder sees anything, the file has to be a regular one with a sound head (`check_head`).
"""

from __future__ import annotations

import ctypes
import io
import os
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache, partial
from threading import Lock
from typing import NamedTuple

import soundfile

from nemo_asr.run.audio import decoded
from nemo_asr.run.audio.containers import decode
from nemo_asr.run.audio.decoded import Decoded, Watch
from nemo_asr.run.audio.files import REMEDY, AudioFile, DecodedFile, ExactFile, JoinedFile
from nemo_asr.run.audio.flac import check_flac
from nemo_asr.run.audio.heads import check_adpcm
from nemo_asr.run.audio.joined import parts_of
from nemo_asr.run.audio.kinds import CONTAINER_KINDS, KINDS, kind_of, kind_of_container
from nemo_asr.run.audio.mp4 import check_boxes
from nemo_asr.run.audio.ogg import ends_ogg
from nemo_asr.run.audio.parts import FilePart, ReadAt, Window
from nemo_lite.base.errors import DataError, counted
from nemo_lite.base.files import FileKind, open_descriptor
from nemo_lite.base.nemo_logging import LogMode, logging

_AUDIO_FILE = FileKind("the audio file", 1 << 40)  # of any size: what counts is how much of it is decoded
_HEAD_BYTES = 4096  # read at once; most heads end within them
# libsndfile's SFE_BAD_FILE. By then it is known that there is such a file, and that it is a regular one.
_REASONS = {7: "no samples can be found in it"}


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
    kind = kind_of(start)
    if kind is None:
        problem = f"{path} is not a {KINDS} file, nor {CONTAINER_KINDS}"
        raise DataError(problem, place=place, remedy=REMEDY)
    try:
        if kind == "FLAC":
            check_flac(read_at)
        elif kind in ("WAV", "W64"):
            check_adpcm(read_at, kind)
    except DataError as error:
        raise DataError(f"{path} {error.problem}", place=place, got=error.got, wanted=error.wanted) from None
    return kind


class _SoundFile(soundfile.SoundFile):  # type: ignore[misc]
    """Of soundfile, which seeks behind each read to where it is; decoders of MP3 then give other samples."""

    def seekable(self) -> bool:
        """False: read on as libsndfile does. `seek` works all the same."""
        return False


@contextmanager
def open_audio(
    source: str | bytes, path: str, place: str, exact: bool = False, watch: Watch | None = None
) -> Iterator[AudioFile]:
    """The path or the content of an audio file, opened after a look at what it is.

    By libsndfile; MP4, WebM and others are decoded as a whole, see `nemo_asr.run.audio.containers`. Where recordings
    begin and end in it, and which heads cannot be right: see `nemo_asr.run.audio.joined`.

    Args:
        source: path or content.
        path: what messages call it.
        place: where it is named.
        exact: parts of MP3, Vorbis and Opus are to the bit those of the whole, which is decoded once for all of them.
        watch: may end the decoding, and the reading of pieces.

    Raises:
        DataError: it is missing, empty, damaged or of another kind; also inside the block.
    """
    try:
        with _opened(source, place) as opened:
            opened = opened.with_head(opened.read_at(_HEAD_BYTES, 0))
            parts = parts_of(opened.read_at, opened.size, opened.identity)
            if any(part.is_longer for part in parts):
                problem = "holds more than its head counts, as a file that grew: it is read to its end"
                logging.warning(f"{path} {problem}", mode=LogMode.ONCE)
            if parts and parts[-1].end < opened.size:
                rest = counted(opened.size - parts[-1].end, "byte")
                problem = f"is read up to byte {parts[-1].end}: the {rest} behind it are left out"
                logging.warning(f"{path} {problem}", mode=LogMode.ONCE)
            if len(parts) < 2:
                with _opened_one(opened.part(*parts), path, place, exact, watch) as file:
                    yield file
                return
            with ExitStack() as stack:

                def open_one(part: FilePart, num_before: int) -> AbstractContextManager[AudioFile]:
                    behind = None if watch is None else lambda count: watch(num_before + count)
                    return _opened_one(opened.part(part), path, place, exact, behind)

                joined = JoinedFile(parts, open_one, stack, path, place)
                joined.watch = watch
                yield joined
    except (soundfile.SoundFileError, OSError) as error:
        # The whole text of a libsndfile error would name our descriptor as the file.
        text = getattr(error, "error_string", str(error)).rstrip(".")
        reason = _REASONS.get(getattr(error, "code", 0), text)
        raise DataError(f"{path} is damaged ({reason})", place=place) from None


@contextmanager
def _opened_one(opened: _Opened, path: str, place: str, exact: bool, watch: Watch | None) -> Iterator[AudioFile]:
    """A file, or a part of one, that is one recording; see `open_audio`."""
    handle, read_at, size, identity, _ = opened
    if (container := kind_of_container(read_at(_HEAD_BYTES, 0))) is not None:
        file = DecodedFile(_decoded(opened, container, path, place, watch), container, path, place)
        file.watch = watch
        yield file
        return
    kind = check_head(read_at, path, place)
    with _quiet(kind), _SoundFile(handle, closefd=False) as sound:
        if kind == "OGG" and not ends_ogg(read_at, size):
            problem = "ends without its last page: what is there is read, the rest was cut off"
            logging.warning(f"{path} {problem}", mode=LogMode.ONCE)
        about = sound, kind, read_at, size, path, place
        audio = ExactFile(*about, identity) if exact else AudioFile(*about)
        audio.watch = watch
        yield audio


# libmpg123 tells of damage in words of its own, on the standard error of C, of which libsndfile has no switch. What is
# missing is told by us: the samples are compared with those that the head promises.
_LIBC = ctypes.CDLL(None)
_quiet_lock, _num_quiet, _loud = Lock(), 0, ctypes.c_void_p()


@contextmanager
def _quiet(kind: str) -> Iterator[None]:
    """While an MP3 file is open, C's ``stderr`` is /dev/null, in all threads; Python's is not touched."""
    global _num_quiet
    try:
        stderr = ctypes.c_void_p.in_dll(_LIBC, "stderr")
    except ValueError:  # another C library than those of Linux
        kind = ""
    if kind != "MP3":
        yield
        return
    with _quiet_lock:
        if not _num_quiet:
            _loud.value, stderr.value = stderr.value, _null_stream()
        _num_quiet += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _num_quiet -= 1
            if not _num_quiet:
                stderr.value = _loud.value


@cache
def _null_stream() -> int | None:
    """C's stream to /dev/null."""
    open_stream = _LIBC.fopen
    open_stream.restype = ctypes.c_void_p
    stream: int | None = open_stream(os.devnull.encode(), b"w")
    return stream


def forget_audio(source: str | bytes) -> None:
    """Drop the temporary file of an audio file that was decoded as a whole, if there is one: it is not read again.

    Args:
        source: as `read_audio` takes it; it must still be there.
    """
    with _opened(source, "") as opened:
        decoded.forget(opened.identity)


def _decoded(opened: _Opened, kind: str, path: str, place: str, watch: Watch | None) -> Decoded:
    try:
        if kind == "MP4":
            check_boxes(opened.read_at, opened.size)
        samples = decode(opened.handle, kind, opened.identity, watch, is_behind=opened.is_behind)
        if samples.jump:
            problem = f"{path}: times in it jump by {samples.jump:.0f} s, which is no silence: it is read without them"
            logging.warning(problem, mode=LogMode.ONCE)
        return samples
    except DataError as error:
        problem = f"{path} {error.problem}"
        raise DataError(problem, place=place, got=error.got, wanted=error.wanted, remedy=error.remedy) from None


class _BytesFile(io.BytesIO):
    """Bytes as a file for libsndfile, which is called from C: an error here would be a traceback on stderr."""

    def seek(self, position: int, whence: int = 0) -> int:
        """As of a file: a place before the beginning leaves the position as it is, which libsndfile notices."""
        with suppress(ValueError, OverflowError):
            super().seek(position, whence)
        return self.tell()


class _Opened(NamedTuple):
    """An open file, or content.

    Attributes:
        handle: for the decoder.
        read_at: reads bytes without moving the decoder's position.
        size: bytes.
        identity: of the content.
        is_behind: it follows another recording in the same file.
    """

    handle: int | io.BytesIO | Window
    read_at: ReadAt
    size: int
    identity: Hashable
    is_behind: bool = False

    def with_head(self, head: bytes) -> _Opened:
        """Itself, whose first bytes are read already: one call of the system in the place of four."""
        read_at, end = self.read_at, len(head)

        def read(size: int, start: int) -> bytes:
            return head[start : start + size] if start + size <= end else read_at(size, start)

        return _Opened(self.handle, read, self.size, self.identity, self.is_behind)

    def part(self, part: FilePart | None = None) -> _Opened:
        """One recording of it as a file of its own; without one, itself."""
        if part is None:
            return self
        window = Window(self.read_at, part.stretches)
        opened = _Opened(window, window.read_at, window.size, (self.identity, part.start), part.start > 0)
        return opened.with_head(window.read_at(_HEAD_BYTES, 0))


@contextmanager
def _opened(source: str | bytes, place: str) -> Iterator[_Opened]:
    identity: tuple[object, ...]
    if isinstance(source, bytes):
        identity = ("content", len(source), hash(source))  # Python keeps the hash of an object: many parts cost one
        yield _Opened(_BytesFile(source), lambda size, start: source[start : start + size], len(source), identity)
        return
    try:
        descriptor = open_descriptor(source, _AUDIO_FILE)
    except DataError as error:
        problem = error.problem.replace(_AUDIO_FILE.name, f"{_AUDIO_FILE.name} {source}", 1)
        raise DataError(problem, place=place, got=error.got, wanted=error.wanted, remedy=error.remedy) from None
    try:
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        yield _Opened(descriptor, partial(os.pread, descriptor), status.st_size, identity)
    finally:
        os.close(descriptor)
