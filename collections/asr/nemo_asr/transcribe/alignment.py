"""Known texts in recordings: when each word is said, and where a long recording is cut. No torch in this file.

A recording is cut at its pauses as for a transcript, and the model computes each part alone. The frames of all parts
stand in a row, and the most probable CTC path of the whole text through them says when each label is said. In front of
the text, behind it and between its sentences more may be said than the text has.

Source: Kuerzinger et al., "CTC-Segmentation of Large Corpora for German End-to-end Speech Recognition", 2020.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.corpora.writing import Entry
from nemo_asr.text.labels import has_words, shown_symbols, spelled
from nemo_asr.text.parser import CharParser
from nemo_asr.transcribe.inputs import Recording
from nemo_asr.transcribe.transcript import TimedLabels, Transcript, Word, align, as_srt, labels_of_path
from nemo_lite.errors import DataError

Floats: TypeAlias = "npt.NDArray[np.floating[Any]]"

_DIGITS = 3  # of seconds, confidences and scores
_SCORED_FRAMES = 30  # as in the paper
_LONGEST_DELAY = 0.5  # seconds; a larger one is no habit of a model, but a text that is not what is said
_LONGEST_SPACE = 0.1  # seconds from a space to the label behind it; an earlier one stands in a pause
_NEAR_ONSET = 0.25  # seconds; a first label farther from the beginning of speech is not of that sound
_IMPOSSIBLE = -1e4  # log-probability of a label between two parts
# The end of a sentence: a line's end, or a mark with a space behind it; the marks of Chinese and Japanese need none.
_SENTENCE_END = re.compile("(?<=[.?!;\u061f\u0964])\\s+|(?<=[\u3002\uff1f\uff01\uff1b])|\\s*\\n\\s*")


class Sentence(NamedTuple):
    """A part of a text.

    Attributes:
        text: as it was written.
        ids: of its labels.
    """

    text: str
    ids: list[int]


@dataclass(frozen=True)
class AlignedSegment:
    """A sentence of a text, and when it is said.

    Attributes:
        text: as it was written; of a sentence that was cut at its pauses, the words as the labels write them.
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


class Part(NamedTuple):
    """A part of a recording.

    Attributes:
        log_probs: (T, classes) natural logarithms, of which the last is the blank's.
        start: seconds from the beginning of the recording at which the first frame begins.
        onset: seconds at which somebody begins to speak in it.
    """

    log_probs: Floats
    start: float
    onset: float


class Frames(NamedTuple):
    """The frames of a recording: T of them, a silent one between parts.

    Attributes:
        log_probs: (T, classes) natural logarithms, of which the last is the blank's.
        times: (T,) seconds from the beginning of the recording at which each begins.
        onsets: (T,) seconds at which somebody begins to speak in the part of each.
        seconds: of a frame.
    """

    log_probs: Floats
    times: Floats
    onsets: Floats
    seconds: float


class SaidText(NamedTuple):
    """The most probable path of a text. Times are those at which the model writes labels, behind their sounds.

    Attributes:
        recording: with its length.
        sentences: of the text.
        edges: the number of labels in front of each sentence, and of all.
        timed: the labels.
        times, onsets: (T,) as of `Frames`.
        scores: (T,) natural logarithm of the probability of each frame's label.
        seconds: of a frame.
    """

    recording: Recording
    sentences: Sequence[Sentence]
    edges: Sequence[int]
    timed: TimedLabels
    times: Floats
    onsets: Floats
    scores: Floats
    seconds: float

    @property
    def delays(self) -> list[float]:
        """Seconds from each beginning of speech to the first label behind it."""
        firsts: dict[float, float] = {}
        for frame in self.timed.starts:
            firsts.setdefault(float(self.onsets[frame]), float(self.times[frame]))
        return [time - onset for onset, time in firsts.items()]


def frames_of_parts(parts: Sequence[Part], frame_seconds: float) -> Frames:
    """Parts of a recording in a row; a frame lasts ``frame_seconds``."""
    rows, times, onsets = list[Floats](), list[Floats](), list[Floats]()
    for log_probs, start, onset in parts:
        if rows:  # no label lasts from one part into the next
            silent = np.full((1, log_probs.shape[1]), _IMPOSSIBLE, np.float32)
            silent[0, -1] = 0.0
            rows.append(silent)
            times.append(np.array([start]))
            onsets.append(np.array([onset]))
        rows.append(log_probs)
        times.append(start + frame_seconds * np.arange(len(log_probs)))
        onsets.append(np.full(len(log_probs), onset))
    return Frames(np.concatenate(rows), np.concatenate(times), np.concatenate(onsets), frame_seconds)


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
    pairs = [(part.strip(), parser(part)) for part in _SENTENCE_END.split(text) if part.strip()]
    parts = [Sentence(part, ids) for part, ids in pairs if ids]
    lost = {symbol: count for symbol, count in (parser.unknown - before).items() if _is_said(symbol)}
    lost |= {symbol: 1 for part, ids in pairs if not ids for symbol in part if _is_said(symbol)}
    if lost:
        remedy = "write the text in the labels' letters, or take a model that has them"
        raise DataError("the labels cannot spell the text", got=shown_symbols(Counter(lost)), remedy=remedy)
    if not parts:
        raise DataError("there is no letter in the text", got=repr(text[:40]))
    return parts


