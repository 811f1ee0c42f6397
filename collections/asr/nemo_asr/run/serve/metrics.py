"""Counters, gauges and histograms as Prometheus reads them. Source: its text format, version 0.0.4."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

_PREFIX = "nemo_lite_"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_HELP = {
    "requests_total": "Requests by path and status.",
    "audio_seconds_total": "Seconds of audio that were computed.",
    "busy_seconds_total": "Seconds in which models computed.",
    "request_seconds": "Seconds from a transcription's request to its answer.",
    "batch_rows": "Segments in a batch.",
    "open_requests": "Transcriptions that wait or are computed.",
    "open_streams": "Websockets that are open.",
    "waiting_audio_seconds": "Seconds of audio that wait for a model.",
}


class Metrics:
    """What a server counts; several threads may count.

    Args:
        gauges: each gives a value when it is asked for.
    """

    def __init__(self, gauges: Mapping[str, Callable[[], float]]) -> None:
        self._gauges = gauges
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, str], float] = defaultdict(float)  # by name and labels
        self._histograms = {"request_seconds": _Histogram(_SECONDS), "batch_rows": _Histogram(_ROWS)}

    def count(self, name: str, amount: float = 1.0, **labels: object) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name, ",".join(f'{key}="{value}"' for key, value in labels.items())] += amount

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        with self._lock:
            self._histograms[name].add(value)

    def as_text(self) -> str:
        """All of them."""
        lines: list[str] = []
        with self._lock:
            for name in dict.fromkeys(name for name, _ in self._counts):
                lines += _head(name, "counter")
                counts = ((labels, value) for (other, labels), value in self._counts.items() if other == name)
                lines += [_line(name, labels, value) for labels, value in counts]
            for name, histogram in self._histograms.items():
                lines += [*_head(name, "histogram"), *histogram.lines(name)]
        for name, value_of in self._gauges.items():
            lines += [*_head(name, "gauge"), _line(name, "", value_of())]
        return "\n".join(lines) + "\n"


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self._counts[sum(value > bound for bound in self._bounds)] += 1
        self._sum += value

    def lines(self, name: str) -> list[str]:
        bounds = [*map(str, self._bounds), "+Inf"]
        sums = list(accumulate(self._counts))
        buckets = [_line(f"{name}_bucket", f'le="{bound}"', value) for bound, value in zip(bounds, sums, strict=True)]
        return [*buckets, _line(f"{name}_sum", "", self._sum), _line(f"{name}_count", "", sums[-1])]


def _head(name: str, kind: str) -> list[str]:
    return [f"# HELP {_PREFIX}{name} {_HELP[name]}", f"# TYPE {_PREFIX}{name} {kind}"]


def _line(name: str, labels: str, value: float) -> str:
    return f"{_PREFIX}{name}{f'{{{labels}}}' if labels else ''} {value:.10g}"
