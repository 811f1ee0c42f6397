"""Files of transcripts: one JSON object a line, an utterance with its reference and its hypothesis. Read only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from nemo_asr.scoring.bootstrap import Clusters, clusters_of
from nemo_lite.errors import DataError
from nemo_lite.untrusted import FileKind, numbered_lines, parse_json

SUFFIX = ".transcripts.jsonl"
# An hour of fast speech has 80,000 characters. The time to compare two texts grows with the square of their lengths.
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=100_000)]


class ScoredUtterance(msgspec.Struct, frozen=True):
    """One line.

    Attributes:
        place: the manifest and its line: ``dev.json:17``.
        reference: what was said.
        hypothesis: what was recognised.
        audio_filepath: the recording; None where the file does not say it.
        offset: seconds in the recording where the utterance begins; None: it is the whole recording.
        duration: seconds.
        speaker: who says it; None where the file does not say it.
    """

    place: str
    reference: _Text
    hypothesis: _Text
    audio_filepath: str | None = None
    offset: float | None = None
    duration: float | None = None
    speaker: str | None = None


_KIND = FileKind("the file of transcripts", 1 << 32)
_DECODER = msgspec.json.Decoder(ScoredUtterance)


def find_transcripts(folder: Path) -> dict[str, Path]:
    """The files of transcripts by the name of their set: those in ``folder/transcripts``, else those in ``folder``."""
    for place in (folder / "transcripts", folder):
        found = {path.name.removesuffix(SUFFIX): path for path in sorted(place.glob(f"*{SUFFIX}"))}
        if found:
            return found
    return {}


def clusters_in(rows: Sequence[ScoredUtterance]) -> Clusters:
    """Which utterances belong together, by speaker or recording."""
    return clusters_of([row.speaker for row in rows], [row.audio_filepath for row in rows])


def read_transcripts(path: Path) -> list[ScoredUtterance]:
    """All lines of a file.

    Raises:
        DataError: it cannot be read, or a line is not such an object.
    """
    return list(_rows(path))


def _rows(path: Path) -> Iterator[ScoredUtterance]:
    for place, line in numbered_lines(path, _KIND):
        parse_json(line, place, _KIND)
        try:
            yield _DECODER.decode(line)
        except msgspec.MsgspecError as error:
            problem, wanted = "the line is not a transcript", "an object with place, reference and hypothesis"
            raise DataError(problem, place=place, got=str(error), wanted=wanted) from None
