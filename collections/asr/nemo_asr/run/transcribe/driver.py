"""The one way from recordings to transcripts, with any engine: for commands, Python, the server and streams.

Recordings are cut into segments, the rows that an `Engine` computes and searches (`Segmented`); labels become words
with times, and texts, words and times of the segments are put together again. Levels are read a piece at a time, and
only segments of one batch are in memory: a recording may last many hours. Texts that are known go another way:
`align_texts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

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
from nemo_asr.run.engines import ComputeRows, Engine, Row, TranscriptionSettings
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.search import Hypotheses
from nemo_asr.run.text.labels import separator_of
from nemo_asr.run.transcribe.domain import Domain, SoundMeter, marked
from nemo_asr.run.transcribe.doubts import doubtful_span, is_to_be_drawn_anew
from nemo_asr.run.transcribe.gaps import PAUSES, gaps_in, with_context, without_words
from nemo_asr.run.transcribe.inputs import Recording, batches_of, named, warn_if_cancelled
from nemo_asr.run.transcribe.transcript import (
    ScoredText,
    Sound,
    Transcribed,
    Transcript,
    Word,
    scored_texts,
    transcribed,
    transcript_of,
)
from nemo_lite.base.errors import DataError, counted
from nemo_lite.base.nemo_logging import logging

_MOST_IN_MEMORY = 1 << 24  # samples that stay from the measuring to the transcribing: 64 MiB
_MOST_TOLD = 3  # gaps, or doubtful texts, in a line of the log


class Segmented:
    """Recordings, and the rows that an engine computes for them: their segments.

    Args:
        recordings: what to transcribe.
        cutting: how they are cut; None: each is one segment.
        labels: of the model: whether words have spaces between them.
        detector: says where somebody speaks; None: the levels of the recording.
        nbest: above 1, the transcript of a recording in which nobody speaks has one empty hypothesis.
        longest: seconds that the model hears at once, so that no segment is longer; None: any number.
        domain: marks transcripts of what the model may not know; None: none, and no sound is measured.

    Attributes:
        rows: the segments, with their lengths.
        spoken: where somebody speaks in rows of which more than the length was read, by their number.
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
        longest: float | None = None,
        domain: Domain | None = None,
    ) -> None:
        cutting = None if cutting is None else cutting.within(longest)
        self._nothing = (ScoredText("", 0.0),) if nbest > 1 else ()
        self._cutting, self.separator = cutting, separator_of(labels)
        self._domain, self._sounds = domain, dict[int, Sound | None]()
        self._recordings: dict[int, Recording] = {}  # those that can be read
        self._rows_of: dict[int, range] = {}
        self.rows: list[Recording] = []
        self.spoken: dict[int, list[Span]] = {}
        self.faults: dict[int, str] = {}
        room = 0 if domain is None else _MOST_IN_MEMORY
        for position, recording in enumerate(recordings):
            try:
                if cutting is None:
                    # Else it is read again when it is transcribed.
                    whole = recording.in_memory(room) if room > 0 else recording.measured()
                    room -= len(whole.audio) if whole.audio is not recording.audio else 0
                    segments = [whole]
                    _refuse_longer(whole.seconds, longest)
                    if domain is not None:
                        activity = SpeechActivity(whole, detector, with_sound=True)
                        self._sounds[position] = activity.sound
                        self.spoken[len(self.rows)] = activity.spans(PAUSES)
                else:
                    activity = SpeechActivity(recording, detector, with_sound=domain is not None)
                    whole, segments = activity.recording, activity.segments(cutting)
                    self._sounds[position] = activity.sound
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
                    transcript = transcripts[0]
                else:
                    transcript = joined(whole, transcripts, self.separator)
                    if not rows:
                        transcript = replace(transcript, hypotheses=self._nothing)
                transcript = replace(transcript, sound=self._sounds.get(position))
                by_position[position] = marked(transcript, self._domain)
        return transcribed(by_position, all_faults)


