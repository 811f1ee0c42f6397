"""Files of transcripts: one JSON object a line, an utterance with its reference and its hypothesis. Read only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from nemo_asr.scoring.intervals import Clusters, clusters_of
from nemo_asr.scoring.normalize import score_normalizer
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind, numbered_lines, parse_json

SUFFIX = ".transcripts.jsonl"
# An hour of fast speech has 80,000 characters. The time to compare two texts grows with the square of their lengths.
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=100_000)]


class Segment(msgspec.Struct, frozen=True):
    """A part of a recording that was transcribed alone.

    Attributes:
        start, end: seconds from the beginning of the utterance.
        text: what was recognised.
    """

    start: float
    end: float
    text: _Text = ""


class ScoredUtterance(msgspec.Struct, frozen=True):
    """One line.

    Attributes:
        place: the manifest and its line: ``dev.json:17``.
        reference: what was said.
        hypothesis: what was recognised.
        audio_filepath: the recording; None where the file does not say it.
        offset: seconds in the recording where the utterance begins; None: it is the whole recording.
        duration: seconds.
        channel: of the recording, from 0; None: the average of all.
        speaker: who says it; None where the file does not say it.
        text, recognised: both texts before a score normaliser changed them; None where there was none.
        score_normalizer: its name.
        segments: of a recording that was cut; none in which nobody speaks. None: it was not cut.
        without_hotwords: the hypothesis without hot words; None: there were none.
    """

    place: str
    reference: _Text
    hypothesis: _Text
    audio_filepath: str | None = None
    offset: float | None = None
    duration: float | None = None
    speaker: str | None = None
    text: _Text | None = None
    recognised: _Text | None = None
    score_normalizer: str | None = None
    channel: int | None = None
    segments: list[Segment] | None = None
    without_hotwords: _Text | None = None


_KIND = FileKind("the file of transcripts", 1 << 32)
_DECODER = msgspec.json.Decoder(ScoredUtterance)


def find_transcripts(folder: Path) -> dict[str, Path]:
    """The files of transcripts by the name of their set: those in ``folder/transcripts``, else those in ``folder``."""
    for place in (folder / "transcripts", folder):
        paths = {path.name.removesuffix(SUFFIX): path for path in sorted(place.glob(f"*{SUFFIX}"))}
        if paths:
            return paths
    return {}


def clusters_in(rows: Sequence[ScoredUtterance]) -> Clusters:
    """Which utterances belong together, by speaker or recording."""
    return clusters_of([row.speaker for row in rows], [row.audio_filepath for row in rows])


def read_transcripts(path: Path) -> list[ScoredUtterance]:
    """All lines of a file.

    Raises:
        DataError: it cannot be read, or a line is not such an object.
    """
    rows = []
    for place, line in numbered_lines(path, _KIND):
        parse_json(line, place, _KIND)
        try:
            rows.append(_DECODER.decode(line))
        except msgspec.MsgspecError as error:
            problem, wanted = "the line is not a transcript", "an object with place, reference and hypothesis"
            raise DataError(problem, place=place, got=str(error), wanted=wanted) from None
    return rows


def normalized(rows: Sequence[ScoredUtterance], normalizer: str | None) -> list[ScoredUtterance]:
    """The rows with texts as a score normaliser leaves them; those that it was not given before as they were scored.

    Args:
        rows: of a file of transcripts.
        normalizer: a name of `nemo_asr.scoring.normalize`; None: the rows as they are.
    """
    if normalizer is None:
        return list(rows)
    normalize = score_normalizer(normalizer)
    return [
        msgspec.structs.replace(
            row,
            reference=normalize(row.reference if row.text is None else row.text),
            hypothesis=normalize(row.hypothesis if row.recognised is None else row.recognised),
            score_normalizer=normalizer,
        )
        for row in rows
    ]
