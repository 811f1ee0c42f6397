"""Runs of one recipe with several seeds: the error rates of each, their mean and their spread. No training in here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

from nemo_asr.scoring.report.records import METRICS_FILE, number_of, read_records
from nemo_asr.scoring.report.set_scores import aligned
from nemo_lite.base.outputs import write_output

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
    records = read_records(folder / METRICS_FILE)
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
    by_set: dict[str, dict[str, Spread]] = {}
    order = sorted(RATES, key=lambda rate: rate != first_rate)
    for name in dict.fromkeys(name for result in results for name in result.rates):
        for rate in order:
            values = [result.rates[name][rate] for result in results if rate in result.rates.get(name, {})]
            if values:
                mean_and_range = (fmean(values), stdev(values) if len(values) > 1 else None, min(values), max(values))
                by_set.setdefault(name, {})[rate] = Spread(len(values), *mean_and_range)
    return by_set


def seed_table(results: Sequence[SeedResult], first_rate: str = "wer") -> str:
    """The rates of each seed, mean and spread, as a table of text in percent."""
    header = ("set", "rate", *(f"seed {result.seed}" for result in results), "mean", "spread")
    rows = [header]
    for name, rates in spreads(results, first_rate).items():
        for number, (rate, spread) in enumerate(rates.items()):
            numbers = [*(result.rates.get(name, {}).get(rate) for result in results), spread.mean, spread.spread]
            cells = ["" if value is None else f"{100 * value:.2f}" for value in numbers]
            rows.append(("" if number else name, rate.upper(), *cells))
    return "\n".join(
        [
            *aligned(rows, 2, rule=True),
            "",
            "In percent, of each run's model. Spread: standard deviation over the seeds.",
        ]
    )


SEEDS = "nemo-lite train --seeds"


def write_seeds(path: Path, results: Sequence[SeedResult], failed: Mapping[int, int]) -> None:
    """Write what the table shows as JSON; rates are fractions.

    Args:
        path: the file.
        results: of the seeds that finished.
        failed: the exit code of each seed that did not.

    Raises:
        UsageError: the file cannot be written.
        FileInTheWayError: there is a file that was not written here, or was changed since.
    """
    sets = {name: {rate: asdict(spread) for rate, spread in rates.items()} for name, rates in spreads(results).items()}
    content = {
        "seeds": [asdict(result) for result in results],
        "failed": [{"seed": seed, "exit_code": code} for seed, code in failed.items()],
        "sets": sets,
    }
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    write_output(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), SEEDS)