def _refuse_longer(seconds: float, longest: float | None) -> None:
    """Raise DataError for a recording of more seconds than a model hears at once."""
    if longest is not None and seconds > longest:
        got, wanted = f"{seconds:.1f} s", f"at most {longest:g} s"
        remedy = "let it be cut: leave out --segments off"
        raise DataError("it is longer than what the model hears at once", got=got, wanted=wanted, remedy=remedy)


class SpeechActivity:
    """The levels of a recording, and what a detector decides of their frames.

    Args:
        recording: it is read here.
        detector: says where somebody speaks; None: the levels.
        with_sound: measure what it is like.

    Attributes:
        recording: with its length.
        sound: what it is like; None where it has none, or is not measured.

    Raises:
        DataError: it cannot be read.
    """

    def __init__(self, recording: Recording, detector: Detector | None = None, with_sound: bool = False) -> None:
        channels = ChannelEnergies()
        with recording.pieces(channels.add) as (self.recording, pieces, sample_rate):
            meter = SoundMeter(sample_rate) if with_sound else None
            self._levels = frame_levels(pieces if meter is None else meter.through(pieces), sample_rate)
            self._seconds = frame_samples(sample_rate) / sample_rate
        self.sound = None if meter is None else meter.sound(self._levels)
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
    words, spans, gaps, doubtful = list[Word](), list[Span](), list[Span](), list[Span]()
    for segment in segments:
        start = (segment.offset or 0.0) - first
        gaps += [Span(round(start + gap.start, 3), round(start + gap.end, 3)) for gap in segment.gaps]
        doubtful += [Span(round(start + each.start, 3), round(start + each.end, 3)) for each in segment.doubtful]
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
        gaps=tuple(gaps),
        doubtful=tuple(doubtful),
        **_of_all_frames(segments),
    )


def _of_all_frames(segments: Sequence[Transcript]) -> dict[str, Any]:
    """What was measured of the frames of segments; nothing where it was not measured of each."""
    found: dict[str, Any] = {}
    moments = [segment.moments for segment in segments if segment.moments is not None]
    if len(moments) == len(segments) > 0:
        found["moments"] = np.sum(moments, axis=0)
    distances = [segment.distance for segment in segments if segment.distance is not None]
    if len(distances) == len(segments) > 0:
        found["distance"] = float(np.average(distances, weights=[segment.duration for segment in segments]))
    return found


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


if TYPE_CHECKING:
    from nemo_asr.run.transcribe.stream import SegmentStream

T = TypeVar("T")


def transcribe(engine: Engine, recordings: Sequence[Recording], settings: TranscriptionSettings) -> Transcribed:
    """Transcribe recordings; the result is in the order given.

    Recordings are cut at pauses into segments, and each segment is transcribed alone: features are normalised over
    what a model is given, and long silence in it makes models miss words. No segment is longer than the model can take.

    Raises:
        UsageError: the search cannot give so many hypotheses, or the model gives no probabilities.
    """
    domain = engine.domain and engine.domain.calibrated(settings.calibration)
    of_rows = settings.cutting, engine.labels, settings.detector, settings.nbest, engine.longest_seconds, domain
    segmented = Segmented(recordings, *of_rows)
    faults = dict[int, str]()
    compute = partial(engine.hypotheses, settings=settings)
    by_row = _by_row(engine, segmented.rows, compute, faults, settings, segmented.spoken)
    whole = segmented.transcribed(by_row, faults)
    doubted = [transcript for transcript in whole.transcripts if transcript.doubtful]
    for transcript in doubted if not settings.count_gaps else ():
        listed = _listed(transcript.doubtful)
        logging.warning("%s: the text repeats itself, or nobody speaks, so it is doubtful: %s", transcript.name, listed)
    with_gaps = [transcript for transcript in whole.transcripts if transcript.gaps]
    if with_gaps and settings.count_gaps:
        numbers = f"{len(with_gaps)} of {counted(len(whole.transcripts), 'recording')}"
        logging.warning("In %s somebody speaks where no word was found, such as %s", numbers, with_gaps[0].name)
    for transcript in with_gaps if not settings.count_gaps else ():
        logging.warning("%s: somebody speaks, and no word was found: %s", transcript.name, _listed(transcript.gaps))
    return whole


