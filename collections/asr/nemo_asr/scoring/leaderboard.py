"""Error rates as the public Open ASR leaderboard counts them, by the normaliser of a checkout of its own repository.

Its normaliser changes, and its tables of spellings, names and compounds are no package, so a checkout is the only
exact source. It is code, and runs: a user names the folder. Errors are counted by kaldialign, as there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from nemo_lite.base.errors import UsageError
from nemo_lite.base.files import digest_of_file
from nemo_lite.package_info import __version__

RESULTS_FILE = Path(".eval_results", "open_asr_leaderboard.yaml")
"""What a model's repository on Hugging Face carries, from its root on."""
PREFIX = "leaderboard:"
"""Before the path of a checkout, where a score normaliser has a name."""
INSTALL = "pip install kaldialign regex (the extra leaderboard of nemo-lite)"
_DATASET = "hf-audio/open-asr-leaderboard"
_NOT_SCORED = frozenset({"", "ignore time segment in scoring"})  # references that its code leaves out
CLONE = "give a checkout: git clone https://github.com/huggingface/open_asr_leaderboard"


class LeaderboardRate(NamedTuple):
    """Of a set.

    Attributes:
        rate: errors by words of the references, a fraction.
        insertions, deletions, substitutions: the errors. Words that were split or joined are none.
        num_utterances: that were scored: those without words are not.
    """

    rate: float
    insertions: int
    deletions: int
    substitutions: int
    num_utterances: int

    @property
    def percent(self) -> float:
        """As the leaderboard shows it: in percent, with two decimals."""
        return round(100 * self.rate, 2)


class Leaderboard(NamedTuple):
    """A checkout.

    Attributes:
        version: its commit, ``-dirty`` where files differ from it; without Git a digest of the normaliser.
        normalize: its normaliser of English texts.
    """

    version: str
    normalize: Callable[[str], str]


@cache
def load_leaderboard(folder: str) -> Leaderboard:
    """Run the normaliser of a checkout of the leaderboard's repository.

    Raises:
        UsageError: there is none, a package that it needs is missing, or it does not run.
    """
    package = Path(folder) / "normalizer"
    if not (package / "normalizer.py").is_file():
        raise UsageError("this is no checkout of the leaderboard", place=folder, wanted=str(package), remedy=CLONE)
    name = f"open_asr_leaderboard_{hashlib.sha256(str(package.resolve()).encode()).hexdigest()[:8]}"
    try:
        spec = importlib.util.spec_from_file_location(
            name, package / "__init__.py", submodule_search_locations=[str(package)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        normalize: Callable[[str], str] = module.EnglishTextNormalizer()
        normalize("a")
    except ModuleNotFoundError as error:
        problem = f"the package {error.name} is not installed, which the leaderboard's normaliser needs"
        raise UsageError(problem, place=folder, remedy=INSTALL) from None
    except Exception as error:  # whatever somebody else's code raises
        problem, got = "the normaliser of the leaderboard does not run", f"{type(error).__name__}: {error}"
        raise UsageError(problem, place=folder, got=got, remedy=f"look at it, or {CLONE}") from error
    return Leaderboard(_version_of(package), normalize)


def _version_of(package: Path) -> str:
    if (package.parent / ".git").exists():  # else Git would answer for a folder above
        words = ["git", "-C", str(package), "describe", "--always", "--dirty", "--abbrev=7", "--exclude", "*"]
        with suppress(OSError, subprocess.SubprocessError):  # no Git here, or it does not trust the folder
            return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    digests = "".join(digest_of_file(path) for path in sorted(package.glob("*.py")))
    return f"sha256:{hashlib.sha256(digests.encode()).hexdigest()[:12]}"


def leaderboard_rate(references: Sequence[str], hypotheses: Sequence[str], place: str = "") -> LeaderboardRate:
    """The error rate of a set.

    Args:
        references: what was said, as the leaderboard's normaliser leaves it.
        hypotheses: what was recognised, likewise.
        place: the name of the set.

    Raises:
        UsageError: kaldialign is not installed, or no reference has words.
    """
    count = _error_counter()
    check_references(references, place)
    pairs = [pair for pair in zip(references, hypotheses, strict=True) if pair[0].strip() not in _NOT_SCORED]
    said, heard = [tuple(pair[0].split()) for pair in pairs], [tuple(pair[1].split()) for pair in pairs]
    counts = count(said, heard, merge_compounds=True)
    return LeaderboardRate(counts["err_rate"], counts["ins"], counts["del"], counts["sub"], len(said))


def check_references(references: Sequence[str], place: str = "") -> None:
    """See that something can be counted.

    Args:
        references: of a set, as the leaderboard's normaliser leaves them.
        place: the name of the set.

    Raises:
        UsageError: no reference has words.
    """
    if all(reference.strip() in _NOT_SCORED for reference in references):
        problem = "the leaderboard's normaliser leaves no words of the references"
        raise UsageError(problem, place=place, remedy="leave the set out")


def _error_counter() -> Callable[..., Mapping[str, Any]]:
    try:
        from kaldialign import batch_error_rate  # optional
    except ImportError:
        raise UsageError("the package kaldialign is not installed", remedy=INSTALL) from None
    counter: Callable[..., Mapping[str, Any]] = batch_error_rate
    return counter


def check_leaderboard(folder: str) -> None:
    """See that rates can be counted, before any work is done; the errors of `load_leaderboard`."""
    load_leaderboard(folder)
    _error_counter()


def results_yaml(rates: Mapping[str, LeaderboardRate], version: str) -> str:
    """The file of results: a list of tasks ``SET_wer``, and ``mean_wer`` where there are several sets. In percent.

    Source of the fields: https://huggingface.co/docs/hub/eval-results.

    Args:
        rates: by the name of the set: ``librispeech_clean``.
        version: of the checkout.
    """
    values = {f"{name.lower()}_wer": rate.percent for name, rate in rates.items()}
    how = f"nemo_lite {__version__}, normaliser of open_asr_leaderboard {version}"
    notes = dict.fromkeys(values, how)
    if len(values) > 1:
        mean = round(sum(values.values()) / len(values), 2)
        values = {"mean_wer": mean, **values}
        notes["mean_wer"] = f"{how}; mean of {len(rates)} sets: {', '.join(rates)}"
    day = datetime.now(UTC).date().isoformat()
    lines = []
    for task, value in values.items():
        lines += ["- dataset:", f"    id: {_DATASET}", f"    task_id: {json.dumps(task)}", f"  value: {value:g}"]
        lines += [f'  date: "{day}"', f"  notes: {json.dumps(notes[task])}"]
    return "\n".join(lines) + "\n"
