"""Gaps: parts of a recording in which somebody speaks and no word stands. They are searched again, or told.

A search that has taken a blank for too long, as transducers do behind silence, goes on without a word and without an
error. Levels, or a detector, know that somebody speaks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from nemo_asr.run.audio.segments import Cutting, Span
from nemo_asr.run.transcribe.transcript import Word

GAP_SECONDS = 0.5
"""Shorter ones do not count."""
# Labels stand where a model is sure of them: a word goes on around its own.
_AROUND_WORDS = 0.3  # seconds
_CONTEXT = 0.15  # seconds around a gap that are searched with it: what segments have
PAUSES = Cutting(min_pause=0.2, min_segment=GAP_SECONDS, padding=0.0)
"""How speech is found in which there may be a gap."""


def without_words(words: Sequence[Word], seconds: float) -> list[Span]:
    """The parts of a recording of so many seconds that are long enough for a gap, whether somebody speaks or not."""
    around = ((word.start - _AROUND_WORDS, word.end + _AROUND_WORDS) for word in words)
    edges = [0.0, *itertools.chain.from_iterable(around), seconds]
    parts = (Span(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True))
    return [part for part in parts if part.end - part.start >= GAP_SECONDS]


def gaps_in(parts: Sequence[Span], spoken: Sequence[Span]) -> list[Span]:
    """What of the parts without words is spoken, and long enough."""
    both = (Span(max(a.start, b.start), min(a.end, b.end)) for a in parts for b in spoken)
    return [Span(round(gap.start, 3), round(gap.end, 3)) for gap in both if gap.end - gap.start >= GAP_SECONDS]


def with_context(gap: Span, seconds: float) -> Span:
    """What is searched for words of a gap, in a recording of so many seconds."""
    return Span(max(0.0, gap.start - _CONTEXT), min(seconds, gap.end + _CONTEXT))