def _listed(spans: Sequence[Span]) -> str:
    more = f" and {len(spans) - _MOST_TOLD} more" if len(spans) > _MOST_TOLD else ""
    return ", ".join(f"{span.start:.1f} to {span.end:.1f} s" for span in spans[:_MOST_TOLD]) + more


def row_transcriber(engine: Engine, settings: TranscriptionSettings) -> Callable[[Sequence[Recording]], Transcribed]:
    """`transcribe` for a program that serves: each call takes rows whose lengths are known, not cut, as one batch.

    One call at a time; a call on a short recording in torch takes about a third of the time of `transcribe`.
    """
    compute = engine.of_one_batch(settings)

    def of_rows(rows: Sequence[Recording]) -> Transcribed:
        faults = dict[int, str]()
        return transcribed(_by_row(engine, rows, compute, faults, settings, {}), faults)

    return of_rows


def segment_stream(
    engine: Engine, settings: TranscriptionSettings, sample_rate: int | None = None, **of_stream: Any
) -> SegmentStream:
    """A stream in segments, with any engine.

    Args:
        engine: transcribes each segment.
        settings: the search, and the calibration.
        sample_rate: of the samples; None: the engine's.
        of_stream: ``cutting``, ``partial_seconds`` and ``name`` of `SegmentStream`.
    """
    from nemo_asr.run.transcribe.stream import STREAM_CUTTING, SegmentStream

    of_rows = row_transcriber(engine, settings)
    of_stream["cutting"] = of_stream.get("cutting", STREAM_CUTTING).within(engine.longest_seconds)
    return SegmentStream(
        lambda recording: of_rows([recording]).or_error()[0],
        sample_rate or engine.sample_rate,
        separator=separator_of(engine.labels),
        domain=engine.domain and engine.domain.calibrated(settings.calibration),
        **of_stream,
    )


def _by_row(
    engine: Engine,
    rows: Sequence[Recording],
    compute: ComputeRows,
    faults: dict[int, str],
    settings: TranscriptionSettings,
    known: dict[int, list[Span]],
) -> dict[int, Transcript]:
    """The transcripts of rows. Gaps in segments are searched again, as segments of their own; those that stay are told.

    A recording that is transcribed as it is has the text that a stream of it has; and the texts of several hypotheses
    say nothing about where their words are: of both, gaps are told alone.

    ``faults`` takes why rows cannot be read, by their number. ``known``: where somebody speaks in some of them.
    """
    by_row = dict(_transcripts(engine, rows, compute(rows, faults), settings))
    _draw_anew(engine, rows, by_row, settings)
    spoken = _Spoken(rows, settings.detector, known)
    if engine.may_invent:  # in a segment somebody speaks
        for number, each in by_row.items():
            speech = spoken.in_row(number) if settings.cutting is None else None
            by_row[number] = replace(each, doubtful=doubtful_span(each.words, each.text, speech))
    found_first = engine.from_first(
        # Plain tuples travel between ranks.
        lambda: {number: [tuple(gap) for gap in of_row] for number, of_row in _gaps(rows, by_row, spoken).items()}
    )
    gaps = {number: [Span(*gap) for gap in of_row] for number, of_row in found_first.items()}
    if settings.nbest > 1 or settings.cutting is None:
        return _told(by_row, gaps)
    parts = [
        (number, with_context(gap, rows[number].seconds)) for number, of_row in sorted(gaps.items()) for gap in of_row
    ]
    if not parts:
        return by_row
    again = [rows[number].part(span) for number, span in parts]
    # A gap that cannot be read now has no fault to tell: its row was read, and the gap stays.
    for position, found in _transcripts(engine, again, compute(again, {}), settings):
        number, span = parts[position]
        words = sorted(
            [*by_row[number].words, *(word.later(span.start) for word in found.words)], key=attrgetter("start")
        )
        text = separator_of(engine.labels).join(word.text for word in words)
        by_row[number] = replace(by_row[number], text=text, words=tuple(words))
    found_again = {number: by_row[number] for number in gaps if number in by_row}
    return _told(by_row, _gaps(rows, found_again, spoken))


