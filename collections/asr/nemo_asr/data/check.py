"""What is wrong with a set, or between sets, and what is worth knowing; leaks that lie in the names of files.

And figures and findings as text for a terminal, and as a picture. JSON is json.dumps of the same values.
"""

from __future__ import annotations

import filecmp
import math
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape

import numpy as np

from nemo_asr.data.examined import SILENCE, Examined, ExaminedSet, Statistics, long_pause_of, rate_of, unit_of
from nemo_asr.data.examined import examine as examine
from nemo_asr.data.examined import statistics_of as statistics_of
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.run.audio.segments import LONG_PAUSE
from nemo_asr.run.manifest import Manifest, Utterance
from nemo_asr.run.text.labels import Marks
from nemo_lite import DataLayerNM
from nemo_lite.base.errors import MAX_LISTED, counted
from nemo_lite.utils import logging

_MOST_PER_SECOND = {"words": 10.0, "characters": 50.0}
# An outlier is this many times as fast or slow as the median, and so many robust deviations (of the logarithm) away.
_OUTLIER_FACTOR, _OUTLIER_DEVIATIONS = 3.0, 5.0
_FEWEST_FOR_OUTLIERS = 20
_MAD_TO_DEVIATION = 1.4826  # of a normal distribution
_SHOWN_CHARACTERS = 60
# 16 recordings of a phone on top of a model of 93 words ended with 4 of 5 words wrong (faq.md), 2.5 hours of digits
# with 1 of 50 (training.md).
_LITTLE_SECONDS = 30 * 60.0
_LONG_SECONDS = 30.0  # no usual corpus has longer utterances: LibriSpeech ends at 35 s


@dataclass(frozen=True)
class Finding:
    """Something found about one or more utterances.

    Attributes:
        kind: ``line``, ``audio``, ``silence``, ``phase``, ``speed``, ``duplicate``, ``contradiction``, ``leak``,
            ``frames``, ``positions``; not a problem: ``little``, ``labels``, ``mark``, ``script``, ``pause``,
            ``long``, ``duration``, ``path``, ``rate``, ``text``, ``speaker``, ``file``, ``shared``.
        is_problem: whether the data should be mended.
        summary: one line.
        details: a line for each place.
    """

    kind: str
    is_problem: bool
    summary: str
    details: Sequence[str] = ()


def findings_in(examined: ExaminedSet) -> list[Finding]:
    """Problems and other findings in one set."""
    items, name = examined.readable, examined.name
    unreadable = [item.problem for item in examined.items if item.problem]
    opposite = [item for item in items if item.lost_db]
    silent = [
        f"{item.place}: {item.utterance.audio_path}"
        for item in items
        if examined.with_audio and item.peak < SILENCE and not item.lost_db
    ]
    phases = [
        f"{item.place}: {item.utterance.audio_path}: the average is {item.lost_db:.0f} dB below its channels; "
        'add "channel": 0'
        for item in sorted(opposite, key=lambda item: -item.lost_db)
    ]
    speeds = _speed_outliers(items)
    findings = [
        Finding("line", True, f"{name}: lines that are not valid", examined.invalid),
        Finding("audio", True, f"{name}: {_some(len(unreadable))} whose audio or text cannot be used", unreadable),
        Finding("silence", True, f"{name}: {_some(len(silent))} without sound", silent),
        Finding(
            "phase", True, f"{name}: {_some(len(phases))} whose channels cancel each other (opposite phases)", phases
        ),
        Finding("speed", True, f"{name}: {_some(len(speeds))} whose text hardly belongs to the audio", speeds),
        *_repeated(examined),
        *_unusual(examined),
    ]
    return [finding for finding in findings if finding.details]


def finding_of_little(train: ExaminedSet) -> list[Finding]:
    """Of a training set that has minutes only: what these are enough for."""
    told = little_speech(sum(item.seconds for item in train.readable))
    return [Finding("little", False, f"{train.name}: {told}")] if told and train.readable else []


def findings_between(train: ExaminedSet, evaluation: ExaminedSet) -> list[Finding]:
    """Recordings, files, texts and speakers that a training and an evaluation set share.

    The same recording is a leak; the same files, texts and speakers are worth knowing.
    """
    pairs, same_file = _shared(train, evaluation)
    leaks = [f"{item.place} = {other.place} ({item.utterance.audio_path})" for item, other in pairs]
    parts = [f"{item.place}, {other.place} ({item.utterance.audio_path})" for item, other in same_file]
    of_each = f"of {len(evaluation.readable)} utterances of {evaluation.name}"
    texts = {item.utterance.text for item in train.readable}
    same_text = [item.place for item in evaluation.readable if item.utterance.text in texts]
    speakers = sorted(_speakers(train) & _speakers(evaluation))
    findings = [
        Finding("leak", True, f"{len(leaks)} {of_each} are recordings of the training set {train.name}", leaks),
        Finding("file", False, f"{len(parts)} {of_each} are other parts of files of {train.name}", parts),
        Finding("text", False, f"{len(same_text)} {of_each} have a text that {train.name} has as well", same_text),
        Finding("speaker", False, f"{len(speakers)} speakers are in {evaluation.name} and in {train.name}", speakers),
    ]
    return [finding for finding in findings if finding.details]


