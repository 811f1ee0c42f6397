"""A data layer over a zip file, as a user would write it: ``name.wav`` and ``name.txt`` in it make one utterance.

Its base class does the rest: reading, batches, the account of unusable utterances.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

import nemo_asr
from nemo_asr.data.dataset import Reading
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.run.manifest import Utterance, Utterances
from nemo_asr.run.text.parser import make_parser
from nemo_lite.backends.pytorch.data.order import Batching
from nemo_lite.base.errors import DataError

BYTES_PER_SECOND = 2 * 16000  # of 16-bit samples: batches need durations that are nearly right


class ZipReader:
    def __init__(self, archive: str) -> None:
        self.archive = archive

    def place(self, name: str) -> str:
        return f"{self.archive}: {name}"

    def utterance(self, name: str) -> Utterance:
        with _opened(self.archive, self.place(name)) as members:
            text = members.read(f"{name}.txt").decode()
        return Utterance(self.place(name), f"{name}.wav", text)

    def check_audio(self, utterance: Utterance) -> None:
        with _opened(self.archive, utterance.place) as members:
            members.getinfo(utterance.audio_path)

    def audio(self, utterance: Utterance) -> bytes:
        with _opened(self.archive, utterance.place) as members:
            return members.read(utterance.audio_path)


@dataclass(frozen=True, kw_only=True)
class ZipUtterances(Utterances[str]):
    names: tuple[str, ...]

    @classmethod
    def open(cls, archive: str) -> ZipUtterances:
        with _opened(archive, archive) as members:
            sizes = {info.filename: info.file_size for info in members.infolist()}
        names = tuple(sorted(name.removesuffix(".txt") for name in sizes if name.endswith(".txt")))
        durations = np.array([sizes.get(f"{name}.wav", 0) for name in names], np.float32) / BYTES_PER_SECOND
        return cls(paths=(archive,), reader=ZipReader(archive), durations=durations, names=names)

    def refs(self, rows: Iterable[int]) -> list[str]:
        return [self.names[row] for row in rows]

    def only(self, keep: np.ndarray) -> ZipUtterances:
        names = tuple(name for name, kept in zip(self.names, keep, strict=True) if kept)
        return replace(self, durations=self.durations[keep], names=names)


class ZipDataLayer(SpeechDataLayer):
    """Transcribed speech in a zip file."""

    remedy = "mend the members, or raise max_corrupt"

    def __init__(
        self,
        archive: str,
        labels: Sequence[str],
        batch_size: int,
        sample_rate: int = 16000,
        shuffle: bool = True,
        bucketing: bool = False,
        max_corrupt: float | None = None,
        num_workers: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(
            ZipUtterances.open(archive),
            partial(make_parser, labels),
            reading=Reading(sample_rate),
            batching=Batching(batch_size, shuffle, bucketing),
            max_corrupt=max_corrupt,
            num_workers=num_workers,
            name=name,
        )


@contextmanager
def _opened(archive: str, place: str) -> Iterator[zipfile.ZipFile]:
    """Anew for each access: a handle cannot be shared with worker processes."""
    try:
        with zipfile.ZipFile(archive) as members:
            yield members
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise DataError("the archive cannot be read", place=place, got=f'"{error}"') from None


nemo_asr.register(ZipDataLayer)
