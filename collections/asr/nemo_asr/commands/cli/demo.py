"""Make a spoken corpus, train a small model on it, and show what it recognises."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nemo_asr.corpora import synth
from nemo_lite.base.errors import UsageError
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.options import OneLineParser, positive_int
from nemo_lite.base.outputs import RECORD, check_ours, list_outputs, remove_outputs
from nemo_lite.core.trackers import read_metrics

SETS = {"val_seen_voices": "voices heard in training", "val_unseen_voices": "new voices"}
NUM_EPOCHS = 8
WORK_DIR_HELP = "folder for the results; those of an earlier demo are deleted"
PROGRAM = "nemo-lite demo"
# What a run leaves in its folder. All else is somebody's, whenever it was put there.
_WRITTEN = (
    *("cmd-args_*.log", "log_globalrank-*_localrank-*.txt", "demo_*.yaml", "metrics.jsonl", "report.html"),
    *("plan.txt", "training.svg", "evaluation_*.svg", "curves.png", "new.wav"),
    *("tensorboard", "tensorboard/events.out.tfevents.*", "transcripts", "transcripts/*.transcripts.jsonl"),
    *("model", "model/model.json", "model/*-????????.safetensors", "model/config-????????.yaml"),
    *("checkpoints", "checkpoints/.lock", "checkpoints/checkpoint-*", "checkpoints/checkpoint-*/*"),
    f"*/{RECORD}",
)
NEW_TEXT, NEW_VOICE = "july twenty nineteen sixty nine", "en-us+m1"  # neither is in the corpus
_NEEDED = ("espeakng_loader", "matplotlib")


def main(arguments: Sequence[str]) -> None:
    """Make the corpus, unless it is there, and run the demo on it.

    Raises:
        UsageError: a package that only the demo needs is missing.
    """
    parser = OneLineParser(prog=PROGRAM, description=__doc__)
    corpus_help = "folder of the corpus; one that is complete stays"
    parser.add_argument("--corpus", metavar="FOLDER", default="data/synth", help=corpus_help)
    parser.add_argument("--work_dir", default="runs/demo", help=WORK_DIR_HELP)
    parser.add_argument("--utterances", type=positive_int, help="size of the training set to make (default: 3600)")
    parser.add_argument("--num_epochs", type=positive_int, default=NUM_EPOCHS, help="epochs to train")
    args = parser.parse_args(arguments)
    missing = [package for package in _NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        remedy = "pip install espeakng-loader matplotlib"
        raise UsageError(f"packages are missing: {', '.join(missing)}", remedy=remedy)
    work_dir = _work_dir(Path(args.work_dir))
    synth.main([args.corpus, *_sizes(args.utterances)], parser.prog)
    run_demo(Path(args.corpus), work_dir, args.num_epochs)


def _sizes(utterances: int | None) -> list[str]:
    """Options of the corpus maker: the validation sets are an eighth of a small training set, and as large as ever."""
    if utterances is None:
        return []
    validation = str(min(synth.Arguments.val1, max(1, utterances // 8)))
    return ["--train", str(utterances), "--val1", validation, "--val2", validation]


def run_demo(corpus: Path, work_dir: Path, num_epochs: int = NUM_EPOCHS) -> None:
    """Train, draw, transcribe, and say where everything is; subcommands run as a user would run them.

    Args:
        corpus: folder of the corpus that ``nemo-lite data make synth`` made.
        work_dir: folder for the results. What an earlier demo wrote there is deleted.
        num_epochs: epochs to train.

    Raises:
        UsageError: the folder holds something that no demo wrote, or that has changed since, or another demo runs
            there. Nothing is deleted then.
    """
    start, work_dir = time.monotonic(), _work_dir(work_dir)
    remove_outputs(work_dir, PROGRAM)
    make_writable_folder(work_dir)
    with _locked(work_dir):
        try:
            _run(corpus, work_dir, num_epochs, start)
        finally:
            list_outputs(work_dir, PROGRAM, _WRITTEN)  # also of a demo that was stopped


def _work_dir(folder: Path) -> Path:
    """The folder, with a name of its own: ``.`` has none.

    Raises:
        UsageError: it holds something that no demo wrote, or that has changed since, or another demo runs there.
    """
    folder = folder.expanduser()
    folder = folder if folder.name not in ("", "..") else folder.resolve()
    if folder.is_dir():
        with _locked(folder):  # a demo that runs has not listed its files yet: they would be taken for the user's
            pass
    check_ours(folder, PROGRAM)
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One demo at a time. The folder itself is locked, so nothing is left behind.

    Raises:
        UsageError: another demo runs there.
    """
    file = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # its file system has no such locks
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                remedy = "wait until it has ended, or choose another folder"
                raise UsageError(f"another {PROGRAM} runs there", place=str(folder), remedy=remedy) from None
        yield
    finally:
        os.close(file)


