"""What is wrong with a set, or between a training and an evaluation set, and what is worth knowing. Reads no file."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nemo_asr.data.check.examined import Examined, ExaminedSet
from nemo_asr.data.check.statistics import rate_of, unit_of
from nemo_lite.errors import counted

# Nobody speaks so fast: auctioneers reach about half of it.
_MOST_PER_SECOND = {"words": 10.0, "characters": 50.0}
# An outlier is this many times as fast or slow as the median, and so many robust deviations (of the logarithm) away.
_OUTLIER_FACTOR, _OUTLIER_DEVIATIONS = 3.0, 5.0
_FEWEST_FOR_OUTLIERS = 20
_MAD_TO_DEVIATION = 1.4826  # of a normal distribution
_SILENCE = 1e-4  # peak amplitude: 80 dB below full scale
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Finding:
    """Something found about one or more utterances.

    Attributes:
        kind: ``line``, ``audio``, ``silence``, ``speed``, ``duplicate``, ``contradiction``, ``leak``, ``frames``; not a
            problem: ``duration``, ``path``, ``rate``, ``text``, ``speaker``, ``file``, ``shared``.
        is_problem: whether the data should be mended.
        summary: one line.
        details: a line for each place.
    """

    kind: str
    is_problem: bool
    summary: str
    details: Sequence[str] = ()


def findings_in(examined: ExaminedSet) -> list[Finding]:
    """What is found in one set."""
    items, name = examined.readable, examined.name
    unreadable = [item.problem for item in examined.items if item.problem]
    silent = [f"{i.place}: {i.utterance.audio_path}" for i in items if examined.with_audio and i.peak < _SILENCE]
    speeds = _speed_outliers(items)
    found = [
        _problem("line", examined.invalid, f"{name}: lines that are not valid"),
        _problem("audio", unreadable, f"{name}: {_some(len(unreadable))} whose audio or text cannot be used"),
        _problem("silence", silent, f"{name}: {_some(len(silent))} without sound"),
        _problem("speed", speeds, f"{name}: {_some(len(speeds))} whose text hardly belongs to the audio"),
        *_repeated(examined),
        *_unusual(examined),
    ]
    return [finding for finding in found if finding.details]


def findings_between(train: ExaminedSet, evaluation: ExaminedSet) -> list[Finding]:
    """What a training and an evaluation set share: the same recording is a leak, other things are worth knowing."""
    pairs, same_file = _shared(train, evaluation)
    leaks = [f"{item.place} = {other.place} ({item.utterance.audio_path})" for item, other in pairs]
    parts = [f"{item.place}, {other.place} ({item.utterance.audio_path})" for item, other in same_file]
    of_each = f"of {len(evaluation.readable)} utterances of {evaluation.name}"
    texts = {item.utterance.text for item in train.readable}
    same_text = [item.place for item in evaluation.readable if item.utterance.text in texts]
    speakers = sorted(_speakers(train) & _speakers(evaluation))
    found = [
        Finding("leak", True, f"{len(leaks)} {of_each} are recordings of the training set {train.name}", leaks),
        Finding("file", False, f"{len(parts)} {of_each} are other parts of files of {train.name}", parts),
        Finding("text", False, f"{len(same_text)} {of_each} have a text that {train.name} has as well", same_text),
        Finding("speaker", False, f"{len(speakers)} speakers are in {evaluation.name} and in {train.name}", speakers),
    ]
    return [finding for finding in found if finding.details]


def findings_among(one: ExaminedSet, other: ExaminedSet) -> list[Finding]:
    """What two evaluation sets share."""
    pairs, _ = _shared(one, other)
    shared = [f"{item.place} = {twin.place}" for item, twin in pairs]
    summary = f"{len(shared)} utterances of {other.name} are recordings of {one.name} as well"
    return [Finding("shared", False, summary, shared)] if shared else []


def overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether two spans of seconds in a file have something in common."""
    return one[0] < other[1] and other[0] < one[1]


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
        twin = by_digest.get(item.digest) or next((each for each in near if overlap(each.span, item.span)), None)
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
        if earlier is item or item.peak < _SILENCE:
            continue
        if earlier.utterance.text == item.utterance.text:
            again.append(f"{item.place} = {earlier.place} ({item.utterance.audio_path})")
        else:
            texts = f'"{_short(earlier.utterance.text)}" and "{_short(item.utterance.text)}"'
            contradicting.append(f"{earlier.place} and {item.place}: {texts}")
    name = examined.name
    return [
        _problem("duplicate", again, f"{name}: {_some(len(again))} repeated: the same samples and the same text"),
        _problem(
            "contradiction", contradicting, f"{name}: {_some(len(contradicting))} with the samples of another text"
        ),
    ]


def _unusual(examined: ExaminedSet) -> list[Finding]:
    """What is no problem by itself."""
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
    return [
        Finding("duration", False, f"{name}: {_some(len(durations))} of another duration than written", durations),
        Finding("path", False, f"{name}: {_some(len(paths))} with a path that starts at the working directory", paths),
        Finding("rate", False, f"{name}: {len(several)} sample rates", several),
        Finding("text", False, f"{name}: {len(texts)} texts occur more than once", texts),
    ]


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
    found = []
    for (rate, item), log in zip(timed, logs.tolist(), strict=True):
        far = len(timed) >= _FEWEST_FOR_OUTLIERS and abs(log - median) > limit
        if far or rate > _MOST_PER_SECOND[unit]:
            told = f'{item.place}: {rate:.2g} {unit} a second: "{_short(item.utterance.text)}" in {item.seconds:.2f} s'
            found.append((abs(log - median), f"{told} (the median is {math.exp(median):.2g})"))
    return [told for _, told in sorted(found, key=lambda pair: -pair[0])]


def _problem(kind: str, details: Sequence[str], summary: str) -> Finding:
    return Finding(kind, True, summary, details)


def _some(count: int) -> str:
    return counted(count, "utterance")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _speakers(examined: ExaminedSet) -> set[str]:
    return {str(item.utterance.speaker) for item in examined.readable if item.utterance.speaker is not None}
