"""Corpora as files: archives unpacked safely, recordings and manifests written."""

from __future__ import annotations

import errno
import hashlib
import http.client
import io
import os
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy.typing as npt
import soundfile
from tqdm import tqdm

from nemo_asr.run.audio.reading import AudioPart, open_part
from nemo_asr.run.manifest import Entry
from nemo_lite.base.errors import DataError, FileInTheWayError
from nemo_lite.base.files import (
    FileKind,
    TarLimits,
    digest_of_file,
    make_writable_folder,
    open_tar,
    problem_of_name,
    read_text,
    temporary_name,
    unwritable,
    write_atomically,
)
from nemo_lite.base.outputs import check_ours, check_output, list_outputs, remove_outputs, write_output

# Archives of recordings: fetching one, and unpacking what is wanted of it. Nothing in an archive is trusted.
# No file is written outside the given folder, no link is made, and no more is written than was allowed.


_CHUNK_BYTES = 1 << 20
_OTHERS = 4  # what is not wanted of an archive may be so many times as large as what is wanted can be
_KIND = FileKind("the archive", 1 << 40, remedy="fetch it again")
_TIMEOUT_SECONDS = 60
_BY_HAND = "download it by hand and give it with --source"


def download(url: str, path: Path, sha256: str | None = None) -> None:
    """Fetch ``url`` to ``path``: all of it, or an error and no file.

    Args:
        url: what to fetch.
        path: where to; its folder exists.
        sha256: what the content must hash to, in hexadecimal.

    Raises:
        DataError: the server cannot be reached, breaks off, or sends something else.
        UsageError: the file cannot be written.
    """
    print(f"downloading {url}", file=sys.stderr)
    write_atomically(path, lambda temporary: _fetch(url, temporary, sha256))


def _fetch(url: str, path: Path, sha256: str | None) -> None:
    digest, received, promised = hashlib.sha256(), 0, 0
    with open(path, "wb") as out, tqdm(unit="B", unit_scale=True, disable=None) as bar:
        for chunk, promised in _chunks(url):
            digest.update(chunk)
            out.write(chunk)
            received += len(chunk)
            bar.total = promised or None
            bar.update(len(chunk))
    if received == 0 or (promised and received != promised):
        got, wanted = f"{received} bytes", str(promised)
        raise DataError("the download broke off", place=url, got=got, wanted=wanted, remedy=_BY_HAND)
    if sha256 and digest.hexdigest() != sha256:
        got, remedy = f"sha256 {digest.hexdigest()}", f"{_BY_HAND} if you trust it"
        raise DataError("the download is not the known archive", place=url, got=got, wanted=sha256, remedy=remedy)


def _chunks(url: str) -> Iterator[tuple[bytes, int]]:
    """The answer of the server, piece by piece, each with the bytes that it promised in all (0: it did not say)."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 - a constant of a maker
            promised = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(_CHUNK_BYTES):
                yield chunk, promised
    except (OSError, http.client.HTTPException) as error:
        raise DataError("the archive cannot be downloaded", place=url, got=f'"{error}"', remedy=_BY_HAND) from None


def unpack(
    archive: Path, folder: Path, suffixes: tuple[str, ...], *, max_bytes: int, max_files: int = 1_000_000
) -> None:
    """Write the archive's files of the given suffixes under ``folder``, in the archive's own sub-folders.

    Args:
        archive: a tar file, compressed or not.
        folder: where to; made if need be.
        suffixes: the ends of the names of wanted files; others are passed over.
        max_bytes: the most that may be written in all.
        max_files: the most files and folders that it may have.

    Raises:
        DataError: the archive is damaged, has a member that leads out of the folder or is a link or a device, or is
            larger than allowed.
    """
    limits = TarLimits(members=max_files, expanded_bytes=_OTHERS * max_bytes + _CHUNK_BYTES)
    num_bytes = 0
    with open_tar(archive, _KIND, limits) as tar, _writing_errors(archive):
        for member in tar.members():
            if member.isdir() or not member.name.endswith(suffixes):
                continue
            num_bytes += member.size
            if num_bytes > max_bytes:
                got, wanted = f"{num_bytes} bytes so far", f"at most {max_bytes} bytes"
                problem = "the archive is larger than such a corpus can be"
                raise DataError(problem, place=f"{archive}: {member.name}", got=got, wanted=wanted)
            target = folder / PurePosixPath(member.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "wb") as out:
                out.writelines(tar.chunks(member))


@contextmanager
def _writing_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem, remedy = "the archive cannot be unpacked", "free space, or choose another folder"
        raise DataError(problem, place=str(archive), got=f'"{error}"', remedy=remedy) from None


# What all corpus makers share: reading lists, writing manifests and folders completely or not at all.


CORPUS = "nemo-lite data make"
"""What wrote a corpus, as its record says."""
_LIST = FileKind("the list", 1 << 28)
_MOST_BYTES_OF_NAME = 160  # with that of the process, which a name has until its file is whole, fewer than 255
_REMEDY = "choose another folder, or move it away"


def numbered_lines(path: Path) -> list[tuple[str, str]]:
    """The lines of a text file, stripped, each after its place ``path:number``. DataError if it cannot be read."""
    lines = read_text(path, _LIST).splitlines()
    return [(f"{path}:{number}", line.strip()) for number, line in enumerate(lines, 1)]


def transcripts(path: Path) -> Iterator[tuple[str, str, str]]:
    """Of each line ``utterance-id WORDS`` its place, the id and the words.

    Raises:
        DataError: it cannot be read, or a line is another.
    """
    for place, line in numbered_lines(path):
        utterance, _, words = line.partition(" ")
        if not words or "/" in utterance:
            problem, wanted = "this is not a transcript", "utterance-id WORDS"
            raise DataError(problem, place=place, got=repr(line[:60]), wanted=wanted)
        check_id(utterance, place)
        yield place, utterance, words


def check_id(utterance: str, place: str) -> None:
    """See that an utterance's id, from which a file's name is made, leads to a file below its folder.

    Raises:
        DataError: it does not, or is longer than such names can be.
    """
    name = f"{utterance}.flac"
    if problem_of_name(name) or len(os.fsencode(name)) > _MOST_BYTES_OF_NAME:
        wanted = "a file's name without its ending, in the corpus"
        raise DataError("this is no id of an utterance", place=place, got=repr(utterance[:60]), wanted=wanted)


def check_corpus_files(*paths: Path) -> None:
    """See, before anything is computed, that a maker may write these files.

    Raises:
        FileInTheWayError: one is there, and was not written by a maker, or has changed since.
    """
    for path in paths:
        check_output(path, CORPUS, remedy=_REMEDY)


def write_corpus_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file of a corpus: one that a maker wrote, and that has not changed since, is replaced.

    Raises:
        FileInTheWayError: another one is there.
        UsageError: it cannot be written.
    """
    write_output(path, write, CORPUS, remedy=_REMEDY)