def _run(corpus: Path, work_dir: Path, num_epochs: int, start: float) -> None:
    train(corpus, work_dir, num_epochs)
    rates = curves(work_dir)
    recording = work_dir / "new.wav"
    synth.say(recording, NEW_TEXT, NEW_VOICE)
    heard = run_subcommand("transcribe", str(work_dir), str(recording), wants_output=True).strip()
    print(f"\nA new sentence in a new voice, {recording}")
    print(f"  spoken:     {NEW_TEXT}\n  recognised: {heard}")
    print("\nWord error rate of the model")
    print("\n".join(f"  {rates[name]:6.1%}  {words}" for name, words in SETS.items()))
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    print(f"\nTrained, evaluated and transcribed in {minutes} min {seconds} s.\n")
    print(ending(corpus, work_dir))


def run_subcommand(*words: str, shown: str = "", wants_output: bool = False) -> str:
    """Show and run a subcommand of nemo-lite; what it wrote to stdout, if that is wanted.

    Ends the demo with the exit code of a subcommand that fails.
    """
    print("\n$", shown or wrapped("nemo-lite", *words), flush=True)
    command = [sys.executable, "-m", "nemo_lite", *words]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE if wants_output else None) as process:
        try:
            output, _ = process.communicate()
        except KeyboardInterrupt:  # the subcommand got the signal as well: it saves, and says how to go on
            output, _ = process.communicate()
    if process.returncode:
        sys.exit(process.returncode)
    return output or ""


def wrapped(*words: str) -> str:
    """A command as one would write it, in lines that begin with an option."""
    lines = [""]
    for part in re.split(r" (?=--)", shlex.join(words)):
        if len(lines[-1]) + len(part) > 96:
            lines.append("   ")
        lines[-1] += f" {part}" if lines[-1] else part
    return " \\\n".join(lines)


def train(corpus: Path, work_dir: Path, num_epochs: int) -> None:
    """Show what will be trained, with the DAGs as pictures, then train it."""
    options = [
        *("--model_config", "demo", "--train_dataset", str(corpus / "train.json")),
        *("--eval_datasets", *(str(corpus / f"{name}.json") for name in SETS)),
        *("--num_epochs", str(num_epochs), "--batch_size", "16", "--eval_batch_size", "64"),
        *("--optimizer", "adam_w", "--lr", "0.006", "--beta2", "0.98", "--warmup_steps", "100"),
        *("--eval_freq", "450", "--log_freq", "75", "--work_dir", str(work_dir.parent), "--exp_name", work_dir.name),
    ]
    plan = run_subcommand("plan", *options, wants_output=True)
    # Its tables, which show each port, are in plan.txt.
    print(*re.findall(r"^(?:\w+: \d+ nodes|\d+ steps|learning rate|Saved) ?.*", plan, re.MULTILINE), sep="\n")
    run_subcommand("train", *options, shown="nemo-lite train, with the same options")


def curves(work_dir: Path) -> dict[str, float]:
    """Draw what metrics.jsonl of the run has; the word error rate of the best model on each validation set."""
    from matplotlib.figure import Figure

    records = list(read_metrics(work_dir / "metrics.jsonl"))
    steps = [record for record in records if record["kind"] == "train"]
    best = [record for record in records if record["kind"] == "model"][-1]["step"]
    figure = Figure(figsize=(8, 6.5))
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(
        [record["step"] for record in steps], [record["loss"] for record in steps], color="tab:gray", label="training"
    )
    rates: dict[str, float] = {}
    for (name, words), color in zip(SETS.items(), ("tab:blue", "tab:orange"), strict=True):
        evaluations = [record for record in records if record["kind"] == "evaluation" and record["set"] == name]
        at = [record["step"] for record in evaluations]
        above.plot(at, [record["loss"] for record in evaluations], color=color, label=words)
        below.plot(at, [100 * record["wer"] for record in evaluations], color=color, marker="o", label=words)
        rates[name] = next(record["wer"] for record in evaluations if record["step"] == best)
    above.set(ylabel="CTC loss", yscale="log", title="nemo_lite demo: a separable Jasper on synthetic speech")
    below.set(xlabel="step", ylabel="word error rate (%)", ylim=(0, 100))
    for axis in (above, below):
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(work_dir / "curves.png", dpi=100)
    return rates


def ending(corpus: Path, work_dir: Path) -> str:
    """Where everything is, and what to try next."""
    looks = {
        "report.html": "rates, curves, the worst utterances to hear",
        "curves.png": "loss and word error rate over the steps",
        "training.svg": "the DAG that was trained",
        "model": "the trained model; commands find it by the run's folder",
    }
    unseen = corpus / "val_unseen_voices"
    commands = [
        f"nemo-lite transcribe {work_dir} {unseen / '00000.wav'} --format srt",
        f"nemo-lite eval {work_dir} --eval_datasets {unseen}.json --out results",
        f"nemo-lite models show {work_dir}",
        "nemo-lite train --help",
    ]
    if shutil.which("nemo-lite") is None:
        commands.insert(0, f". {os.path.relpath(sys.prefix)}/bin/activate")
    width = max(len(str(work_dir / name)) for name in looks)
    places = [f"  {work_dir / name!s:{width}}  {words}" for name, words in looks.items()]
    return "\n".join(["Look at", *places, "", "Try next", *(f"  {command}" for command in commands)])
