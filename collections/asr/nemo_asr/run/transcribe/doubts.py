"""Doubtful texts: what a model that says one label after the other may have invented. They are told, and stay.

Such a model, as Whisper is, may go on without an end, or write something where nobody speaks.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

from nemo_asr.run.audio.segments import Span
from nemo_asr.run.transcribe.transcript import Word

MOST_REPETITION = 2.4
"""How many times smaller a text becomes by deflate: more than speech does. Source: Radford et al., "Robust Speech
Recognition via Large-Scale Weak Supervision", 2022, section 4.5."""


LEAST_LOG_PROB = -1.0
"""Of a text, by the mean logarithm of its words' confidences. Source: there."""
TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""At which such a text is drawn anew. Source: there."""
_LEAST_CONFIDENCE = 1e-6


def repeats_itself(text: str) -> bool:
    """Whether a text has the same words again and again; a short one cannot."""
    content = text.encode()
    return len(content) > MOST_REPETITION * len(zlib.compress(content))


def is_to_be_drawn_anew(words: Sequence[Word], text: str) -> bool:
    """Whether a text repeats itself, or is improbable."""
    logarithms = [math.log(max(word.confidence, _LEAST_CONFIDENCE)) for word in words]
    return repeats_itself(text) or (bool(words) and sum(logarithms) / len(words) < LEAST_LOG_PROB)


def doubtful_span(words: Sequence[Word], text: str, spoken: Sequence[Span] | None) -> tuple[Span, ...]:
    """From the first to the last word of a text that repeats itself, or that nobody has said; else nothing.

    Args:
        words: of the text.
        text: of a recording or a segment.
        spoken: where somebody speaks in it; None: it is known that somebody does.
    """
    is_doubtful = words and (repeats_itself(text) or (spoken is not None and not spoken))
    return (Span(words[0].start, words[-1].end),) if is_doubtful else ()
