"""Statistics and findings as text for a terminal. JSON of them is json.dumps of the same values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nemo_asr.data.check.findings import Finding
from nemo_asr.data.check.statistics import Statistics
from nemo_lite.errors import counted

_MAX_SHOWN = {True: 5, False: 3}  # details of a problem, of another finding
_MAX_CHARACTERS = 60
_BARS = " ▁▂▃▄▅▆▇█"


def as_text(sets: Sequence[Statistics], findings: Sequence[Finding] | None) -> str:
    """A block for each set, then problems and notes; without findings, the blocks alone."""
    lines = [line for each in sets for line in _set_lines(each)]
    if findings is not None:
        problems = [finding for finding in findings if finding.is_problem]
        notes = [finding for finding in findings if not finding.is_problem]
        for title, some in (("Worth knowing", notes), ("Problems", problems)):
            if some:
                lines += [title, *(line for finding in some for line in _finding_lines(finding)), ""]
        lines.append(f"{counted(len(problems), 'problem')} found" if problems else "No problem found")
    return "\n".join(lines).rstrip()


def _set_lines(found: Statistics) -> Iterator[str]:
    yield found["name"]
    speakers = f", {len(found['speakers'])} speakers" if found["speakers"] else ""
    unusable = f", {found['unusable']} more cannot be used" if found["unusable"] else ""
    yield f"  {found['utterances']} utterances, {found['hours']:.2f} h{speakers}{unusable}"
    if not found["utterances"]:
        return
    if "sample_rates" in found:
        rates, channels = (_counts(found[key]) for key in ("sample_rates", "channels"))
        yield f"  sample rates  {rates}"
        yield f"  channels      {channels}"
    yield f"  seconds       {_spread(found['seconds'])}"
    texts = f"{found['words']} ({found['different_words']} different) in {found['different_texts']} different texts"
    yield f"  words         {texts}"
    yield f"  {found['unit'] + '/s':12}  {_spread(found['units_per_second'])}"
    characters = "".join(sorted(found["characters"]))
    shown = characters[:_MAX_CHARACTERS] + ("..." if len(characters) > _MAX_CHARACTERS else "")
    yield f"  characters    {len(characters)}: {shown!r}"
    yield ""


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield f"  {finding.summary}"
    shown = finding.details[: _MAX_SHOWN[finding.is_problem]]
    yield from (f"    {detail}" for detail in shown)
    if len(finding.details) > len(shown):
        yield f"    ... and {len(finding.details) - len(shown)} more (--json has all)"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{value} ({count})" for value, count in counts.items())


def _spread(values: Statistics) -> str:
    bars = values["histogram"]["counts"]
    most = max(bars)
    drawn = "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in bars)
    return (
        f"{values['least']:.2f} to {values['most']:.2f}, median {values['median']:.2f}, "
        f"95 % below {values['p95']:.2f}  |{drawn}|"
    )
