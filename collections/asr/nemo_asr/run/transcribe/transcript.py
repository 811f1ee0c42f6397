"""Transcripts: words with times and confidences from label paths; as text, JSON lines and subtitles. No torch here."""

from __future__ import annotations

import itertools
import json
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nemo_asr.run.audio.segments import Span
from nemo_asr.run.text.labels import has_words, separator_of, spelled, text_of
from nemo_asr.run.transcribe.inputs import Recording
from nemo_lite.base.errors import UsageError

# Transcript: what was said in a recording, and when. From a CTC path to words; no models and no files in here.


Path: TypeAlias = "npt.NDArray[np.integer[Any]]"
Scores: TypeAlias = "npt.NDArray[np.floating[Any]]"

_DIGITS = 3  # of seconds and confidences
_MOST_LOG_SUM = 0.1  # far more than rounding in half precision gives


@dataclass(frozen=True)
class Word:
    """One word, or one character where the model's labels have no space.

    Attributes:
        text: the word.
        start: seconds from the beginning of the recording to the first frame of its first label.
        end: seconds to the end of the last frame of its last label.
        confidence: from 0 to 1. Without a calibration the geometric mean of the probabilities that the model gave the
            word's labels, over the frames of these labels: exp(mean of log p); blanks inside and around the word do not
            count. With one, how probable it is that the word is right.
    """

    text: str
    start: float
    end: float
    confidence: float

    def later(self, seconds: float) -> Word:
        """The same word in a longer recording, in which this one begins after so many seconds."""
        return replace(self, start=round(seconds + self.start, _DIGITS), end=round(seconds + self.end, _DIGITS))


class ScoredText(NamedTuple):
    """What may have been said.

    Attributes:
        text: the words.
        score: natural logarithm: of the sounds and, with weights, of the words. Scores of one recording compare.
    """

    text: str
    score: float


@dataclass(frozen=True)
class Transcript:
    """What was said in one recording.

    Attributes:
        text: the words, with single spaces between them where the labels have a space.
        words: each word with its times.
        duration: seconds of audio.
        source: where the audio came from: a path, or ``audio[3]`` for an array.
        offset: seconds into the audio where a part of it begins, from which times count; None: it is the whole audio.
        hypotheses: the most probable texts, the best first, which is ``text``; empty where no n-best was asked for.
        segments: from when to when somebody speaks, in seconds; empty where the recording was not cut.
        channel: of the audio, from 0; None: the average of all.
    """

    text: str
    words: tuple[Word, ...]
    duration: float
    source: str
    offset: float | None = None
    hypotheses: tuple[ScoredText, ...] = ()
    segments: tuple[Span, ...] = ()
    channel: int | None = None

    @property
    def name(self) -> str:
        """The source, with the offset where it is a part, and its channel: ``a.wav@12.5 channel 0``."""
        name = self.source if self.offset is None else f"{self.source}@{self.offset:g}"
        return name if self.channel is None else f"{name} channel {self.channel}"

    @property
    def separator(self) -> str:
        """What stands between two words: a space, or nothing."""
        return "" if len(self.words) > 1 and "".join(word.text for word in self.words) == self.text else " "

    def segment_words(self) -> list[list[Word]]:
        """The words of each segment, by where the middle of a word lies: each word is in one segment."""
        words: list[list[Word]] = [[] for _ in self.segments]
        starts = [span.start for span in self.segments]
        for word in self.words if words else ():
            words[max(bisect_right(starts, (word.start + word.end) / 2) - 1, 0)].append(word)
        return words

    def segment_texts(self) -> list[str]:
        """The text of each segment; see `segment_words`."""
        return [self.separator.join(word.text for word in words) for words in self.segment_words()]


class Transcribed(NamedTuple):
    """The result for a list of recordings.

    Attributes:
        transcripts: in the order given, without the recordings that could not be read; on ranks above 0 empty.
        faults: why recordings could not be read, by position in what was given; on all ranks.
        seconds: of audio that was transcribed; on ranks above 0 none.
    """

    transcripts: list[Transcript]
    faults: dict[int, str]
    seconds: float