def _draw_anew(
    engine: Engine, rows: Sequence[Recording], by_row: dict[int, Transcript], settings: TranscriptionSettings
) -> None:
    """Replace texts that repeat themselves or are improbable; the last temperature's stays, whatever it is."""
    for temperature in settings.temperatures:
        numbers = engine.from_first(
            lambda: [number for number, each in sorted(by_row.items()) if is_to_be_drawn_anew(each.words, each.text)]
        )
        if not numbers:
            return
        drawing = replace(settings, search=engine.new_search(SearchOptions(temperature=temperature)))
        again = [rows[number] for number in numbers]
        for position, found in _transcripts(engine, again, engine.hypotheses(again, {}, drawing), settings):
            by_row[numbers[position]] = found


def _transcripts(
    engine: Engine, rows: Sequence[Recording], computed: Iterable[Row[Hypotheses]], settings: TranscriptionSettings
) -> Iterator[tuple[int, Transcript]]:
    labels, calibration = engine.labels, settings.calibration
    for number, found, start, frame_seconds, moments in computed:
        several = scored_texts(found.scored, labels)
        transcript = transcript_of(found.best, labels, rows[number], frame_seconds, start, calibration, several)
        if moments is not None and engine.domain is not None:
            transcript = replace(transcript, **engine.domain.measured(moments))
        yield number, transcript


class _Spoken:
    """Where somebody speaks in rows: a row is read when that is asked for, once, unless it is known."""

    def __init__(self, rows: Sequence[Recording], detector: Detector | None, known: dict[int, list[Span]]) -> None:
        self._rows, self._detector, self._known = rows, detector, known

    def in_row(self, number: int) -> list[Span] | None:
        """None: the row cannot be read any more; its words are known."""
        if number not in self._known:
            try:
                self._known[number] = SpeechActivity(self._rows[number], self._detector).spans(PAUSES)
            except DataError:
                return None
        return self._known[number]


def _gaps(rows: Sequence[Recording], by_row: Mapping[int, Transcript], spoken: _Spoken) -> dict[int, list[Span]]:
    """The gaps of rows by their number; the levels of a row are only read where its words leave room for one."""
    found = {}
    for number, transcript in by_row.items():
        parts = without_words(transcript.words, rows[number].seconds)
        if parts and (gaps := gaps_in(parts, spoken.in_row(number) or ())):
            found[number] = gaps
    return found


def _told(by_row: dict[int, Transcript], gaps: Mapping[int, Sequence[Span]]) -> dict[int, Transcript]:
    return by_row | {number: replace(by_row[number], gaps=tuple(gaps[number])) for number in gaps if number in by_row}


def in_batches(
    rows: Sequence[Recording],
    faults: dict[int, str],
    settings: TranscriptionSettings,
    compute: Callable[[Sequence[Recording], dict[int, str]], Iterable[Row[T]]],
) -> Iterator[Row[T]]:
    """Rows in batches of similar length, one after the other in this process.

    Args:
        rows: all of them.
        faults: takes why some of them cannot be read.
        settings: how large batches are.
        compute: gives the rows of a batch, and takes the faults in it, by their position there.
    """
    for batch in batches_of(dict(enumerate(rows)), settings.batch_size, settings.batch_seconds):
        in_batch: dict[int, str] = {}
        for row in compute([rows[number] for number in batch], in_batch):
            yield row._replace(number=batch[row.number])
        faults |= {batch[position]: reason for position, reason in in_batch.items()}