def find_text(frames: Frames, sentences: Sequence[Sentence], labels: Sequence[str], recording: Recording) -> SaidText:
    """The most probable path of a text.

    Args:
        frames: of the recording.
        sentences: of its text, in their order.
        labels: the vocabulary, without the blank.
        recording: with its length.

    Raises:
        DataError: the text needs more frames than there are.
    """
    space = [labels.index(" ")] if " " in labels else []
    ids, edges = list[int](), [0]
    for number, sentence in enumerate(sentences):
        ids += (space if number else []) + sentence.ids
        edges.append(len(ids))
    needed = len(ids) + sum(a == b for a, b in itertools.pairwise(ids))
    if len(frames.log_probs) < needed:
        spoken = len(frames.log_probs) * frames.seconds
        problem, remedy = "the text is longer than its recording", "see whether they belong together"
        got = f"{len(ids)} labels in {spoken:.2f} s of speech"
        raise DataError(problem, got=got, wanted=f"{needed * frames.seconds:.2f} s or more", remedy=remedy)
    path = align(frames.log_probs, ids, fillers=edges)
    scores = np.take_along_axis(frames.log_probs, path[:, None], axis=1)[:, 0]
    timed = labels_of_path(path, scores, len(labels))
    return SaidText(recording, sentences, edges, timed, frames.times, frames.onsets, scores, frames.seconds)


def alignment_of(said: SaidText, labels: Sequence[str], delay: float, longest: float = float("inf")) -> Alignment:
    """When each sentence, word and label is said.

    A word begins ``delay`` before the space in front of it, or else before its first label; the first one behind a
    pause where its sound does. It ends with its last label, or where the next word begins.

    Args:
        said: the path of the text.
        labels: the vocabulary, without the blank.
        delay: seconds by which labels are later than their sounds.
        longest: seconds of a sentence; longer ones are cut at their longest pause.
    """
    written = [spelled(label) for label in labels]
    words = [[k for k in word if written[said.timed.ids[k]].strip()] for word in said.timed.words(written)]
    timed = _timed_words([word for word in words if word], said, written, delay)
    separator = " " if has_words(labels) else ""
    segments = list[AlignedSegment]()
    for sentence, (first, end) in zip(said.sentences, itertools.pairwise(said.edges), strict=True):
        own = [word for word in timed if first <= word.labels[0] < end]
        for group in _cut(own, longest):
            worst = _worst(said.scores[said.timed.starts[group[0].labels[0]] : said.timed.ends[group[-1].labels[-1]]])
            whole = [word.word for word in group]
            text = sentence.text if len(group) == len(own) else separator.join(word.text for word in whole)
            parts = tuple(part for word in group for part in _labels_of(word, said, written, delay))
            segments.append(
                AlignedSegment(text, whole[0].start, whole[-1].end, round(worst, _DIGITS), tuple(whole), parts)
            )
    recording = said.recording
    text = " ".join(sentence.text for sentence in said.sentences)
    return Alignment(
        text, tuple(segments), round(recording.seconds, _DIGITS), recording.source, recording.offset, recording.channel
    )


class _TimedWord(NamedTuple):
    """A word, and the positions of its labels."""

    word: Word
    labels: list[int]


def _timed_words(words: Sequence[list[int]], said: SaidText, written: Sequence[str], delay: float) -> list[_TimedWord]:
    starts, last_onset, last_label = list[float](), -1.0, 0.0
    for word in words:
        first = word[0]
        is_behind_space = first > 0 and not written[said.timed.ids[first - 1]].strip()
        onset, time = (float(values[said.timed.starts[first]]) for values in (said.onsets, said.times))
        opens_span, last_onset = onset != last_onset, onset
        if opens_span and abs(time - delay - onset) <= _NEAR_ONSET:
            start = onset
        elif is_behind_space and not opens_span:
            space = float(said.times[said.timed.starts[first - 1]])
            start = max(space, time - _LONGEST_SPACE) - delay
        else:
            start = time - delay
        starts.append(max(start, last_label, 0.0))
        last_label = max(float(said.times[said.timed.starts[word[-1]]]) - delay, starts[-1])
    timed = []
    for word, start, following in zip(words, starts, [*starts[1:], said.recording.seconds], strict=True):
        heard_end = float(said.times[said.timed.ends[word[-1]] - 1]) + said.seconds
        end = max(start, min(heard_end, following, said.recording.seconds))
        timed.append(_TimedWord(_word(word, said, written, start, end), word))
    return timed


def _labels_of(word: _TimedWord, said: SaidText, written: Sequence[str], delay: float) -> Iterator[Word]:
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


def _cut(words: Sequence[_TimedWord], longest: float) -> Iterator[Sequence[_TimedWord]]:
    """Words in groups that last at most so long, cut at the longest pauses; a word is never cut."""
    groups = [words] if words else []
    while groups:
        group = groups.pop()
        if len(group) == 1 or group[-1].word.end - group[0].word.start <= longest:
            yield group
            continue
        pauses = [behind.word.start - before.word.end for before, behind in itertools.pairwise(group)]
        cut = 1 + int(np.argmax(pauses))
        groups += [group[cut:], group[:cut]]


def _worst(scores: Floats) -> float:
    """The lowest mean of so many frames in a row."""
    number = min(_SCORED_FRAMES, len(scores))
    sums = np.concatenate([[0.0], np.cumsum(scores, dtype=np.float64)])
    return float(((sums[number:] - sums[:-number]) / number).min())


def _is_said(symbol: str) -> bool:
    return unicodedata.category(symbol[0])[0] in "LN"


# Alignments as files: CTM, TextGrid, SRT, JSON. Strings only.


def as_ctm(alignment: Alignment, name: str) -> str:
    """A word a line: name, channel, start, duration, word, confidence, as NIST's sclite reads it."""
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
