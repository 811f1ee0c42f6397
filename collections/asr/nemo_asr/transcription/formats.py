"""Transcripts as text, JSON lines and subtitles (SRT, WebVTT). Strings only: where they go is decided elsewhere."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from nemo_asr.transcription.transcript import Transcript, Word

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
    return "".join(f"{each.score:.3f}\t{each.text}\n" for each in transcript.hypotheses)


def as_json(transcript: Transcript) -> str:
    """A line of JSON, as in a manifest: ``audio_filepath``, ``offset`` of a part, ``duration``, ``text``, ``words``.

    With an n-best also ``hypotheses``, each with ``text`` and ``score``.
    """
    offset = {} if transcript.offset is None else {"offset": transcript.offset}
    line = {"audio_filepath": transcript.source, **offset, "duration": transcript.duration, "text": transcript.text}
    found = {"hypotheses": [each._asdict() for each in transcript.hypotheses]} if transcript.hypotheses else {}
    words = [asdict(word) for word in transcript.words]
    return json.dumps({**line, "words": words, **found}, ensure_ascii=False) + "\n"


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
        + "".join(f"{_escaped(line)}\n" for line in cue.lines)
        for cue in cues_of(transcript)
    )
    return "".join(["WEBVTT\n", *cues])


FORMATS: dict[str, Callable[[Transcript], str]] = {"text": as_text, "json": as_json, "srt": as_srt, "vtt": as_vtt}
SUBTITLES = ("srt", "vtt")


def cues_of(transcript: Transcript) -> list[Cue]:
    """The words in cues that can be read: at most two lines and 7 s each, a new one after a pause.

    No two overlap, and none is shorter than a second where the next one leaves the time.
    """
    cues = [_cue(words, transcript.separator) for words in _groups(transcript)]
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


def _cue(words: Sequence[Word], separator: str) -> Cue:
    return Cue(words[0].start, words[-1].end, tuple(_lines(words, separator)))


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


def _escaped(line: str) -> str:
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
