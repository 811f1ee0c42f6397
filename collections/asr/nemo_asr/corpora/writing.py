"""What makers of corpora share: recordings, manifests and folders, written completely or not at all."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt
import soundfile

from nemo_asr.run.audio.reading import AudioPart, open_part
from nemo_asr.run.manifest import Entry
from nemo_lite.base.errors import DataError, FileInTheWayError
from nemo_lite.base.files import digest_of_file, make_writable_folder, temporary_name, unwritable
from nemo_lite.base.outputs import check_ours, check_output, list_outputs, remove_outputs, write_output
from nemo_lite.base.tar_files import problem_of_name

CORPUS = "nemo-lite data make"
"""What wrote a corpus, as its record says."""
_MOST_BYTES_OF_NAME = 160  # with that of the process, which a name has until its file is whole, fewer than 255
_REMEDY = "choose another folder, or move it away"


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
