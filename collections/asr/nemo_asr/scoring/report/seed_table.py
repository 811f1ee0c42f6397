"""Runs of one recipe with several seeds: the error rates of each, their mean and their spread. No training in here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

from nemo_asr.scoring.report.records import FILE_NAME, number_of, read_records
from nemo_lite.utils.files import write_atomically

RATES = ("wer", "cer", "error")
"""What of an evaluation is an error rate."""


@dataclass(frozen=True)
class SeedResult:
    """What a run gave.

    Attributes:
        seed: of the run.
        folder: the run's.
        step: of its model: the best one by the first set; the last one where no set decides. None: it has none.
        rates: of that step, by set and then by name: fractions.
    """

    seed: int
    folder: str
    step: int | None
    rates: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Spread:
    """A rate over several seeds; fractions.

    Attributes:
        number: of seeds that have the rate.
        mean: of them.
        spread: their standard deviation (of a sample, with ``number - 1``); None for one seed.
        lowest, highest: of them.
    """

    number: int
    mean: float
    spread: float | None
    lowest: float
    highest: float


def read_result(seed: int, folder: Path) -> SeedResult:
    """The rates of a run's model.

    Raises:
        UsageError: the run has no records.
    """
    records = read_records(folder / FILE_NAME)
    at_model = number_of(records.model, "step")
    evaluated = [step for of_set in records.evaluations.values() for step in of_set]
    step = int(at_model) if at_model is not None else max(evaluated, default=None)
    rates = {
        name: {rate: value for rate in RATES if (value := number_of(of_set[step], rate)) is not None}
        for name, of_set in records.evaluations.items()
        if step in of_set
    }
    return SeedResult(seed, str(folder), step, rates)


def spreads(results: Sequence[SeedResult], first_rate: str = "wer") -> dict[str, dict[str, Spread]]:
    """Mean and spread by set and rate, as the results order them; the rate that counts comes first."""
    found: dict[str, dict[str, Spread]] = {}
    order = sorted(RATES, key=lambda rate: rate != first_rate)
    for name in dict.fromkeys(name for result in results for name in result.rates):
        for rate in order:
            values = [result.rates[name][rate] for result in results if rate in result.rates.get(name, {})]
            if values:
                about = (fmean(values), stdev(values) if len(values) > 1 else None, min(values), max(values))
                found.setdefault(name, {})[rate] = Spread(len(values), *about)
    return found


def seed_table(results: Sequence[SeedResult], first_rate: str = "wer") -> str:
    """The rates of each seed, mean and spread, as a table of text in percent."""
    header = ("set", "rate", *(f"seed {result.seed}" for result in results), "mean", "spread")
    rows = [header]
    for name, rates in spreads(results, first_rate).items():
        for number, (rate, found) in enumerate(rates.items()):
            values = [_percent(result.rates.get(name, {}).get(rate)) for result in results]
            row = ("" if number else name, rate.upper(), *values, _percent(found.mean), _percent(found.spread))
            rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, rate, *numbers in rows:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[2:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), rate.ljust(widths[1]), *cells]))
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, "", "In percent, of each run's model. Spread: standard deviation over the seeds."])


def write_seeds(path: Path, results: Sequence[SeedResult], failed: Mapping[int, int]) -> None:
    """Write what the table shows as JSON; rates are fractions.

    Args:
        path: the file.
        results: of the seeds that finished.
        failed: the exit code of each seed that did not.

    Raises:
        UsageError: the file cannot be written.
    """
    sets = {name: {rate: asdict(each) for rate, each in rates.items()} for name, rates in spreads(results).items()}
    content = {
        "seeds": [asdict(result) for result in results],
        "failed": [{"seed": seed, "exit_code": code} for seed, code in failed.items()],
        "sets": sets,
    }
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _percent(rate: float | None) -> str:
    return "" if rate is None else f"{100 * rate:.2f}"
