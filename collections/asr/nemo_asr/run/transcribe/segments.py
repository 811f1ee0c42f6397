"""Recordings in segments: each is transcribed like a recording, then texts, words and times are put together again.

Both engines compute the rows of `Segmented`. Levels are read a piece at a time, and only segments of one
batch are in memory: a recording may last many hours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nemo_asr.run.audio.segments import (
    ChannelEnergies,
    Cutting,
    Decisions,
    Detector,
    Span,
    frame_levels,
    frame_samples,
    spans_of_frames,
    speech_spans,
)
from nemo_asr.run.text.labels import separator_of
from nemo_asr.run.transcribe.inputs import Recording, named, warn_if_cancelled
from nemo_asr.run.transcribe.transcript import ScoredText, Transcribed, Transcript, transcribed
from nemo_lite.base.errors import DataError


class Segmented:
    """Recordings, and the rows that an engine computes for them: their segments.

    Args:
        recordings: what to transcribe.
        cutting: how they are cut; None: each is one segment.
        labels: of the model: whether words have spaces between them.
        detector: says where somebody speaks; None: the levels of the recording.
        nbest: above 1, the transcript of a recording in which nobody speaks has one empty hypothesis.

    Attributes:
        rows: the segments, with their lengths.
        faults: why recordings cannot be read, by their position.
        separator: what stands between the texts of two segments.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        cutting: Cutting | None,
        labels: Sequence[str],
        detector: Detector | None = None,
        nbest: int = 1,
    ) -> None:
        self._nothing = (ScoredText("", 0.0),) if nbest > 1 else ()
        self._cutting, self.separator = cutting, separator_of(labels)
        self._recordings: dict[int, Recording] = {}  # those that can be read
        self._rows_of: dict[int, range] = {}
        self.rows: list[Recording] = []
        self.faults: dict[int, str] = {}
        for position, recording in enumerate(recordings):
            try:
                if cutting is None:
                    whole = recording.measured()
                    segments = [whole]
                else:
                    activity = SpeechActivity(recording, detector)
                    whole, segments = activity.recording, activity.segments(cutting)
            except DataError as error:
                self.faults[position] = named(recording, error)
                continue
            self._recordings[position] = whole
            self._rows_of[position] = range(len(self.rows), len(self.rows) + len(segments))
            self.rows += segments

    def transcribed(self, by_row: Mapping[int, Transcript], faults: Mapping[int, str]) -> Transcribed:
        """The transcripts of the recordings.

        Args:
            by_row: the transcripts of the rows that could be read; on ranks above 0 none.
            faults: why rows cannot be read, by their number.

        Returns:
            A transcript for each recording that can be read; that of one in which nobody speaks is empty.
        """
        all_faults, by_position = dict(self.faults), dict[int, Transcript]()
        for position, rows in self._rows_of.items():
            reasons = [faults[row] for row in rows if row in faults]
            if reasons:
                all_faults[position] = reasons[0]
            elif all(row in by_row for row in rows):
                transcripts = [by_row[row] for row in rows]
                whole = self._recordings[position]
                if self._cutting is None:
                    by_position[position] = transcripts[0]
                else:
                    transcript = joined(whole, transcripts, self.separator)
                    by_position[position] = transcript if rows else replace(transcript, hypotheses=self._nothing)
        return transcribed(by_position, all_faults)


class SpeechActivity:
    """The levels of a recording, and what a detector decides of their frames.

    Args:
        recording: it is read here.
        detector: says where somebody speaks; None: the levels.

    Attributes:
        recording: with its length.

    Raises:
        DataError: it cannot be read.
    """

    def __init__(self, recording: Recording, detector: Detector | None = None) -> None:
        channels = ChannelEnergies()
        with recording.pieces(channels.add) as (self.recording, pieces, sample_rate):
            self._levels, self._seconds = frame_levels(pieces, sample_rate), frame_samples(sample_rate) / sample_rate
        warn_if_cancelled(recording.source, channels)
        self._is_speech: Decisions | None = None
        if detector is not None:
            with recording.pieces() as (_, pieces, sample_rate):
                decisions, seconds = detector(pieces, sample_rate)
            # The decision in the middle of each frame of levels.
            numbers = ((np.arange(len(self._levels)) + 0.5) * self._seconds / seconds).astype(np.int64)
            self._is_speech = decisions[numbers.clip(max=len(decisions) - 1)]

    def spans(self, cutting: Cutting) -> list[Span]:
        """Where somebody speaks."""
        if self._is_speech is None:
            return self.loud_spans(cutting)
        return spans_of_frames(self._is_speech, self._levels, self._seconds, cutting)

    def loud_spans(self, cutting: Cutting) -> list[Span]:
        """Where somebody speaks by the levels alone."""
        return speech_spans(self._levels, self._seconds, cutting)

    def segments(self, cutting: Cutting) -> list[Recording]:
        """The parts in which somebody speaks, as recordings with their lengths."""
        spans, whole = self.spans(cutting), self.recording
        if len(spans) == 1 and spans[0].start <= 0.0 and spans[0].end >= whole.seconds:
            return [whole]  # with no offset that rounding might move
        return [whole.part(Span(start, min(end, whole.seconds))) for start, end in spans]


def joined(recording: Recording, segments: Sequence[Transcript], separator: str) -> Transcript:
    """The transcript of a recording from those of its segments, in their order. Times are those of the recording."""
    first = recording.offset or 0.0
    words, spans = [], []
    for segment in segments:
        start = (segment.offset or 0.0) - first
        spans.append(Span(round(start, 3), round(start + segment.duration, 3)))
        words += [word.later(start) for word in segment.words]
    return Transcript(
        text=separator.join(segment.text for segment in segments if segment.text),
        words=tuple(words),
        duration=round(recording.seconds, 3),
        source=recording.source,
        offset=recording.offset,
        hypotheses=best_of_all([segment.hypotheses for segment in segments], separator),
        segments=tuple(spans),
        channel=recording.channel,
    )


def best_of_all(hypotheses: Sequence[Sequence[ScoredText]], separator: str) -> tuple[ScoredText, ...]:
    """The most probable texts of a recording from those of its segments: scores of independent segments add up.

    As many as the segment with the most has. Of each prefix only so many can be part of the best, so no more are kept.
    """
    best = [ScoredText("", 0.0)]
    count = max(map(len, hypotheses), default=0)
    for of_segment in hypotheses:
        longer = [
            ScoredText(separator.join(text for text in (before.text, here.text) if text), before.score + here.score)
            for before in best
            for here in of_segment
        ]
        best = sorted(longer, key=lambda hypothesis: -hypothesis.score)[:count] or best
    return tuple(ScoredText(text, round(score, 3)) for text, score in best) if count else ()
