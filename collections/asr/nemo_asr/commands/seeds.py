"""``--seeds N``: one recipe trained with several seeds, each in a process and a folder of its own, one after the other.

A single run says little about a recipe: on small data another seed moves the error rate by more than most changes do.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from nemo_asr.commands.training import plain_arguments
from nemo_asr.options import Logging, SavingOptions
from nemo_asr.scoring.report.records import METRICS_FILE as METRICS
from nemo_asr.scoring.report.records import RunRecords, read_records
from nemo_asr.scoring.report.seed_table import read_result, seed_table, write_seeds
from nemo_lite import logging
from nemo_lite.base.errors import NemoLiteError, UsageError
from nemo_lite.base.options import Launch, names_of
from nemo_lite.core.trackers import FAILED, FINISHED, is_interruption

SUMMARY = "seeds.json"
# Options by which runs of one recipe may differ: which seed, where, how long, what is told and kept.
_MAY_DIFFER = {
    *names_of(SavingOptions, Launch, Logging),
    *("random_seed", "seeds", "run_dir", "num_epochs", "max_steps", "eval_metric", "num_workers", "worker_timeout"),
    *("placement", "num_processes", "num_gpus", "plan", "precision_check"),
}
_LENGTHS = ("num_epochs", "max_steps")
_STOPPED = (130, 75)  # exit codes of a run that a signal ended


def train_seeds(args: Namespace) -> None:
    """Train with ``args.seeds`` seeds from ``args.random_seed`` on, then print mean and spread of each set's rates.

    The command of this process is run again for each seed, with ``--random_seed`` and a folder ``seed_N`` below the
    run's. A seed that has finished is not trained again, one that was stopped goes on. The table is in ``seeds.json``
    too. Started by a launcher, each process starts its part of every run.

    Args:
        args: what ``AsrArgParser`` gave.

    Raises:
        UsageError: a finished run has other options; a run failed before its training began, as all would.
        NemoLiteError: seeds failed; the others have been trained, and the table is printed.
        SystemExit: a signal ended a run.
    """
    seeds = range(args.random_seed, args.random_seed + args.seeds)
    folders = {seed: args.run_dir / f"seed_{seed}" for seed in seeds}
    # Several processes may not see the same folders: there a finished run is started, and ends at once.
    done = {seed for seed in seeds if args.num_processes == 1 and is_finished(folders[seed], args)}
    failed: dict[int, int] = {}
    for number, seed in enumerate(seeds, 1):
        if args.tells_for_all:
            state = "has finished before" if seed in done else "training"
            logging.info("Seed %d (%d of %d): %s in %s", seed, number, args.seeds, state, folders[seed])
        if seed not in done and (code := run_seed(seed, args.exp_name, args.work_dir)):
            failed[seed] = _judge(code, seed, folders[seed], args.tells_for_all)
    if args.tells_for_all:
        _tell(folders, failed, args)
    if failed and not args.tells_for_all:
        raise SystemExit(NemoLiteError.exit_code)
    if failed:
        names = ", ".join(f"seed {seed} (exit code {code}, {folders[seed]})" for seed, code in failed.items())
        remedy = "see its error above; the same command trains only what has not finished"
        raise NemoLiteError("not all seeds finished", got=names, remedy=remedy)


def is_finished(folder: Path, args: Namespace) -> bool:
    """Whether the run of a folder has reached its end with these options, or its patience; False where there is none.

    Raises:
        UsageError: it has finished with other options: its rates would not be of the same recipe.
    """
    path = folder / METRICS
    records = read_records(path) if path.is_file() else RunRecords()
    reason = (records.end or {}).get("reason", FAILED)
    if reason == FAILED or is_interruption(reason):
        return False
    before, now = (records.start or {}).get("arguments"), json.loads(json.dumps(plain_arguments(args)))
    if not isinstance(before, dict):
        return False
    if reason != FINISHED and before.get("patience") != now.get("patience"):  # it may go on
        return False
    differing = [
        f"{name} {before[name]}, now {now[name]}"
        for name in before.keys() & now.keys() - _MAY_DIFFER
        if before[name] != now[name]
    ]
    if differing:
        remedy = "give another --exp_name, or delete the folder"
        problem = "the run has finished with other options"
        raise UsageError(problem, place=str(folder), got="; ".join(sorted(differing)), remedy=remedy)
    return all(before.get(name) == now[name] for name in _LENGTHS)


def command_of(seed: int, exp_name: str, work_dir: str | None = None) -> list[str]:
    """The command that trains one seed: that of this process, and behind it options that replace earlier ones."""
    _, *options = sys.argv
    _, *original = sys.orig_argv  # with the interpreter's options, and nemo-lite as it was started
    words = original if original[len(original) - len(options) :] == options else sys.argv
    replacing = ["--seeds", "1", "--random_seed", str(seed), "--exp_name", f"{exp_name}/seed_{seed}"]
    replacing += ["--work_dir", work_dir] if work_dir else []
    return [sys.executable, *words, *replacing]


def run_seed(seed: int, exp_name: str, work_dir: str | None = None) -> int:
    """Train one seed; the exit code of its process. A signal that this process gets is handed on, and waited for."""
    with subprocess.Popen(command_of(seed, exp_name, work_dir)) as process:
        try:
            return process.wait()
        except KeyboardInterrupt as stop:
            # A terminal has sent it to both; within a second, two count as one.
            process.send_signal(getattr(stop, "number", signal.SIGINT))
            return process.wait() or _STOPPED[0]


def _judge(code: int, seed: int, folder: Path, tells: bool) -> int:
    """The exit code of a failed seed, where the others are to be trained all the same."""
    if code in _STOPPED:
        if tells:
            logging.info("Stopped at seed %d; the same command goes on there", seed)
        raise SystemExit(code)
    if tells:
        logging.warning("Seed %d failed with exit code %d: %s", seed, code, folder)
        if not (folder / METRICS).is_file():
            remedy = "the others would fail in the same way, and were not started"
            raise UsageError("training did not begin", place=f"seed {seed}", got=f"exit code {code}", remedy=remedy)
    return code


def _tell(folders: Mapping[int, Path], failed: Mapping[int, int], args: Namespace) -> None:
    results = [read_result(seed, folder) for seed, folder in folders.items() if seed not in failed]
    if not results:
        return
    path = args.run_dir / SUMMARY
    write_seeds(path, results, failed)
    metric = args.eval_metric
    if not metric:  # what counted in a run: the labels have decided
        arguments = (read_records(folders[results[0].seed] / METRICS).start or {}).get("arguments")
        metric = str(arguments.get("eval_metric", "wer")) if isinstance(arguments, dict) else "wer"
    print(f"\n{seed_table(results, metric)}\nThe same in {path}", flush=True)