def transcribed(by_row: Mapping[int, Transcript], faults: Mapping[int, str]) -> Transcribed:
    """The result for recordings, from the transcripts and the faults of their rows, see ``inputs.rows_of``."""
    transcripts = [by_row[row] for row in sorted(by_row)]
    return Transcribed(transcripts, dict(faults), sum(transcript.duration for transcript in transcripts))


def refuse_no_probabilities(log_sum: float) -> None:
    """Raise UsageError where the probabilities of a frame do not add up to 1: then words have no confidences.

    Args:
        log_sum: natural logarithm of the sum: of all frames the one that is farthest from 0, which may be NaN.
    """
    if not abs(log_sum) <= _MOST_LOG_SUM:
        problem = "the model's log_probs are no logarithms of probabilities, so words have no confidences"
        got, remedy = f"frames whose logarithm of the sum is {log_sum:.3g}", "end its decoder with log_softmax"
        raise UsageError(problem, got=got, wanted="0, as of a CTC head", remedy=remedy)


def check_probabilities(log_probs: npt.NDArray[np.floating[Any]]) -> None:
    """`refuse_no_probabilities` of frames (T, classes)."""
    if log_probs.size:
        highest = log_probs.max(axis=1)
        with np.errstate(invalid="ignore"):  # of frames without any probability, which are refused
            shares = log_probs - highest[:, None]
            log_sums = highest + np.log(np.exp(shares, out=shares).sum(axis=1))
        refuse_no_probabilities(float(log_sums[np.abs(log_sums).argmax()]))  # argmax takes NaN for the highest


def path_scores(log_probs: npt.NDArray[np.floating[Any]], path: Path) -> Scores:
    """The log-probability of each frame's label: frames (T, classes) and ids (T,) to (T,).

    Raises:
        UsageError: a frame's probabilities do not add up to 1.
    """
    check_probabilities(log_probs)
    return log_probs[np.arange(len(path)), path]


class TimedLabels(NamedTuple):
    """Labels of one recording, when they are said, and how probable they are. U labels.

    Attributes:
        ids: (U,).
        starts, ends: (U,) frames: a label lasts from its start to before its end, at least one frame.
        log_probs: (U,) natural logarithms: that of a label's probability, summed over its frames.
    """

    ids: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    log_probs: Sequence[float]

    def part(self, first: int, end: int) -> TimedLabels:
        """The labels from a position to before another."""
        own = slice(first, end)
        return TimedLabels(self.ids[own], self.starts[own], self.ends[own], self.log_probs[own])

    def words(self, labels: Sequence[str]) -> Iterator[range]:
        """The positions of the labels of each word; of each label, where no label begins with a space."""
        has_spaces = has_words(labels)
        first = 0
        for position in range(1, len(self.ids) + 1):
            if position == len(self.ids) or not has_spaces or labels[self.ids[position]].startswith(" "):
                # A space alone is no part of a word.
                word = range(first + (labels[self.ids[first]] == " "), position)
                if word:
                    yield word
                first = position


def labels_of_path(path: Path, scores: Scores, blank: int) -> TimedLabels:
    """The labels of a CTC path, repeats merged and blanks left out.

    Args:
        path: (T,) the label of each frame.
        scores: (T,) natural logarithm of that label's probability.
        blank: the id of the blank.
    """
    sums = np.concatenate([[0.0], np.cumsum(scores, dtype=np.float64)])
    edges = [0, *(np.flatnonzero(path[1:] != path[:-1]) + 1).tolist(), len(path)]
    runs = [(first, end) for first, end in itertools.pairwise(edges) if first < end and path[first] != blank]
    starts, ends = [first for first, _ in runs], [end for _, end in runs]
    return TimedLabels(
        [int(path[first]) for first in starts], starts, ends, [float(sums[end] - sums[first]) for first, end in runs]
    )


