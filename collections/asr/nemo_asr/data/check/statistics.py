"""Figures of a set: audio, durations, texts, characters and speakers, as values that JSON can hold. No judgement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from nemo_asr.data.check.examined import Examined, ExaminedSet

# Any: what JSON holds: texts, numbers, and lists and mappings of them.
Statistics: TypeAlias = "dict[str, Any]"

_NUM_BINS = 20


def statistics_of(examined: ExaminedSet) -> Statistics:
    """The figures of a set; see docs/en/data.md for the keys. Utterances that cannot be read count as unusable."""
    items = examined.readable
    texts = [item.utterance.text for item in items]
    found: Statistics = {
        "name": examined.name,
        "manifests": list(examined.paths),
        "utterances": len(items),
        "unusable": len(examined.items) - len(items),
        "hours": sum(item.seconds for item in items) / 3600,
        "seconds": distribution([item.seconds for item in items]),
        "words": sum(len(text.split()) for text in texts),
        "different_words": len({word for text in texts for word in text.split()}),
        "different_texts": len(set(texts)),
        "unit": unit_of(items),
        "units_per_second": distribution([rate_of(item, unit_of(items)) for item in items]),
        "characters_per_text": distribution([len(text) for text in texts]),
        "characters": _counted(character for text in texts for character in text),
        "speakers": _counted(str(item.utterance.speaker) for item in items if item.utterance.speaker is not None),
    }
    if examined.with_audio:
        found["sample_rates"] = _counted(item.sample_rate for item in items)
        found["channels"] = _counted(item.num_channels for item in items)
    return found


def unit_of(items: Sequence[Examined]) -> str:
    """What the speed of speech is counted in: words, or characters where no text has a space."""
    return "words" if any(" " in item.utterance.text.strip() for item in items) else "characters"


def rate_of(item: Examined, unit: str) -> float:
    """Words or characters a second; spaces do not count."""
    words = item.utterance.text.split()
    return (len(words) if unit == "words" else sum(map(len, words))) / max(item.seconds, 1e-3)


def distribution(values: Sequence[float]) -> Statistics:
    """Least, median, mean, 95 % and most, and a histogram: ``counts`` between ``edges``. Empty for no values."""
    if not values:
        return {}
    array = np.asarray(values, np.float64)
    least, most = float(array.min()), float(array.max())
    # Values that are equal but for rounding: 20 different edges may not fit between them.
    ends = (least - 0.5, most + 0.5) if np.isclose(least, most, rtol=1e-9, atol=0.0) else (least, most)
    counts, edges = np.histogram(array, bins=_NUM_BINS, range=ends)
    median, high = np.quantile(array, [0.5, 0.95])
    return {
        "least": least,
        "median": float(median),
        "mean": float(array.mean()),
        "p95": float(high),
        "most": most,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def _counted(values: Iterable[object]) -> dict[str, int]:
    """How often each occurs, the most frequent first."""
    return {str(value): count for value, count in Counter(values).most_common()}
