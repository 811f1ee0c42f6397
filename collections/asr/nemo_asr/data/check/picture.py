"""Histograms of sets as one SVG picture. It needs no other package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from nemo_asr.data.check.statistics import Statistics

_WIDTH, _HEIGHT, _GAP, _TITLE = 320, 160, 40, 24
_KINDS = {"seconds": "seconds", "units_per_second": "{unit} a second", "characters_per_text": "characters in a text"}


def draw_histograms(sets: Sequence[Statistics]) -> str:
    """A row of histograms for each set: durations, speed of speech, lengths of texts."""
    filled = [found for found in sets if found["utterances"]]
    width, row = len(_KINDS) * (_WIDTH + _GAP) + _GAP, _HEIGHT + 2 * _TITLE + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {row * max(len(filled), 1)}" '
        f'width="{width}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, found in enumerate(filled):
        top = number * row + _TITLE
        title = f"{found['name']}: {found['utterances']} utterances, {found['hours']:.2f} h"
        parts.append(f'<text x="{_GAP}" y="{top}" font-weight="bold">{escape(title)}</text>')
        for column, (key, label) in enumerate(_KINDS.items()):
            left = _GAP + column * (_WIDTH + _GAP)
            parts += _histogram(found[key]["histogram"], label.format(unit=found["unit"]), left, top + _TITLE // 2)
    return "\n".join([*parts, "</svg>\n"])


def _histogram(histogram: Statistics, label: str, left: float, top: float) -> Iterator[str]:
    counts, edges = histogram["counts"], histogram["edges"]
    wide, bottom, most = _WIDTH / len(counts), top + _HEIGHT, max(counts)
    for number, count in enumerate(counts):
        high = _HEIGHT * count / most
        told = f"{edges[number]:.3g} to {edges[number + 1]:.3g}: {count}"
        place = f'x="{left + number * wide:.1f}" y="{bottom - high:.1f}" width="{wide - 1:.1f}" height="{high:.1f}"'
        yield f'<rect {place} fill="#4878a8"><title>{escape(told)}</title></rect>'
    yield f'<line x1="{left}" y1="{bottom}" x2="{left + _WIDTH}" y2="{bottom}" stroke="black"/>'
    for x, anchor, text in (
        (left, "start", f"{edges[0]:.3g}"),
        (left + _WIDTH / 2, "middle", label),
        (left + _WIDTH, "end", f"{edges[-1]:.3g}"),
    ):
        yield f'<text x="{x}" y="{bottom + 16}" text-anchor="{anchor}">{escape(text)}</text>'
    yield f'<text x="{left - 4}" y="{top + 10}" text-anchor="end">{most}</text>'
