"""Known texts in recordings: when each word is said, and where a long recording is cut. No torch in this file.

A recording is cut at its pauses as for a transcript, and the model computes each part alone. The frames of all parts
stand in a row, and the most probable path of the whole text through them says when each label is said. What a path is,
the `Aligner` of the model knows. In front of the text, behind it and between its sentences more may be said than the
text has.

Source: Kuerzinger et al., "CTC-Segmentation of Large Corpora for German End-to-end Speech Recognition", 2020.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.audio.segments import DEFAULT_CUTTING, LONG_PAUSE, Cutting, Detector, Span
from nemo_asr.run.engines import Engine, TranscriptionSettings
from nemo_asr.run.manifest import Entry
from nemo_asr.run.search.search import Aligner, TimedLabels
from nemo_asr.run.text.forms import plain_letters
from nemo_asr.run.text.labels import separator_of, shown_symbols, spelled
from nemo_asr.run.text.parser import CharParser
from nemo_asr.run.transcribe.driver import SpeechActivity
from nemo_asr.run.transcribe.inputs import Recording, named
from nemo_asr.run.transcribe.transcript import Transcript, Word, as_srt, refuse_faults
from nemo_lite.base.errors import DataError, UsageError, counted

Floats: TypeAlias = "npt.NDArray[np.floating[Any]]"

MOST_SECONDS = 3600.0  # of recordings whose frames are in memory at once, unless one alone is longer
_ALIGN_ALL = "give --segments off (in Python cutting=None) to align all of it"
_DIGITS = 3  # of seconds, confidences and scores
_SCORED_FRAMES = 30  # as in the paper
_LONGEST_DELAY = 0.5  # seconds; a larger one is no habit of a model, but a text that is not what is said
_LONGEST_SPACE = 0.1  # seconds from a space to the label behind it; an earlier one stands in a pause
_NEAR_END = 0.5  # seconds from the last label to the end of its sound; speech that ends later is not of that label
_NEAR_ONSET = 0.25  # seconds; a first label farther from the beginning of speech is not of that sound
# The end of a sentence: a line's end, or a mark with a space behind it; the marks of Chinese and Japanese need none.
_SENTENCE_END = re.compile("(?<=[.?!;\u061f\u0964])\\s+|(?<=[\u3002\uff1f\uff01\uff1b])|(?<!\\s)\\s*\\n\\s*")
# A point that ends no sentence: of an initial, an ordinal (3. Mai), a title, or a word that others follow.
_ABBREVIATED = re.compile(
    "\\b(?:[A-Z\u00c0-\u00de\u0410-\u042f]|[0-9]{1,2}|(?i:mrs?|ms|drs?|prof|st|rev|hon|gen|col|capt|lt|sgt|messrs|"
    "mt|gov|sen|rep|pres|vs|approx|hr|fr|nr|ca|bzw|mme|mlle|sra?))\\.\\Z"
)


class Sentence(NamedTuple):
    """A part of a text.

    Attributes:
        text: as it was written.
        ids: of its labels.
    """

    text: str
    ids: list[int]


@dataclass(frozen=True)
class SentenceCutting:
    """How sentences of a text become utterances. All values are seconds of speech.

    Attributes:
        longest: a longer one is cut at its longest pauses.
        shortest: no cut leaves a shorter one, unless it would be longer than ``longest``; a shorter sentence is joined
            to a neighbour if the pause between is below ``pause``.
        pause: a pause between two words from which on a sentence is cut.

    Raises:
        UsageError: the shortest is not below the longest.
    """

    longest: float = 20.0
    shortest: float = 0.3
    pause: float = LONG_PAUSE

    def __post_init__(self) -> None:
        if not self.shortest < self.longest:
            got, wanted = f"{self.shortest:g} and {self.longest:g} s", "a shortest below the longest"
            raise UsageError("no utterance has these lengths", got=got, wanted=wanted)


@dataclass(frozen=True)
class AlignedSegment:
    """A part of a text, and when it is said: a sentence, or an utterance of a `SentenceCutting`.

    Attributes:
        text: as it was written; of a sentence that was cut, the words as the labels write them.
        start, end: seconds from the beginning of the recording.
        score: the mean natural logarithm of the probabilities over the 30 frames where it is worst: near 0 where the
            text is what is said, below -2 where it hardly is.
        words: with their times.
        labels: the labels, without spaces, with theirs.
    """

    text: str
    start: float
    end: float
    score: float
    words: tuple[Word, ...]
    labels: tuple[Word, ...]


@dataclass(frozen=True)
class Alignment:
    """A text in a recording. Attributes as of `Transcript`; ``segments`` are the sentences."""

    text: str
    segments: tuple[AlignedSegment, ...]
    duration: float
    source: str
    offset: float | None = None
    channel: int | None = None

    @property
    def words(self) -> tuple[Word, ...]:
        """Those of all segments."""
        return tuple(word for segment in self.segments for word in segment.words)

    @property
    def score(self) -> float:
        """That of the worst segment."""
        return min(segment.score for segment in self.segments)


class SpokenPart(NamedTuple):
    """A part of a recording.

    Attributes:
        rows: (T, ...) of an `Aligner`.
        start: seconds from the beginning of the recording at which the first frame begins.
        onset: seconds at which somebody begins to speak in it.
        end: seconds at which nobody speaks any more in it; 0: not known.
    """

    rows: Floats
    start: float
    onset: float
    end: float = 0.0


class RecordingFrames(NamedTuple):
    """The frames of a recording: T of them, with one that is none between parts.

    Attributes:
        rows: (T, ...) of an `Aligner`.
        borders: those between parts.
        times: (T,) seconds from the beginning of the recording at which each begins.
        onsets: (T,) seconds at which somebody begins to speak in the part of each.
        ends: (T,) seconds at which nobody speaks any more in it; 0: not known.
        seconds: of a frame.
    """

    rows: Floats
    borders: Sequence[int]
    times: Floats
    onsets: Floats
    ends: Floats
    seconds: float


class SaidText(NamedTuple):
    """The most probable path of a text. Times are those at which the model writes labels, behind their sounds.

    Attributes:
        recording: with its length.
        sentences: of the text.
        edges: the number of labels in front of each sentence, and of all.
        timed: the labels.
        times, onsets, ends: (T,) as of `RecordingFrames`.
        scores: (T,) natural logarithm of the probability of each frame's label.
        seconds: of a frame.
    """

    recording: Recording
    sentences: Sequence[Sentence]
    edges: Sequence[int]
    timed: TimedLabels
    times: Floats
    onsets: Floats
    ends: Floats
    scores: Floats
    seconds: float

    @property
    def delays(self) -> list[float]:
        """Seconds from each beginning of speech to the first label behind it."""
        firsts: dict[float, float] = {}
        for frame in self.timed.starts:
            firsts.setdefault(float(self.onsets[frame]), float(self.times[frame]))
        return [time - onset for onset, time in firsts.items()]


def frames_of_parts(parts: list[SpokenPart], frame_seconds: float) -> RecordingFrames:
    """Parts of a recording in a row; a frame lasts ``frame_seconds``.

    The list is emptied part by part, so that frames are in memory once.
    """
    num_frames = sum(len(part.rows) for part in parts) + len(parts) - 1
    rows = np.zeros((num_frames, parts[0].rows.shape[1]), parts[0].rows.dtype)
    times, onsets, ends = (np.empty(num_frames) for _ in range(3))
    first, borders = 0, list[int]()
    while parts:
        of_part, start, onset, end = parts.pop(0)
        own = slice(first, first + len(of_part))
        rows[own], times[own] = of_part, start + frame_seconds * np.arange(len(of_part))
        if first:
            borders.append(first - 1)
            times[first - 1] = start
            own = slice(first - 1, own.stop)
        onsets[own], ends[own] = onset, end
        first = own.stop + 1
    return RecordingFrames(rows, borders, times, onsets, ends, frame_seconds)


def delay_of(texts: Iterable[SaidText]) -> float:
    """How much later than its sound a model writes a label: the median over all beginnings of speech."""
    delays = [delay for text in texts for delay in text.delays]
    return min(max(float(np.quantile(delays, 0.7)), 0.0), _LONGEST_DELAY) if delays else 0.0


def sentences_of(text: str, parser: CharParser) -> list[Sentence]:
    """The sentences of a text: its lines, cut behind marks that end a sentence.

    Raises:
        DataError: the text is empty, or has letters or digits that the labels cannot spell.
    """
    if not text.strip():
        raise DataError("there is no text to align", remedy='give a "text"')
    before = Counter(parser.unknown)
    pairs = [(part.strip(), parser(part)) for part in _cut_behind_sentences(text) if part.strip()]
    parts = [Sentence(part, ids) for part, ids in pairs if ids]
    lost = {symbol: count for symbol, count in (parser.unknown - before).items() if _is_said(symbol)}
    lost |= {symbol: 1 for part, ids in pairs if not ids for symbol in plain_letters(part) if _is_said(symbol)}
    if lost:
        remedy = "write the text in the labels' letters, or take a model that has them"
        raise DataError("the labels cannot spell the text", got=shown_symbols(Counter(lost)), remedy=remedy)
    if not parts:
        raise DataError("there is no letter in the text", got=repr(text[:40]))
    return parts


def _cut_behind_sentences(text: str) -> Iterator[str]:
    """``text`` cut behind its sentences. In a text with capitals a small letter begins none (``5 p.m. on Friday``)."""
    first, has_capitals = 0, text != text.lower()
    for end in _SENTENCE_END.finditer(text):
        goes_on = _ABBREVIATED.search(text, max(first, end.start() - 10), end.start()) is not None
        is_small = has_capitals and text[end.start() - 1] == "." and text[end.end() : end.end() + 1].islower()
        if "\n" in end[0] or not (goes_on or is_small):
            yield text[first : end.start()]
            first = end.end()
    yield text[first:]


def ids_of(sentences: Sequence[Sentence], labels: Sequence[str]) -> tuple[list[int], list[int]]:
    """The labels of sentences in a row, and their edges, see `SaidText`."""
    space = [labels.index(" ")] if " " in labels else []
    ids, edges = list[int](), [0]
    for number, sentence in enumerate(sentences):
        ids += (space if number else []) + sentence.ids
        edges.append(len(ids))
    return ids, edges


def find_text(
    frames: RecordingFrames,
    sentences: Sequence[Sentence],
    labels: Sequence[str],
    recording: Recording,
    aligner: Aligner,
) -> SaidText:
    """The most probable path of a text.

    Args:
        frames: of the recording.
        sentences: of its text, in their order.
        labels: the vocabulary, without blanks.
        recording: with its length.
        aligner: of the model; it has kept the frames of this text.

    Raises:
        DataError: the text needs more frames than there are.
    """
    ids, edges = ids_of(sentences, labels)
    needed = aligner.frames_needed(ids)
    if len(frames.rows) < needed:
        spoken = len(frames.rows) * frames.seconds
        problem, remedy = "the text is longer than its recording", "see whether they belong together"
        got = f"{len(ids)} labels in {spoken:.2f} s of speech"
        raise DataError(problem, got=got, wanted=f"{needed * frames.seconds:.2f} s or more", remedy=remedy)
    timed, scores = aligner.align(frames.rows, ids, edges, frames.borders)
    return SaidText(
        recording, sentences, edges, timed, frames.times, frames.onsets, frames.ends, scores, frames.seconds
    )


def alignment_of(
    said: SaidText, labels: Sequence[str], delay: float, cutting: SentenceCutting | None = None
) -> Alignment:
    """When each sentence, word and label is said.

    A word begins ``delay`` before the space in front of it, or else before its first label; the first one behind a
    pause where its sound does. It ends with its last label, or where the next word begins; the last one in front of a
    pause where its sound does.

    Args:
        said: the path of the text.
        labels: the vocabulary, without the blank.
        delay: seconds by which labels are later than their sounds.
        cutting: how sentences become utterances; None: they stay sentences.
    """
    written = [spelled(label) for label in labels]
    words = [[k for k in word if written[said.timed.ids[k]].strip()] for word in said.timed.words(written)]
    timed = _timed_words([word for word in words if word], said, written, delay)
    separator = separator_of(labels)
    pieces = list[_TextPiece]()
    for sentence, (first, end) in zip(said.sentences, itertools.pairwise(said.edges), strict=True):
        own = [word for word in timed if first <= word.labels[0] < end]
        groups = [own] if cutting is None or not own else _cut(own, cutting)
        for group in groups:
            text = sentence.text if len(group) == len(own) else separator.join(word.word.text for word in group)
            pieces.append(_TextPiece(text, group))
    segments = list[AlignedSegment]()
    for text, group in pieces if cutting is None else _joined(pieces, cutting, separator):
        worst = _worst(said.scores[said.timed.starts[group[0].labels[0]] : said.timed.ends[group[-1].labels[-1]]])
        whole = tuple(word.word for word in group)
        parts = tuple(part for word in group for part in _labels_of(word, said, written, delay))
        segments.append(AlignedSegment(text, whole[0].start, whole[-1].end, round(worst, _DIGITS), whole, parts))
    recording = said.recording
    text = " ".join(sentence.text for sentence in said.sentences)
    return Alignment(
        text, tuple(segments), round(recording.seconds, _DIGITS), recording.source, recording.offset, recording.channel
    )


class _PlacedWord(NamedTuple):
    """A word, and the positions of its labels."""

    word: Word
    labels: list[int]


class _TextPiece(NamedTuple):
    """A part of a text."""

    text: str
    words: Sequence[_PlacedWord]


def _timed_words(words: Sequence[list[int]], said: SaidText, written: Sequence[str], delay: float) -> list[_PlacedWord]:
    starts, last_onset, last_label = list[float](), -1.0, 0.0
    onsets = [float(said.onsets[said.timed.starts[word[0]]]) for word in words]
    for word, onset in zip(words, onsets, strict=True):
        first = word[0]
        is_behind_space = first > 0 and not written[said.timed.ids[first - 1]].strip()
        time = float(said.times[said.timed.starts[first]])
        opens_span, last_onset = onset != last_onset, onset
        if opens_span and abs(time - delay - onset) <= _NEAR_ONSET:
            start = onset
        elif is_behind_space and not opens_span:
            space = float(said.times[said.timed.starts[first - 1]])
            start = max(space, time - _LONGEST_SPACE) - delay
        else:
            start = time - delay
        # A transducer may say two words in one frame: each has a frame.
        starts.append(max(start, last_label, starts[-1] + said.seconds if starts else 0.0))
        last_label = max(float(said.times[said.timed.starts[word[-1]]]) - delay, starts[-1])
    timed = []
    followings = zip([*starts[1:], said.recording.seconds], [*onsets[1:], -1.0], strict=True)
    for word, start, onset, (following, next_onset) in zip(words, starts, onsets, followings, strict=True):
        last = said.timed.ends[word[-1]] - 1
        heard_end, speech_end = float(said.times[last]) + said.seconds, float(said.ends[last])
        is_near = heard_end - delay - said.seconds <= speech_end <= heard_end + _NEAR_END
        if next_onset != onset and is_near:
            heard_end = speech_end
        end = max(start, min(max(heard_end, start + said.seconds), following, said.recording.seconds))
        timed.append(_PlacedWord(_word(word, said, written, start, end), word))
    return timed


def _labels_of(word: _PlacedWord, said: SaidText, written: Sequence[str], delay: float) -> Iterator[Word]:
    """The labels of a word: each lasts until the next one begins."""
    times = [float(said.times[said.timed.starts[k]]) - delay for k in word.labels[1:]]
    edges = [word.word.start, *(min(max(time, word.word.start), word.word.end) for time in times), word.word.end]
    for k, (start, end) in zip(word.labels, itertools.pairwise(edges), strict=True):
        yield _word([k], said, written, start, end)


def _word(positions: Sequence[int], said: SaidText, written: Sequence[str], start: float, end: float) -> Word:
    ids, starts, ends, log_probs = said.timed
    num_frames = sum(ends[k] - starts[k] for k in positions)
    confidence = float(np.exp(sum(log_probs[k] for k in positions) / num_frames))
    text = "".join(written[ids[k]] for k in positions).strip()
    return Word(text, round(start, _DIGITS), round(end, _DIGITS), round(confidence, _DIGITS))


def _cut(words: Sequence[_PlacedWord], cutting: SentenceCutting) -> Iterator[Sequence[_PlacedWord]]:
    """Words in groups, cut at long pauses and until none is too long; a word is never cut."""
    groups = [words]
    while groups:
        group = groups.pop()
        first, last = group[0].word.start, group[-1].word.end
        places = [
            (behind.word.start - before.word.end, place)
            for place, (before, behind) in enumerate(itertools.pairwise(group), 1)
        ]
        wide = [
            (pause, place)
            for pause, place in places
            if min(group[place - 1].word.end - first, last - group[place].word.start) >= cutting.shortest
        ]
        is_long = last - first > cutting.longest
        chosen = (wide or places) if is_long else [(pause, place) for pause, place in wide if pause >= cutting.pause]
        if not chosen:
            yield group
            continue
        _, place = max(chosen, key=lambda pair: pair[0])
        groups += [group[place:], group[:place]]


def _joined(pieces: Iterable[_TextPiece], cutting: SentenceCutting, separator: str) -> list[_TextPiece]:
    """Pieces that are too short together with the one in front of them, or else the one behind them."""
    joined = list[_TextPiece]()
    for piece in pieces:
        before = joined[-1] if joined else piece
        start, end = before.words[0].word.start, piece.words[-1].word.end
        pause = piece.words[0].word.start - before.words[-1].word.end
        is_short = min(_seconds(before), _seconds(piece)) < cutting.shortest
        if joined and is_short and pause < cutting.pause and end - start <= cutting.longest:
            joined[-1] = _TextPiece(f"{before.text}{separator}{piece.text}", [*before.words, *piece.words])
        else:
            joined.append(piece)
    return joined


def _seconds(piece: _TextPiece) -> float:
    return piece.words[-1].word.end - piece.words[0].word.start


def _worst(scores: Floats) -> float:
    """The lowest mean of so many frames in a row."""
    number = min(_SCORED_FRAMES, len(scores))
    sums = np.concatenate([[0.0], np.cumsum(scores, dtype=np.float64)])
    return float(((sums[number:] - sums[:-number]) / number).min())


def _is_said(symbol: str) -> bool:
    return unicodedata.category(symbol[0])[0] in "LN"


# align_texts: texts in recordings, by whatever computes log-probabilities.


class Aligned(NamedTuple):
    """The result for a list of recordings.

    Attributes:
        alignments: in the order given, without the recordings that could not be aligned; on ranks above 0 empty.
        faults: why recordings could not be aligned, by position in what was given; on ranks above 0 not all.
        delay: seconds by which labels came behind their sounds.
    """

    alignments: list[Alignment]
    faults: dict[int, str]
    delay: float

    def or_error(self) -> list[Alignment]:
        """The alignments.

        Raises:
            DataError: some recordings could not be aligned; all are named.
        """
        refuse_faults(self.faults, "aligned")
        return self.alignments


@dataclass(frozen=True)
class _AlignmentTask:
    """A recording with its text, to be aligned.

    Attributes:
        position: in what was given.
        recording: with its length.
        sentences: of its text.
        ids: of the labels of its text.
        parts: where its rows are: number, onset and end of speech of each.
    """

    position: int
    recording: Recording
    sentences: list[Sentence]
    ids: list[int]
    parts: list[tuple[int, float, float]]


def align_texts(
    engine: Engine,
    recordings: Sequence[Recording],
    texts: Sequence[str],
    settings: TranscriptionSettings,
    sentences: SentenceCutting | None = None,
    delay: float | None = None,
    computed: Callable[[float], object] = lambda seconds: None,
) -> Aligned:
    """When the words of texts are said.

    Frames of at most `MOST_SECONDS` of recordings are in memory at once, unless one recording is longer; of a frame,
    what its text needs.

    Args:
        engine: gives the frames, and says how texts are aligned with them.
        recordings: with the texts that are said in them.
        texts: as many.
        settings: how recordings are cut into parts that are computed alone, and the batches of these.
        sentences: how sentences become segments; None: each is one.
        delay: seconds by which labels come behind their sounds; None: it is measured where speech begins.
        computed: called with the seconds of each part of a recording whose frames are there.

    Raises:
        UsageError: there are not as many texts as recordings, or the model cannot align them.
    """
    if len(recordings) != len(texts):
        got = f"{counted(len(recordings), 'recording')}, {counted(len(texts), 'text')}"
        raise UsageError("each recording needs its text", got=got)
    parser, labels = engine.new_parser(), engine.labels
    faults, rows, jobs, found = dict[int, str](), list[Recording](), list[_AlignmentTask](), dict[int, SaidText]()

    def finish() -> None:
        found.update(_said(engine, jobs, rows, settings, faults, computed))
        jobs.clear()
        rows.clear()

    for position, (recording, text) in enumerate(zip(recordings, texts, strict=True)):
        try:
            own, measured = sentences_of(text, parser), recording.measured()
            parts = list(_parts(measured, settings.cutting, settings.detector))
            if not parts:
                raise DataError("nobody speaks in the recording", remedy=_ALIGN_ALL)
        except DataError as error:
            faults[position] = named(recording, error)
            continue
        if jobs and sum(job.recording.seconds for job in jobs) + measured.seconds > MOST_SECONDS:
            finish()
        numbered = [(len(rows) + number, onset, end) for number, (_, onset, end) in enumerate(parts)]
        rows += [part for part, _, _ in parts]
        jobs.append(_AlignmentTask(position, measured, own, ids_of(own, labels)[0], numbered))
    finish()
    seconds = delay_of(found.values()) if delay is None else delay
    alignments = [alignment_of(found[position], labels, seconds, sentences) for position in sorted(found)]
    return Aligned(alignments, faults, seconds)


def _said(
    engine: Engine,
    jobs: Sequence[_AlignmentTask],
    rows: Sequence[Recording],
    settings: TranscriptionSettings,
    faults: dict[int, str],
    told: Callable[[float], object],
) -> Iterator[tuple[int, SaidText]]:
    """The paths of the texts that could be found, by position."""
    if not jobs:
        return
    job_of, aligner = {row: job for job in jobs for row, _, _ in job.parts}, engine.aligner()
    of_rows, computed, frame_seconds = dict[int, str](), dict[int, SpokenPart](), 0.0
    for row, states, start, seconds, _ in engine.states_of(rows, of_rows, settings):
        computed[row] = SpokenPart(aligner.kept(states, job_of[row].ids), start, 0.0)
        frame_seconds = seconds
        told(rows[row].seconds)
    for job in jobs:
        numbers = [row for row, _, _ in job.parts]
        reason = next((of_rows[row] for row in numbers if row in of_rows), None)
        if reason is not None:
            faults[job.position] = named(job.recording, reason)
        if reason is not None or any(row not in computed for row in numbers):  # those of ranks above 0 are elsewhere
            continue
        first, in_row = job.recording.offset or 0.0, list[SpokenPart]()
        for row, onset, end in job.parts:
            start = (rows[row].offset or 0.0) - first if rows[row] is not job.recording else 0.0
            part = computed.pop(row)
            in_row.append(SpokenPart(part.rows, start + part.start, onset, end))
        del part
        try:
            frames = frames_of_parts(in_row, frame_seconds)
            yield job.position, find_text(frames, job.sentences, engine.labels, job.recording, aligner)
        except DataError as error:
            faults[job.position] = named(job.recording, error)


def _parts(
    recording: Recording, cutting: Cutting | None, detector: Detector | None
) -> Iterator[tuple[Recording, float, float]]:
    """The parts of a recording, and from when to when somebody speaks in each, in seconds from its beginning.

    Raises:
        DataError: it cannot be read.
    """
    activity, usual = SpeechActivity(recording, detector), replace(cutting or DEFAULT_CUTTING, padding=0.0)
    loud, spoken = activity.loud_spans(usual), activity.spans(usual)  # levels are finer than a detector's decisions
    if cutting is None:
        yield recording, (loud[0].start if loud else 0.0), (loud[-1].end if loud else 0.0)
        return
    for span in activity.spans(cutting):
        span = Span(span.start, min(span.end, recording.seconds))
        starts = [each.start for each in (*loud, *spoken) if span.start <= each.start < span.end]
        ends = [each.end for each in (*spoken, *loud) if span.start < each.end <= span.end]
        yield recording.part(span), (starts[0] if starts else span.start), (ends[-1] if ends else span.end)


# Alignments as files: CTM, TextGrid, SRT, JSON. Strings only.


def as_ctm(alignment: Alignment, name: str) -> str:
    """A word a line: name, channel, start, duration, word, confidence, as NIST's sclite reads it.

    Fields are parted by spaces: one in the name becomes ``_``.
    """
    name = "_".join(name.split())
    channel = (alignment.channel or 0) + 1
    return "".join(
        f"{name} {channel} {word.start:.3f} {word.end - word.start:.3f} {word.text} {word.confidence:.3f}\n"
        for word in alignment.words
    )


def as_textgrid(alignment: Alignment) -> str:
    """Tiers of segments, words and labels, for Praat."""
    labels = [label for segment in alignment.segments for label in segment.labels]
    tiers: dict[str, Sequence[AlignedSegment | Word]]
    tiers = {"segments": alignment.segments, "words": alignment.words, "labels": labels}
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {alignment.duration}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, entries) in enumerate(tiers.items(), 1):
        intervals = list(_without_gaps(entries, alignment.duration))
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f'        name = "{name}"']
        lines += ["        xmin = 0", f"        xmax = {alignment.duration}"]
        lines.append(f"        intervals: size = {len(intervals)}")
        for place, (start, end, text) in enumerate(intervals, 1):
            lines += [f"        intervals [{place}]:", f"            xmin = {start}", f"            xmax = {end}"]
            lines.append('            text = "{}"'.format(text.replace('"', '""')))
    return "\n".join(lines) + "\n"


def as_subtitles(alignment: Alignment) -> str:
    """SubRip subtitles, as those of a transcript: of the words as the labels write them."""
    return as_srt(Transcript(alignment.text, alignment.words, alignment.duration, alignment.source, alignment.offset))


def as_json(alignment: Alignment) -> str:
    """A line of JSON: that of a manifest, with ``score``, and ``segments`` with ``words`` and ``labels``."""
    offset: dict[str, float] = {} if alignment.offset is None else {"offset": alignment.offset}
    if alignment.channel is not None:
        offset["channel"] = alignment.channel
    line = {"audio_filepath": alignment.source, **offset, "duration": alignment.duration, "text": alignment.text}
    segments = [asdict(segment) for segment in alignment.segments]
    return json.dumps({**line, "score": alignment.score, "segments": segments}, ensure_ascii=False) + "\n"


def manifest_lines(alignment: Alignment, padding: float) -> Iterator[Entry]:
    """A line of a manifest for each segment: a part of the recording, its text and its score.

    Args:
        alignment: of the recording.
        padding: seconds that are kept before and behind a segment; at most half of the pause there.
    """
    segments, first = alignment.segments, alignment.offset or 0.0
    middles = [(before.end + behind.start) / 2 for before, behind in itertools.pairwise(segments)]
    limits = itertools.pairwise([0.0, *middles, alignment.duration])
    for segment, (least, most) in zip(segments, limits, strict=True):
        start, end = max(least, segment.start - padding), min(most, segment.end + padding)
        line: Entry = {
            "audio_filepath": alignment.source,
            "offset": round(first + start, _DIGITS),
            "duration": round(end - start, _DIGITS),
            "text": segment.text,
            "score": segment.score,
        }
        if alignment.channel is not None:
            line["channel"] = alignment.channel
        yield line


def _without_gaps(entries: Iterable[AlignedSegment | Word], duration: float) -> Iterator[tuple[float, float, str]]:
    """Intervals from 0 to the end, with empty ones between."""
    last = 0.0
    for entry in entries:
        if entry.start > last:
            yield last, entry.start, ""
        if entry.end > max(entry.start, last):
            yield max(entry.start, last), entry.end, entry.text
            last = entry.end
    if duration > last:
        yield last, duration, ""