def transcript_of(
    found: TimedLabels,
    labels: Sequence[str],
    recording: Recording,
    frame_seconds: float,
    start: float = 0.0,
    calibration: Callable[[float], float] | None = None,
    hypotheses: Sequence[ScoredText] = (),
) -> Transcript:
    """The transcript that timed labels stand for.

    Args:
        found: the labels of the recording.
        labels: the vocabulary.
        recording: what it is of, with its length.
        frame_seconds: how much audio a frame stands for. Frame t lasts from t to t + 1 times it, behind ``start``.
        start: seconds into the recording where the first frame begins.
        calibration: turns a confidence into a calibrated one.
        hypotheses: of a search, the best first.
    """
    labels = [spelled(label) for label in labels]
    separator = separator_of(labels)
    ids, starts, ends, log_probs = found
    words = []
    for word in found.words(labels):
        num_frames = sum(ends[k] - starts[k] for k in word)
        confidence = float(np.exp(sum(log_probs[k] for k in word) / num_frames))
        confidence = confidence if calibration is None else calibration(confidence)
        times = (min(start + frame * frame_seconds, recording.seconds) for frame in (starts[word[0]], ends[word[-1]]))
        first, last = (round(seconds, _DIGITS) for seconds in times)
        words.append(Word("".join(labels[ids[k]] for k in word).strip(), first, last, round(confidence, _DIGITS)))
    text = separator.join(word.text for word in words)
    duration = round(recording.seconds, _DIGITS)
    several = tuple(hypotheses)
    return Transcript(
        text, tuple(words), duration, recording.source, recording.offset, several, channel=recording.channel
    )


def scored_texts(hypotheses: Iterable[tuple[Sequence[int], float]], labels: Sequence[str]) -> tuple[ScoredText, ...]:
    """The texts of label ids with their scores; ids whose score is minus infinity are no text."""
    return tuple(
        ScoredText(text_of(ids, labels), round(score, _DIGITS)) for ids, score in hypotheses if score > -np.inf
    )


# Transcripts as text, JSON lines and subtitles (SRT, WebVTT). Strings only: where they go is decided elsewhere.


MAX_LINE_WIDTH = 42  # characters; 21 of scripts whose characters take two columns
MAX_LINES = 2
MAX_CUE_SECONDS = 7.0
MAX_GAP_SECONDS = 0.8  # a longer pause begins a new cue
MIN_CUE_SECONDS = 1.0  # where the next cue leaves the time


@dataclass(frozen=True)
class Cue:
    """What a screen shows at once: one or two lines, from ``start`` to ``end`` in seconds."""

    start: float
    end: float
    lines: tuple[str, ...]


def as_text(transcript: Transcript) -> str:
    """The words, on a line; with hypotheses a line for each: its score, a tab, its words."""
    if not transcript.hypotheses:
        return f"{transcript.text}\n"
    return "".join(f"{hypothesis.score:.3f}\t{hypothesis.text}\n" for hypothesis in transcript.hypotheses)


def as_json(transcript: Transcript) -> str:
    """A line of JSON, as in a manifest: ``audio_filepath``, ``offset`` of a part, ``duration``, ``text``, ``words``.

    Of one channel also ``channel``, of a recording that was cut ``segments``, each with ``start`` and ``end``. With an
    n-best also ``hypotheses``, each with ``text`` and ``score``.
    """
    line: dict[str, Any] = {"audio_filepath": transcript.source}
    if transcript.offset is not None:
        line["offset"] = transcript.offset
    line["duration"] = transcript.duration
    if transcript.channel is not None:
        line["channel"] = transcript.channel
    line["text"] = transcript.text
    line["words"] = [asdict(word) for word in transcript.words]
    if transcript.segments:
        line["segments"] = [span._asdict() for span in transcript.segments]
    if transcript.hypotheses:
        line["hypotheses"] = [hypothesis._asdict() for hypothesis in transcript.hypotheses]
    return json.dumps(line, ensure_ascii=False) + "\n"


def as_srt(transcript: Transcript) -> str:
    """SubRip subtitles."""
    cues = cues_of(transcript)
    return "\n".join(
        f"{number}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n" + "".join(f"{line}\n" for line in cue.lines)
        for number, cue in enumerate(cues, 1)
    )


