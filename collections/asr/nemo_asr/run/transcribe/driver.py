"""The one way from recordings to transcripts, with any engine: for commands, Python, the server and streams.

Recordings are cut into rows (`Segmented`), an `Engine` computes and searches these, labels become words with times, and
the segments of a recording are joined again. Texts that are known go another way: `align_texts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from nemo_asr.run.engines import Engine, Row, TranscriptionSettings
from nemo_asr.run.search.search import Hypotheses
from nemo_asr.run.text.labels import separator_of
from nemo_asr.run.transcribe.inputs import Recording, batches_of
from nemo_asr.run.transcribe.segments import Segmented
from nemo_asr.run.transcribe.transcript import Transcribed, Transcript, scored_texts, transcribed, transcript_of

if TYPE_CHECKING:
    from nemo_asr.run.transcribe.stream import SegmentStream

T = TypeVar("T")


def transcribe(engine: Engine, recordings: Sequence[Recording], settings: TranscriptionSettings) -> Transcribed:
    """Transcribe recordings; the result is in the order given.

    Recordings are cut at pauses into segments, and each segment is transcribed alone: features are normalised over
    what a model is given, and long silence in it makes models miss words.

    Raises:
        UsageError: the search cannot give so many hypotheses, or the model gives no probabilities.
    """
    segmented = Segmented(recordings, settings.cutting, engine.labels, settings.detector, settings.nbest)
    rows, faults = segmented.rows, dict[int, str]()
    by_row = _by_row(engine, rows, engine.hypotheses(rows, faults, settings), settings)
    return segmented.transcribed(by_row, faults)


def row_transcriber(engine: Engine, settings: TranscriptionSettings) -> Callable[[Sequence[Recording]], Transcribed]:
    """`transcribe` for a program that serves: each call takes rows whose lengths are known, not cut, as one batch.

    One call at a time; a call on a short recording in torch takes about a third of the time of `transcribe`.
    """
    compute = engine.of_one_batch(settings)

    def of_rows(rows: Sequence[Recording]) -> Transcribed:
        faults = dict[int, str]()
        return transcribed(_by_row(engine, rows, compute(rows, faults), settings), faults)

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
    from nemo_asr.run.transcribe.stream import SegmentStream

    of_rows = row_transcriber(engine, settings)
    return SegmentStream(
        lambda recording: of_rows([recording]).or_error()[0],
        sample_rate or engine.sample_rate,
        separator=separator_of(engine.labels),
        **of_stream,
    )


def _by_row(
    engine: Engine,
    rows: Sequence[Recording],
    computed: Iterable[Row[Hypotheses]],
    settings: TranscriptionSettings,
) -> dict[int, Transcript]:
    labels, calibration = engine.labels, settings.calibration
    by_row: dict[int, Transcript] = {}
    for number, found, start, frame_seconds in computed:
        several = scored_texts(found.scored, labels)
        by_row[number] = transcript_of(found.best, labels, rows[number], frame_seconds, start, calibration, several)
    return by_row


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
