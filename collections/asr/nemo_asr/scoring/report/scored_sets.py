"""What a report shows of an evaluated set: its scores, and the worst utterances to hear and see."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

import numpy as np

from nemo_asr.scoring.hotwords import HotwordScores, Places, phrase_finder
from nemo_asr.scoring.intervals import UtteranceErrors
from nemo_asr.scoring.rates import Kind, count_errors, differences, units_of
from nemo_asr.scoring.report.media import Clip, make_clip
from nemo_asr.scoring.report.set_scores import SetScores, score_rows
from nemo_asr.scoring.report.transcripts import ScoredUtterance, Segment
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import path_in_list

MOST_CHANGED = 10  # utterances of a set that hot words changed
MOST_PHRASES = 50  # hot words of a set in a table
MOST_SEGMENTS = 6  # of a recording that are shown at once
MOST_UTTERANCES = 20  # of all sets together, that are shown in full
FEWEST_OF_A_SET = 2  # also where there are many sets
MAX_CLIP_BYTES = 7_000_000  # of all clips together: with the rest, a page stays below 10 MB


@dataclass(frozen=True)
class TextPart:
    """Neighbouring words (or characters) of a text that look the same.

    Attributes:
        text: they, with single spaces between words.
        kind: ``equal``, ``replace``, ``delete`` or ``insert``, as of `differences`.
        is_hot: they are of a hot word.
    """

    text: str
    kind: Kind
    is_hot: bool = False


@dataclass(frozen=True)
class ShownUtterance:
    """An utterance that is shown.

    Attributes:
        place: the manifest and its line.
        texts: by name (``said``, ``heard``, ``without`` hot words) its reference and its hypotheses, aligned.
        num_errors: insertions, deletions and substitutions.
        num_units: words (or characters) of the reference.
        clip: the recording, where there is one and it can be read.
        note: why there is no clip, or what it leaves out.
        segments: of the recording; None: it was not cut.
        seconds: of the recording; None: not known.
        errors_without: its errors without hot words; None: there were none.
        errors_b: its errors by a second model; None: there is none.
    """

    place: str
    texts: Mapping[str, Sequence[TextPart]]
    num_errors: int
    num_units: int
    clip: Clip | None = None
    note: str = ""
    segments: Sequence[Segment] | None = None
    seconds: float | None = None
    errors_without: int | None = None
    errors_b: int | None = None

    @property
    def seconds_cut_away(self) -> float:
        """Seconds that lie in no segment."""
        return max((self.seconds or 0.0) - sum(each.end - each.start for each in self.segments or ()), 0.0)

    @property
    def cut_away(self) -> Sequence[tuple[float, float]]:
        """What of the clip lies in no segment: from where to where, as shares of the clip."""
        if self.clip is None or self.segments is None or not self.clip.seconds:
            return ()
        edges = [0.0, *(second for each in self.segments for second in (each.start, each.end)), self.clip.seconds]
        shares = [min(second / self.clip.seconds, 1.0) for second in edges]
        gaps = zip(shares[::2], shares[1::2], strict=True)
        return [(start, end) for start, end in gaps if end > start]


class ClipMaker:
    """Makes clips until the page has enough of them."""

    def __init__(self, max_bytes: int = MAX_CLIP_BYTES) -> None:
        self._left = max_bytes

    def clip_of(self, row: ScoredUtterance) -> tuple[Clip | None, str]:
        """The recording of an utterance, and a note: what is left out, or why there is none."""
        if not row.audio_filepath:
            return None, "the transcripts do not say where the recording is"
        folder = os.path.dirname(row.place.rpartition(":")[0])  # place: the manifest and its line
        try:
            clip = make_clip(path_in_list(row.audio_filepath, folder), row.offset, row.duration, row.channel)
        except DataError as error:
            return None, str(error)
        if clip.num_bytes > self._left:
            return None, "the recording is left out to keep this page small"
        self._left -= clip.num_bytes
        return clip, f"the first {clip.seconds:.0f} s of the recording" if clip.is_cut else ""


@dataclass(frozen=True)
class CutSet:
    """The segments of a set whose recordings were cut. N recordings, S segments.

    Attributes:
        lengths: (S,) seconds of each segment, the shortest first.
        num_silent: recordings in which nobody speaks.
        seconds: of all recordings.
        shares: (N,) what was cut away of each recording, a fraction, the smallest first.
    """

    lengths: Sequence[float]
    num_silent: int
    seconds: float
    shares: Sequence[float]

    @property
    def extent(self) -> tuple[float, ...]:
        """The lengths of the shortest, the median and the longest segment; nothing where there is none."""
        return (self.lengths[0], median(self.lengths), self.lengths[-1]) if self.lengths else ()

    @property
    def cut_away(self) -> float:
        """Seconds of all recordings that lie in no segment."""
        return max(self.seconds - sum(self.lengths), 0.0)


def cut_set(rows: Sequence[ScoredUtterance]) -> CutSet | None:
    """The segments of a set; None where its recordings were not cut."""
    cut = [(row.duration, row.segments) for row in rows if row.segments is not None and row.duration]
    if not cut:
        return None
    lengths = [[max(each.end - each.start, 0.0) for each in segments] for _, segments in cut]
    seconds = [duration or 0.0 for duration, _ in cut]
    return CutSet(
        lengths=sorted(length for of_recording in lengths for length in of_recording),
        num_silent=sum(not of_recording for of_recording in lengths),
        seconds=sum(seconds),
        shares=sorted(max(1.0 - sum(own) / whole, 0.0) for own, whole in zip(lengths, seconds, strict=True)),
    )


@dataclass(frozen=True)
class ShownSet:
    """An evaluated set.

    Attributes:
        name: of the set.
        scores: its error rates.
        worst: the utterances with the most errors, the worst first.
        segments: how its recordings were cut; None: they were not.
        hotwords: what hot words gained and cost; None: there were none.
        changed: utterances in which hot words changed the text, those whose errors changed most first.
        num_changed: how many there are in all.
    """

    name: str
    scores: SetScores
    worst: Sequence[ShownUtterance]
    segments: CutSet | None = None
    hotwords: HotwordScores | None = None
    changed: Sequence[ShownUtterance] = ()
    num_changed: int = 0


def scored_sets(
    transcripts: Mapping[str, Sequence[ScoredUtterance]],
    clips: ClipMaker,
    hotwords: Mapping[str, HotwordScores | None] | None = None,
) -> list[ShownSet]:
    """What a report shows of the sets; those without utterances are left out.

    Args:
        transcripts: by set.
        clips: makes the recordings.
        hotwords: by set, where there are any.
    """
    by_name = {name: rows for name, rows in transcripts.items() if rows}
    most = max(FEWEST_OF_A_SET, MOST_UTTERANCES // max(len(by_name), 1))
    return [_scored_set(name, rows, most, clips, (hotwords or {}).get(name)) for name, rows in by_name.items()]


def _scored_set(
    name: str, rows: Sequence[ScoredUtterance], most: int, clips: ClipMaker, hotwords: HotwordScores | None
) -> ShownSet:
    scores = score_rows(rows)
    counts, use_cer = scores.errors, scores.unit == "character"
    hot = phrase_finder(hotwords.all_phrases if hotwords else (), list if use_cer else str.split)
    # Of equally many errors, those with the shorter reference first.
    order = np.lexsort((counts.lengths, -counts.errors))[:most].tolist()
    worst = [_utterance(rows[item], counts, item, use_cer, hot, clips) for item in order if counts.errors[item]]
    changed = [item for item, row in enumerate(rows) if _changed_text(row) is not None]
    shown = [_utterance(rows[item], counts, item, use_cer, hot) for item in changed]
    shown.sort(key=lambda each: -abs(each.num_errors - (each.errors_without or 0)))
    return ShownSet(name, scores, worst, cut_set(rows), hotwords, shown[:MOST_CHANGED], len(changed))


def _changed_text(row: ScoredUtterance) -> str | None:
    """The text without hot words, where it is another one."""
    return None if row.without_hotwords == row.hypothesis else row.without_hotwords


def _utterance(
    row: ScoredUtterance,
    counts: UtteranceErrors,
    item: int,
    use_cer: bool,
    hot: Callable[[Sequence[str]], Places],
    clips: ClipMaker | None = None,
) -> ShownUtterance:
    clip, note = clips.clip_of(row) if clips else (None, "")
    pieces = differences(row.reference, row.hypothesis, use_cer)
    said, heard = [(piece.said, piece.kind) for piece in pieces], [(piece.heard, piece.kind) for piece in pieces]
    texts = {"said": _parts(said, use_cer, hot), "heard": _parts(heard, use_cer, hot)}
    errors_without, without = None, _changed_text(row)
    if without is not None:
        aligned_without = differences(row.reference, without, use_cer)
        texts["without"] = _parts([(piece.heard, piece.kind) for piece in aligned_without], use_cer, hot)
        errors_without = count_errors([without], [row.reference], use_cer).errors
    return ShownUtterance(
        place=row.place,
        texts=texts,
        num_errors=int(counts.errors[item]),
        num_units=int(counts.lengths[item]),
        clip=clip,
        note=note,
        segments=row.segments if clips else None,
        seconds=row.duration,
        errors_without=errors_without,
    )


def _parts(
    pieces: Sequence[tuple[str, Kind]], use_cer: bool, hot: Callable[[Sequence[str]], Places]
) -> Sequence[TextPart]:
    """One side of an alignment, parted also where hot words begin and end."""
    units = [(unit, kind) for text, kind in pieces for unit in units_of(text, use_cer)]
    hot_units = {place for _, places in hot([unit for unit, _ in units]) for place in places}
    looks = [(kind, place in hot_units) for place, (_, kind) in enumerate(units)]
    parts = []
    for (kind, is_hot), group in groupby(range(len(units)), key=lambda place: looks[place]):
        text = ("" if use_cer else " ").join(units[place][0] for place in group)
        parts.append(TextPart(text, kind, is_hot))
    return parts