def as_vtt(transcript: Transcript) -> str:
    """WebVTT subtitles."""
    cues = (
        f"\n{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n"
        + "".join(f"{escape(line, quote=False)}\n" for line in cue.lines)
        for cue in cues_of(transcript)
    )
    return "".join(["WEBVTT\n", *cues])


FORMATS: dict[str, Callable[[Transcript], str]] = {"text": as_text, "json": as_json, "srt": as_srt, "vtt": as_vtt}
SUBTITLES = ("srt", "vtt")


def cues_of(transcript: Transcript) -> list[Cue]:
    """The words in cues that can be read: at most two lines and 7 s each, a new one after a pause.

    No two overlap, and none is shorter than a second where the next one leaves the time.
    """
    groups = _groups(transcript)
    cues = [Cue(words[0].start, words[-1].end, tuple(_lines(words, transcript.separator))) for words in groups]
    following = [*(cue.start for cue in cues), float("inf")][1:]
    longer = (max(cue.end, min(cue.start + MIN_CUE_SECONDS, next_)) for cue, next_ in zip(cues, following, strict=True))
    return [replace(cue, end=end) for cue, end in zip(cues, longer, strict=True)]


def _groups(transcript: Transcript) -> Iterator[list[Word]]:
    group: list[Word] = []
    for word in transcript.words:
        if group and not _fits([*group, word], transcript.separator):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _fits(words: Sequence[Word], separator: str) -> bool:
    """Whether words can be one cue; all but the last are known to."""
    is_close = words[-1].start - words[-2].end <= MAX_GAP_SECONDS
    is_short = words[-1].end - words[0].start <= MAX_CUE_SECONDS
    return is_close and is_short and len(_lines(words, separator)) <= MAX_LINES


def _lines(words: Sequence[Word], separator: str) -> list[str]:
    """The words in as few lines as hold them; a word longer than a line has one of its own."""
    lines: list[str] = []
    for word in words:
        longer = f"{lines[-1]}{separator}{word.text}" if lines else ""
        if lines and width_of(longer) <= MAX_LINE_WIDTH:
            lines[-1] = longer
        else:
            lines.append(word.text)
    return lines


