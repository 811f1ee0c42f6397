"""Transcripts: words with times and confidences from timed labels; as text, JSON lines and subtitles (SRT, WebVTT).

No models and no files in here.
"""

from __future__ import annotations

import json
import math
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nemo_asr.run.audio.segments import Span
from nemo_asr.run.search.search import TimedLabels
from nemo_asr.run.text.labels import in_letters, separator_of, spelled, text_of
from nemo_asr.run.transcribe.inputs import Recording
from nemo_lite.base.errors import DataError

DIGITS = 3  # of seconds and confidences


@dataclass(frozen=True)
class Word:
    """One word, or one character where the model's labels have no space.

    Attributes:
        text: the word.
        start: seconds from the beginning of the recording to the first frame of its first label.
        end: seconds to the end of the last frame of its last label, or to where the next word begins. Words that a
            transducer says in one frame have a frame each, one behind the other: see `TimedLabels.timed_words`.
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
        return replace(self, start=round(seconds + self.start, DIGITS), end=round(seconds + self.end, DIGITS))


class ScoredText(NamedTuple):
    """What may have been said.

    Attributes:
        text: the words.
        score: natural logarithm: of the sounds and, with weights, of the words. Scores of one recording compare.
    """

    text: str
    score: float


class Sound(NamedTuple):
    """What the sound of a recording is like.

    Attributes:
        bandwidth: Hz up to which it has energy.
        level: mean of its frames within 40 dB of the loudest, in dB of full scale.
        change: deviation of these levels in dB: speech changes with each syllable, music less.
    """

    bandwidth: float
    level: float
    change: float


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
        doubtful: from when to when a text stands that the model may have invented, in seconds; see
            `nemo_asr.run.transcribe.doubts`.
        sound: of the recording; None: it has none, or it was not measured, as it is not known what the model knows.
        distance: of what the search reads from that of a set that the model knows; None: it was not measured.
        moments: of that, of a set from which a model learns what it knows; see `nemo_asr.run.transcribe.domain`.
        unfamiliar: why the model may not know what it hears; see `nemo_asr.run.transcribe.domain`.
        gaps: from when to when somebody speaks and no word was found, in seconds; see `nemo_asr.run.transcribe.gaps`.
    """

    text: str
    words: tuple[Word, ...]
    duration: float
    source: str
    offset: float | None = None
    hypotheses: tuple[ScoredText, ...] = ()
    segments: tuple[Span, ...] = ()
    channel: int | None = None
    gaps: tuple[Span, ...] = ()
    doubtful: tuple[Span, ...] = ()
    sound: Sound | None = None
    unfamiliar: tuple[str, ...] = ()
    distance: float | None = field(default=None, compare=False)
    moments: npt.NDArray[np.floating[Any]] | None = field(default=None, compare=False, repr=False)

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

    def or_error(self) -> list[Transcript]:
        """The transcripts.

        Raises:
            DataError: some recordings could not be read; all are named.
        """
        refuse_faults(self.faults, "read")
        return self.transcripts


def refuse_faults(faults: Mapping[int, str], verb: str) -> None:
    """Raise DataError if some recordings cannot be "read", "aligned", ...; all are named."""
    if faults:
        problems = "; ".join(faults[position] for position in sorted(faults))
        raise DataError(f"{len(faults)} of the recordings cannot be {verb}: {problems}")


def transcribed(by_row: Mapping[int, Transcript], faults: Mapping[int, str]) -> Transcribed:
    """The result for recordings, from the transcripts and the faults of their rows, see ``inputs.rows_of``."""
    transcripts = [by_row[row] for row in sorted(by_row)]
    return Transcribed(transcripts, dict(faults), sum(transcript.duration for transcript in transcripts))


def transcript_of(
    found: TimedLabels,
    labels: Sequence[str],
    recording: Recording,
    frame_seconds: float,
    start: float = 0.0,
    calibration: Callable[[float], float] | None = None,
    hypotheses: Sequence[ScoredText] = (),
    first_frame: int = 0,
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
        first_frame: see `TimedLabels.timed_words`.
    """
    labels = [spelled(label) for label in labels]
    separator = separator_of(labels)
    ids, starts, ends, log_probs = found
    words = []
    num_frames = frames_in(recording.seconds - start, frame_seconds)
    for word, first_of_word, end_of_word in found.timed_words(labels, num_frames, first_frame):
        num_said = sum(ends[k] - starts[k] for k in word)
        confidence = float(np.exp(sum(log_probs[k] for k in word) / num_said))
        confidence = confidence if calibration is None else calibration(confidence)
        times = (min(start + frame * frame_seconds, recording.seconds) for frame in (first_of_word, end_of_word))
        first, last = (round(seconds, DIGITS) for seconds in times)
        text = in_letters("".join(labels[ids[k]] for k in word).strip())
        words.append(Word(text, first, last, round(confidence, DIGITS)))
    text = separator.join(word.text for word in words)
    duration, several = round(recording.seconds, DIGITS), tuple(hypotheses)
    return Transcript(
        text, tuple(words), duration, recording.source, recording.offset, several, channel=recording.channel
    )


def frames_in(seconds: float, frame_seconds: float) -> int:
    """How many frames begin in so many seconds of audio, the last one a millisecond before the end at the latest."""
    return max(0, math.ceil((seconds - 10.0**-DIGITS) / frame_seconds))


def scored_texts(hypotheses: Iterable[tuple[Sequence[int], float]], labels: Sequence[str]) -> tuple[ScoredText, ...]:
    """The texts of label ids with their scores; ids whose score is minus infinity are no text."""
    return tuple(ScoredText(text_of(ids, labels), round(score, DIGITS)) for ids, score in hypotheses if score > -np.inf)


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

    Of one channel also ``channel``, of a recording that was cut ``segments``, each with ``start`` and ``end``. Where
    somebody speaks and no word was found, also ``gaps``, and where a text may be invented ``doubtful``, likewise. Why
    the model may not know what it hears: ``unfamiliar``, a list of texts. With an n-best also ``hypotheses``, each with
    ``text`` and ``score``.
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
    if transcript.gaps:
        line["gaps"] = [gap._asdict() for gap in transcript.gaps]
    if transcript.doubtful:
        line["doubtful"] = [span._asdict() for span in transcript.doubtful]
    if transcript.unfamiliar:
        line["unfamiliar"] = list(transcript.unfamiliar)
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
    ends = (min(max(cue.end, cue.start + MIN_CUE_SECONDS), next_) for cue, next_ in zip(cues, following, strict=True))
    return [replace(cue, end=end) for cue, end in zip(cues, ends, strict=True)]


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