def write_recording(path: Path, samples: npt.NDArray[Any], sample_rate: int, *, may_replace: bool = True) -> None:
    """Write 16-bit WAV, all of it or nothing.

    libsndfile says "System error" when a disk is full, so Python writes the bytes.

    Args:
        path: the file; its folder is there.
        samples: (T,), 16-bit integers, or floats of which 1 is full scale.
        sample_rate: in Hz.
        may_replace: a file that is there may be another one.

    Raises:
        UsageError: the file cannot be written.
        FileInTheWayError: another one is there, and may not be replaced.
    """
    wav = io.BytesIO()
    soundfile.write(wav, samples, sample_rate, format="WAV", subtype="PCM_16")
    if not may_replace and os.path.lexists(path):
        if not path.is_file() or digest_of_file(path) != hashlib.sha256(wav.getvalue()).hexdigest():
            raise FileInTheWayError("another file of this name is there", place=str(path), remedy=_REMEDY)
        return
    temporary = path.with_name(temporary_name(path.name))
    try:
        temporary.write_bytes(wav.getvalue())
        temporary.rename(path)
    except OSError as error:
        raise unwritable(error, path) or error from error
    finally:
        temporary.unlink(missing_ok=True)


def as_written(audio: Path, root: Path) -> str:
    """Relative to the manifest's folder where the audio lies under it, so that the folder can be moved as a whole."""
    absolute, base = Path(os.path.abspath(audio)), Path(os.path.abspath(root))
    return str(absolute.relative_to(base)) if absolute.is_relative_to(base) else str(absolute)


@contextmanager
def open_recording(audio: Path, kind: str, place: str) -> Iterator[AudioPart]:
    """A recording of a corpus, not decoded yet.

    Args:
        audio: the file.
        kind: what it has to be: WAV, FLAC, SPHERE.
        place: where it is listed.

    Raises:
        DataError: it cannot be read, or is of another kind; also inside the block.
    """
    try:
        with open_part(str(audio)) as part:
            if part.kind != kind:
                raise DataError(f"{audio} is of another kind", got=part.kind, wanted=kind)
            yield part
    except DataError as error:
        raise DataError("the recording cannot be read", place=place, got=str(error)) from None


def seconds_of(audio: Path, kind: str, place: str) -> float:
    """How long a recording of a corpus is, by its head. Arguments and errors as `open_recording`."""
    with open_recording(audio, kind, place) as part:
        return round(part.seconds, 4)


def describe(name: str, entries: Iterable[Entry]) -> str:
    """One line about a manifest: utterances, minutes, words, speakers."""
    listed = list(entries)
    minutes = sum(entry["duration"] for entry in listed) / 60
    words = [word for entry in listed for word in entry["text"].split()]
    speakers = {entry["speaker"] for entry in listed if "speaker" in entry}
    spoken = f"{len(words)} words ({len(set(words))} different), {len(speakers)} speakers"
    return f"{name}: {len(listed)} utterances, {minutes:.1f} min, {spoken}"


@contextmanager
def filling_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of ``folder`` when the block ends without an error.

    All that it holds then is listed in its record; an earlier one is deleted as far as its own record lists it.

    Raises:
        UsageError: ``folder`` holds what no such block has written, or has changed since; the folder that is to hold it
            is not writable; the disk is full.
    """
    check_ours(folder, CORPUS)
    make_writable_folder(folder.parent)
    new, old = (folder.with_name(temporary_name(folder.name, suffix)) for suffix in ("tmp", "old"))
    try:
        new.mkdir()
        yield new
        list_outputs(new, CORPUS)
        if os.path.lexists(folder):
            check_ours(folder, CORPUS)  # filling may have taken hours
            folder.rename(old)
        new.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # of something that the block reads, perhaps
            raise
        raise unwritable(error, folder) or error from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    if os.path.lexists(old) and not remove_outputs(old, CORPUS):
        print(f"{folder} held files that were put there meanwhile; they are in {old}", file=sys.stderr)