def width_of(text: str) -> int:
    """Columns on a screen: wide characters, such as Chinese ones, take two, and marks on other characters none."""
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _clock(seconds: float, point: str) -> str:
    """``01:02:03,456``, rounded to the nearest millisecond."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{thousandths:03}"


# align: the most probable CTC path of known labels, in numpy. The module around it is ``LabelAlignment``.


_WIDTH = 1024  # states of the band: 512 labels, about 40 s of speech
_MOST_CELLS = 1 << 30  # bytes of the table of steps, beyond which the band is not widened

_FILLER_COST = 2.0  # natural logarithm; a label that the text lacks costs 5 to 10, as the model is sure of it


def align(
    log_probs: npt.NDArray[np.floating[Any]],
    labels: Sequence[int],
    width: int = _WIDTH,
    fillers: Sequence[int] = (),
) -> npt.NDArray[np.int64]:
    """The most probable path of some labels: Viterbi's algorithm over labels with a blank around each.

    Of long texts only a band of states is looked at, around the best state of the frame before. Where the path comes
    near an edge of the band, a band four times as wide is tried, up to 1 GiB of memory. So memory grows with the frames
    alone, and the path is the most probable one unless labels are hundreds of labels away from their sounds.

    Source: Graves et al., "Connectionist Temporal Classification", ICML 2006, section 4.1; a maximum takes the place of
    each sum.

    Args:
        log_probs: (T, classes), of which the last is the blank.
        labels: ids.
        width: states of the first band, at least 4; texts of half as many labels are aligned without one.
        fillers: positions from 0 to the number of labels: in front of these labels anything may be said, at a cost of
            2 a frame. Frames of it are blank in the path.

    Returns:
        (T,) the label of each frame, or the blank.

    Raises:
        UsageError: the labels need more frames.
    """
    num_frames, num_classes = log_probs.shape
    repeats = np.array([a == b for a, b in itertools.pairwise(labels)], bool)
    if num_frames < len(labels) + repeats.sum():
        raise UsageError("the decoder found more labels than frames", got=f"{len(labels)} in {num_frames} frames")
    states = np.full(2 * len(labels) + 1, num_classes - 1)
    states[1::2] = labels
    states[2 * np.array(fillers, np.int64)] = num_classes
    while True:
        width = min(width, len(states))
        trellis = _Trellis(states, repeats, num_frames, width)
        path, is_near_edge = trellis.path(log_probs)
        if not is_near_edge or 4 * width * num_frames > _MOST_CELLS:
            path[path == num_classes] = num_classes - 1
            return path
        width *= 4


class _Trellis:
    """Viterbi's algorithm within a band::

    state  4 .  .  .  .  #  #       # is in the band of its frame, which is 3 states wide;
           3 .  .  #  #  #  #       it moves up with the best state, and so that from one of its states
           2 #  #  #  #  #  #       the last one can still be reached.
           1 #  #  #  #  .  .
           0 #  #  .  .  .  .
             frames ->

    Args:
        states: (S,) labels with a blank around each.
        repeats: whether each label is followed by itself: then a blank must stand between.
        num_frames: of the utterance.
        width: states of the band.
    """

    def __init__(
        self, states: npt.NDArray[np.int64], repeats: npt.NDArray[np.bool_], num_frames: int, width: int
    ) -> None:
        self._states, self._width = states, width
        self._skips = np.zeros(len(states), bool)  # a label may follow another one without a blank between
        self._skips[3::2] = ~repeats
        self._steps = np.zeros((num_frames, width), np.int8)
        self._firsts = np.zeros(num_frames, np.int64)  # of the band, by frame
        # Frames that are needed behind a state: one for each label, and one for the blank between equal ones.
        num_labels = len(states) // 2
        behind = np.zeros(num_labels + 1, np.int64)
        behind[: len(repeats)] = repeats[::-1].cumsum()[::-1]
        needed = np.empty(len(states), np.int64)
        needed[0::2] = num_labels - np.arange(num_labels + 1) + behind
        needed[1::2] = needed[0:-1:2] - 1
        # The first state of each frame from which the last one can be reached.
        self._lowest = np.searchsorted(-needed, -np.arange(num_frames)[::-1])

    def path(self, log_probs: npt.NDArray[np.floating[Any]]) -> tuple[npt.NDArray[np.int64], bool]:
        """(T,) the most probable labels, and whether a wider band might give others."""
        size, width, first = len(self._states), self._width, 0
        nothing = np.full(2, -np.inf)
        best = np.full(width, -np.inf)
        best[:2] = 0.0  # in front of the first frame
        for frame, scores in enumerate(log_probs):
            if frame:
                centre = max(first + int(best.argmax()), int(self._lowest[frame]))
                moved = max(0, min(centre - width // 2, size - width) - first)
                first += moved
                before = np.concatenate([nothing, best, np.full(moved, -np.inf)])[moved:]
                skipping = np.where(self._skips[first : first + width], before[:-2], -np.inf)
                ways = np.stack([before[2:], before[1:-1], skipping])
                self._steps[frame], best = ways.argmax(0), ways.max(0)
                self._firsts[frame] = first
            with_filler = np.append(scores, max(scores[-1], scores.max() - _FILLER_COST))
            best = best + with_filler[self._states[first : first + width]]
        return self._back(first + width - 1 if size == 1 or best[-1] >= best[-2] else first + width - 2)

    def _back(self, state: int) -> tuple[npt.NDArray[np.int64], bool]:
        path = np.empty(len(self._steps), np.int64)
        margin, is_near_edge = self._width // 8, False
        last_first = len(self._states) - self._width
        for frame in range(len(path) - 1, -1, -1):
            first = int(self._firsts[frame])
            place = state - first
            is_near_edge |= (place < margin and first > 0) or (place >= self._width - margin and first < last_first)
            path[frame] = self._states[state]
            state -= int(self._steps[frame, place])
        return path, is_near_edge
