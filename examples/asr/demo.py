"""The demo: train the small model on the corpus that ``nemo-lite data make synth`` made; transcribe a new recording.

    python examples/asr/demo.py --corpus data/synth --work_dir runs/demo

Runs ``nemo-lite plan``, ``train`` and ``transcribe`` as a user would. The last one gets a sentence that the speech
synthesiser says on the spot, in a voice and in words that are not in the corpus. ``curves.png`` has the curves of loss
and word error rate.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from matplotlib.figure import Figure

from nemo_asr.corpora.synth import say
from nemo_lite.core.trackers import read_metrics
from nemo_lite.errors import reported_to_user
from nemo_lite.utils.argparse import positive_int

SETS = {"val_seen_voices": "voices heard in training", "val_unseen_voices": "new voices"}
NUM_EPOCHS = 10
NEW_TEXT, NEW_VOICE = "july twenty nineteen sixty nine", "en-us+m1"  # neither is in the corpus


def run(*words: str, shown: str = "", wants_output: bool = False) -> str:
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
    plan = run("plan", *options, wants_output=True)
    # Its tables, which show each port, are in plan.txt.
    print(*re.findall(r"^(?:\w+: \d+ nodes|\d+ steps|learning rate|Saved) ?.*", plan, re.MULTILINE), sep="\n")
    run("train", *options, shown="nemo-lite train, with the same options")


def curves(work_dir: Path) -> dict[str, float]:
    """Draw what metrics.jsonl of the run has; the word error rate of the best model on each validation set."""
    records = list(read_metrics(work_dir / "metrics.jsonl"))
    steps = [record for record in records if record["kind"] == "train"]
    best = [record for record in records if record["kind"] == "model"][-1]["step"]
    figure = Figure(figsize=(8, 6.5))
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot([each["step"] for each in steps], [each["loss"] for each in steps], color="tab:gray", label="training")
    rates: dict[str, float] = {}
    for (name, words), color in zip(SETS.items(), ("tab:blue", "tab:orange"), strict=True):
        found = [record for record in records if record["kind"] == "evaluation" and record["set"] == name]
        at = [each["step"] for each in found]
        above.plot(at, [each["loss"] for each in found], color=color, label=words)
        below.plot(at, [100 * each["wer"] for each in found], color=color, marker="o", label=words)
        rates[name] = next(each["wer"] for each in found if each["step"] == best)
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


def main() -> None:
    """Train, draw, transcribe, and say where everything is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the corpus")
    parser.add_argument("--work_dir", type=Path, required=True, help="folder for the results; an old one is replaced")
    parser.add_argument("--num_epochs", type=positive_int, default=NUM_EPOCHS, help="epochs to train")
    args = parser.parse_args()
    start = time.monotonic()
    shutil.rmtree(args.work_dir, ignore_errors=True)
    train(args.corpus, args.work_dir, args.num_epochs)
    rates = curves(args.work_dir)
    recording = args.work_dir / "new.wav"
    say(recording, NEW_TEXT, NEW_VOICE)
    heard = run("transcribe", str(args.work_dir), str(recording), wants_output=True).strip()
    print(f"\nA new sentence in a new voice, {recording}")
    print(f"  spoken:     {NEW_TEXT}\n  recognised: {heard}")
    print("\nWord error rate of the model")
    print("\n".join(f"  {rates[name]:6.1%}  {words}" for name, words in SETS.items()))
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    print(f"\nTrained, evaluated and transcribed in {minutes} min {seconds} s.\n")
    print(ending(args.corpus, args.work_dir))


if __name__ == "__main__":
    with reported_to_user():
        main()