def findings_among(one: ExaminedSet, other: ExaminedSet) -> list[Finding]:
    """Recordings that two evaluation sets share."""
    pairs, _ = _shared(one, other)
    shared = [f"{item.place} = {twin.place}" for item, twin in pairs]
    summary = f"{len(shared)} utterances of {other.name} are recordings of {one.name} as well"
    return [Finding("shared", False, summary, shared)] if shared else []


def overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether two spans of seconds in a file have something in common."""
    return one[0] < other[1] and other[0] < one[1]


def _may_share_samples(one: Utterance, other: Utterance) -> bool:
    """Whether two utterances of a file may hear the same: not where each names a channel of its own."""
    return one.channel is None or other.channel is None or one.channel == other.channel


def _shared(
    one: ExaminedSet, other: ExaminedSet
) -> tuple[list[tuple[Examined, Examined]], list[tuple[Examined, Examined]]]:
    """Of ``other``: those with a recording of ``one``, each with its twin; and those with another part of a file."""
    by_digest, by_file = dict[bytes, Examined](), defaultdict[tuple[int, int], list[Examined]](list)
    for item in one.readable if one.with_audio else ():
        by_digest.setdefault(item.digest, item)
        by_file[item.file].append(item)
    same, parts = [], []
    for item in other.readable if other.with_audio else ():
        near = by_file.get(item.file, ())
        overlapping = (
            each
            for each in near
            if overlap(each.span, item.span) and _may_share_samples(each.utterance, item.utterance)
        )
        twin = by_digest.get(item.digest) or next(overlapping, None)
        if twin:
            same.append((item, twin))
        elif near:
            parts.append((item, near[0]))
    return same, parts


def _repeated(examined: ExaminedSet) -> list[Finding]:
    """Utterances that a set has more than once, by their samples; with the same text or with another one."""
    first: dict[bytes, Examined] = {}
    again, contradicting = list[str](), list[str]()
    for item in examined.readable if examined.with_audio else ():
        earlier = first.setdefault(item.digest, item)
        if earlier is item or item.peak < SILENCE:
            continue
        if earlier.utterance.text == item.utterance.text:
            again.append(f"{item.place} = {earlier.place} ({item.utterance.audio_path})")
        else:
            texts = f'"{_short(earlier.utterance.text)}" and "{_short(item.utterance.text)}"'
            contradicting.append(f"{earlier.place} and {item.place}: {texts}")
    name = examined.name
    return [
        Finding("duplicate", True, f"{name}: {_some(len(again))} repeated: the same samples and the same text", again),
        Finding(
            "contradiction",
            True,
            f"{name}: {_some(len(contradicting))} with the samples of another text",
            contradicting,
        ),
    ]


def _unusual(examined: ExaminedSet) -> list[Finding]:
    """Findings that are no problem by themselves."""
    items, name = examined.readable, examined.name
    differing = sorted((item for item in items if item.excess), key=lambda item: -abs(item.excess))
    durations = [f"{i.place} says {i.utterance.duration:.3f} s, the file has {i.seconds:.3f} s" for i in differing]
    paths = [f"{item.place}: {item.utterance.audio_path}" for item in items if item.utterance.note]
    rates = sorted({item.sample_rate for item in items if item.sample_rate})
    several = [f"{rate} Hz: {sum(item.sample_rate == rate for item in items)}" for rate in rates]
    by_text = defaultdict[str, list[Examined]](list)
    for item in items:
        by_text[item.utterance.text].append(item)
    shared = sorted((group for group in by_text.values() if len(group) > 1), key=len, reverse=True)
    texts = [f'{len(group)} times "{_short(group[0].utterance.text)}"' for group in shared]
    several = several if len(several) > 1 else []
    pausing = sorted((item for item in items if long_pause_of(item)), key=lambda item: -item.pause)
    pauses = [f"{i.place}: one of {i.pause:.1f} s in {i.seconds:.1f} s: {i.utterance.audio_path}" for i in pausing]
    left_in = "which train leaves in, and eval without --segments energy; transcribe cuts there"
    uncut = f"with a pause of {LONG_PAUSE:g} s or more, {left_in}"
    cut = "nemo-lite align MODEL MANIFEST --cut NEW.json"
    remedy = f"data make --trim cuts at both ends; {cut} --longest 3 cuts there, with the texts"
    lasting = sorted((item for item in items if item.seconds > _LONG_SECONDS), key=lambda item: -item.seconds)
    long = [f"{i.place}: {i.seconds:.1f} s: {i.utterance.audio_path}" for i in lasting]
    memory = f"longer than {_LONG_SECONDS:g} s: the memory of a training step grows with its longest utterance"
    way_out = f"{cut} cuts them, with the texts; max_duration of the data layer leaves them out"
    marks = Marks()
    marked = [f"{i.place}: {' '.join(found)}" for i in items if (found := marks.in_text(i.utterance.text))]
    left_out = "marks such as <unk>, which training leaves out unless they are labels"
    foreign = _of_rare_scripts(items)
    return [
        Finding(
            "script", False, f"{name}: {_some(len(foreign))} with letters of a script that hardly any text has", foreign
        ),
        Finding("mark", False, f"{name}: {_some(len(marked))} with {left_out}", marked),
        Finding("pause", False, f"{name}: {_some(len(pauses))} {uncut}; {remedy}", pauses),
        Finding("long", False, f"{name}: {_some(len(long))} {memory}; {way_out}", long),
        Finding("duration", False, f"{name}: {_some(len(durations))} of another duration than written", durations),
        Finding("path", False, f"{name}: {_some(len(paths))} with a path that starts at the working directory", paths),
        Finding("rate", False, f"{name}: {len(several)} sample rates", several),
        Finding("text", False, f"{name}: {len(texts)} texts occur more than once", texts),
    ]


def _of_rare_scripts(items: Sequence[Examined]) -> list[str]:
    """Texts with letters of a script that at most 1 % of the texts have, or one of them; of a few texts none."""
    if len(items) < _FEWEST_FOR_OUTLIERS:
        return []
    counts = Counter(script for item in items for script in set(map(_script_of, item.utterance.text)))
    rare = [script for script, count in counts.items() if script and count <= max(1, len(items) // 100)]
    return [
        f'{item.place}: "{"".join(letters)}" ({script}) in "{_short(item.utterance.text)}"'
        for item in items
        for script in rare
        if (letters := dict.fromkeys(each for each in item.utterance.text if _script_of(each) == script))
    ]


@cache
def _script_of(character: str) -> str:
    """The first word of its Unicode name, and of Kana that of Han: Japanese has both; "" of what is no letter."""
    if not unicodedata.category(character).startswith("L"):
        return ""
    script = unicodedata.name(character, "").split(" ")[0]
    script = "CJK" if script.startswith(("HIRAGANA", "KATAKANA", "IDEOGRAPHIC")) else script
    return "" if script == "MODIFIER" else script  # belongs to letters of any script


def _speed_outliers(items: Sequence[Examined]) -> list[str]:
    """Texts that are far too long or too short for their audio, the worst first."""
    unit = unit_of(items)
    timed = [(rate_of(item, unit), item) for item in items if rate_of(item, unit) > 0]
    if not timed:
        return []
    logs = np.log([rate for rate, _ in timed])
    median = float(np.median(logs))
    deviation = _MAD_TO_DEVIATION * float(np.median(np.abs(logs - median)))
    limit = max(math.log(_OUTLIER_FACTOR), _OUTLIER_DEVIATIONS * deviation)
    outliers = []
    for (rate, item), log in zip(timed, logs.tolist(), strict=True):
        far = len(timed) >= _FEWEST_FOR_OUTLIERS and abs(log - median) > limit
        if far or rate > _MOST_PER_SECOND[unit]:
            text = f'{item.place}: {rate:.2g} {unit} a second: "{_short(item.utterance.text)}" in {item.seconds:.2f} s'
            pause = f" with pauses of {item.silent:.1f} s" if item.silent else ""
            outliers.append((abs(log - median), f"{text}{pause} (the median is {math.exp(median):.2g})"))
    return [text for _, text in sorted(outliers, key=lambda pair: -pair[0])]


def _some(count: int) -> str:
    return counted(count, "utterance")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _speakers(examined: ExaminedSet) -> set[str]:
    return {str(item.utterance.speaker) for item in examined.readable if item.utterance.speaker is not None}


_MOST_COMPARED = 1000  # files whose content is read


def shared_recordings(train: Manifest, evaluation: Manifest) -> list[tuple[str, str]]:
    """Places of an evaluation set whose recording a training set has as well, each with a place there.

    Two lines share a recording if they name the same file, or files of the same name and the same content, and the
    parts that they take overlap. Copies under another name, or in another format, are not found. Of the training set
    only lines whose file has the name of one of the evaluation set are looked at.
    """
    by_name = defaultdict[str, list[tuple[Utterance, os.stat_result]]](list)
    for row, path in enumerate(evaluation.written_paths()):
        utterance = evaluation.utterance(row)
        if status := _status(utterance.audio_path):
            by_name[os.path.basename(path)].append((utterance, status))
    twins: dict[str, str] = {}
    num_compared = 0
    for row, path in enumerate(train.written_paths()):
        if (near := by_name.get(path.rpartition("/")[2])) is None:
            continue
        utterance = train.utterance(row)
        status = _status(utterance.audio_path)
        for other, its_status in near if status else ():
            if other.place in twins or not overlap(_span(utterance), _span(other)) or not status:
                continue
            if not _may_share_samples(utterance, other):
                continue
            same = os.path.samestat(status, its_status)
            if not same and status.st_size == its_status.st_size and num_compared < _MOST_COMPARED:
                num_compared += 1
                same = _same_content(utterance.audio_path, other.audio_path)
            if same:
                twins[other.place] = utterance.place
    return list(twins.items())


def warn_of_leaks(train: DataLayerNM, evaluations: Mapping[str, DataLayerNM]) -> int:
    """Warn of recordings of evaluation sets that are in the training set as well, see `shared_recordings`.

    Data layers that do not read manifests are passed over.

    Returns:
        How many there are, over all sets.
    """
    total = 0
    for tag, evaluation in evaluations.items():
        sets = [layer.utterances for layer in (train, evaluation) if isinstance(layer, SpeechDataLayer)]
        manifests = [utterances for utterances in sets if isinstance(utterances, Manifest)]
        if len(manifests) < 2:
            continue
        pairs = shared_recordings(*manifests)
        total += len(pairs)
        if pairs:
            shown = ", ".join(f"{place} = {twin}" for place, twin in pairs[:MAX_LISTED])
            more = f" and {len(pairs) - MAX_LISTED} more" if len(pairs) > MAX_LISTED else ""
            logging.warning(
                f"{tag}: {len(pairs)} of {len(evaluation)} recordings are in the training set as well, so its error "
                f"rates are better than those of new speech: {shown}{more}. Take them out of one of the sets "
                "(nemo-lite data check compares the audio itself)"
            )
    return total


_MANY_TIMES = 10  # the median


def warn_of_long(train: DataLayerNM) -> int:
    """Warn of utterances of a training set that are far longer than the others; returns how many.

    The time and the memory of a step go by its longest utterance.
    """
    if not isinstance(train, SpeechDataLayer) or not len(train):
        return 0
    median, longest = float(np.median(train.durations)), int(np.argmax(train.durations))
    long = np.flatnonzero(train.durations > max(_LONG_SECONDS, _MANY_TIMES * median))
    if len(long):
        worst = f"{train.place_of(longest)} has {train.durations[longest]:.1f} s"
        usual = f"where half of all have at most {median:.1f} s"
        logging.warning(
            f"{train.utterances.name}: {_some(len(long))} longer than {_LONG_SECONDS:g} s, {usual}; {worst}. A step "
            "takes the time and the memory of its longest utterance, for each of its batch: max_duration of the data "
            "layer leaves long ones out, nemo-lite align MODEL MANIFEST --cut NEW.json cuts them"
        )
    return len(long)


def little_speech(seconds: float) -> str:
    """What a training set of minutes is enough for, where it is one; "" of a larger one.

    Args:
        seconds: of speech in all.
    """
    if seconds >= _LITTLE_SECONDS:
        return ""
    length = f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
    return (
        f"{length} of speech: enough to adapt a trained model to voices and words, not to make one that "
        "knows other sentences; nemo-lite models list names models that --init_from takes"
    )


def tell_of_little(train: DataLayerNM) -> None:
    """Say what few recordings are enough for, of the training set of a model that starts from no other one."""
    if isinstance(train, SpeechDataLayer) and (told := little_speech(float(train.durations.sum()))):
        logging.info("%s has %s", train.utterances.name, told)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _span(utterance: Utterance) -> tuple[float, float]:
    if utterance.offset is None or utterance.duration is None:
        return 0.0, float("inf")
    return utterance.offset, utterance.offset + utterance.duration


def _same_content(one: str, other: str) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


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
    yield f"  {counted(figures['utterances'], 'utterance')}, {figures['hours']:.2f} h{speakers}{unusable}"
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
