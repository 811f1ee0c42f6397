"""Figures and findings of sets as text for a terminal, and as a picture. JSON is json.dumps of the same values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from nemo_asr.data.check import Finding
from nemo_asr.data.examined import Statistics
from nemo_lite.base.errors import counted

_MAX_SHOWN = {True: 5, False: 3}  # details of a problem, of another finding
_MAX_CHARACTERS = 60
_BARS = " ▁▂▃▄▅▆▇█"


def as_text(sets: Sequence[Statistics], findings: Sequence[Finding] | None) -> str:
    """A block for each set, then problems and notes; without findings, the blocks alone."""
    lines = [line for figures in sets for line in _set_lines(figures)]
    if findings is not None:
        problems = [finding for finding in findings if finding.is_problem]
        notes = [finding for finding in findings if not finding.is_problem]
        for title, some in (("Worth knowing", notes), ("Problems", problems)):
            if some:
                lines += [title, *(line for finding in some for line in _finding_lines(finding)), ""]
        lines.append(f"{counted(len(problems), 'problem')} found" if problems else "No problem found")
    return "\n".join(lines).rstrip()


def _set_lines(figures: Statistics) -> Iterator[str]:
    yield figures["name"]
    speakers = f", {len(figures['speakers'])} speakers" if figures["speakers"] else ""
    unusable = f", {figures['unusable']} more cannot be used" if figures["unusable"] else ""
    yield f"  {figures['utterances']} utterances, {figures['hours']:.2f} h{speakers}{unusable}"
    if not figures["utterances"]:
        return
    if "sample_rates" in figures:
        for title, key in (("sample rates", "sample_rates"), ("channels", "channels")):
            yield f"  {title:12}  {', '.join(f'{value} ({count})' for value, count in figures[key].items())}"
    yield f"  seconds       {_spread(figures['seconds'])}"
    words = f"{figures['words']} ({figures['different_words']} different)"
    yield f"  words         {words} in {figures['different_texts']} different texts"
    yield f"  {figures['unit'] + '/s':12}  {_spread(figures['units_per_second'])}"
    characters = "".join(sorted(character for character in figures["characters"] if not character.isspace()))
    shown = characters[:_MAX_CHARACTERS] + ("..." if len(characters) > _MAX_CHARACTERS else "")
    yield f"  characters    {len(characters)}: {shown!r}"
    yield ""


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield f"  {finding.summary}"
    shown = finding.details[: _MAX_SHOWN[finding.is_problem]]
    yield from (f"    {detail}" for detail in shown)
    if len(finding.details) > len(shown):
        yield f"    ... and {len(finding.details) - len(shown)} more (--json has all)"


def _spread(values: Statistics) -> str:
    bars = values["histogram"]["counts"]
    most = max(bars)
    drawn = "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in bars)
    return (
        f"{values['least']:.2f} to {values['most']:.2f}, median {values['median']:.2f}, "
        f"95 % below {values['p95']:.2f}  |{drawn}|"
    )


_WIDTH, _HEIGHT, _GAP, _TITLE = 320, 160, 40, 24
_KINDS = {"seconds": "seconds", "units_per_second": "{unit} a second", "characters_per_text": "characters in a text"}


def draw_histograms(sets: Sequence[Statistics]) -> str:
    """A row of histograms for each set: durations, speed of speech, lengths of texts."""
    filled = [figures for figures in sets if figures["utterances"]]
    width, row = len(_KINDS) * (_WIDTH + _GAP) + _GAP, _HEIGHT + 2 * _TITLE + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {row * max(len(filled), 1)}" '
        f'width="{width}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, figures in enumerate(filled):
        top = number * row + _TITLE
        title = f"{figures['name']}: {figures['utterances']} utterances, {figures['hours']:.2f} h"
        parts.append(f'<text x="{_GAP}" y="{top}" font-weight="bold">{escape(title)}</text>')
        for column, (key, label) in enumerate(_KINDS.items()):
            left = _GAP + column * (_WIDTH + _GAP)
            parts += _histogram(figures[key]["histogram"], label.format(unit=figures["unit"]), left, top + _TITLE // 2)
    return "\n".join([*parts, "</svg>\n"])


def _histogram(histogram: Statistics, label: str, left: float, top: float) -> Iterator[str]:
    counts, edges = histogram["counts"], histogram["edges"]
    wide, bottom, most = _WIDTH / len(counts), top + _HEIGHT, max(counts)
    for number, count in enumerate(counts):
        high = _HEIGHT * count / most
        text = f"{edges[number]:.3g} to {edges[number + 1]:.3g}: {count}"
        place = f'x="{left + number * wide:.1f}" y="{bottom - high:.1f}" width="{wide - 1:.1f}" height="{high:.1f}"'
        yield f'<rect {place} fill="#4878a8"><title>{escape(text)}</title></rect>'
    yield f'<line x1="{left}" y1="{bottom}" x2="{left + _WIDTH}" y2="{bottom}" stroke="black"/>'
    for x, anchor, text in (
        (left, "start", f"{edges[0]:.3g}"),
        (left + _WIDTH / 2, "middle", label),
        (left + _WIDTH, "end", f"{edges[-1]:.3g}"),
    ):
        yield f'<text x="{x}" y="{bottom + 16}" text-anchor="{anchor}">{escape(text)}</text>'
    yield f'<text x="{left - 4}" y="{top + 10}" text-anchor="end">{most}</text>'
