"""The demo: train the small model on the corpus that ``python -m nemo_asr.corpora.synth`` made; show the result.

    python examples/asr/demo.py --corpus data/synth --work_dir runs/demo

Runs jasper.py as a user would; then prints the word error rate on both validation sets and three transcripts, and
draws the curves of loss and word error rate into ``curves.png``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import matplotlib.pyplot as plt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nemo_lite.errors import reported_to_user

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "configs" / "demo.yaml"
SETS = {
    "val_seen_voices": "validation set 1 (voices heard in training)",
    "val_unseen_voices": "validation set 2 (new voices)",
}
NUM_EPOCHS = 28


def run(script: str, *arguments: str) -> str:
    """Run one of the scripts beside this one; what it printed last."""
    command = [sys.executable, str(HERE / script), "--model_config", str(CONFIG), *arguments]
    print("$ python", " ".join(command[1:]), flush=True)
    finished = subprocess.run(command, text=True, stdout=subprocess.PIPE if script == "jasper_infer.py" else None)
    if finished.returncode:
        sys.exit(finished.returncode)
    return finished.stdout or ""


def train(corpus: Path, work_dir: Path, num_epochs: int) -> None:
    """Say what will be trained, with the DAGs as pictures, then train it."""
    shared = [
        *("--train_dataset", str(corpus / "train.json")),
        *("--eval_datasets", *(str(corpus / f"{name}.json") for name in SETS)),
        *("--num_epochs", str(num_epochs), "--batch_size", "16", "--eval_batch_size", "64"),
        *("--optimizer", "novograd", "--lr", "0.02", "--beta2", "0.5", "--warmup_steps", "100"),
        *("--eval_freq", "250", "--log_freq", "75", "--work_dir", str(work_dir.parent), "--exp_name", work_dir.name),
    ]
    run("jasper.py", *shared, "--plan")
    run("jasper.py", *shared)


def curves(work_dir: Path) -> dict[str, float]:
    """Draw the curves of the run's TensorBoard events; the last word error rate of each validation set."""
    events = EventAccumulator(str(work_dir / "tensorboard")).Reload()
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 7), sharex=True)
    losses = events.Scalars("loss")
    above.plot([e.step for e in losses], [e.value for e in losses], color="tab:gray", label="training")
    last: dict[str, float] = {}
    for (name, words), color in zip(SETS.items(), ("tab:blue", "tab:orange"), strict=True):
        loss, wer = (events.Scalars(f"{name}/{value}") for value in ("loss", "wer"))
        above.plot([e.step for e in loss], [e.value for e in loss], color=color, label=words)
        below.plot([e.step for e in wer], [100 * e.value for e in wer], color=color, marker="o", label=words)
        last[name] = wer[-1].value
    above.set(ylabel="CTC loss", yscale="log", title="nemo_lite demo: a separable Jasper on synthetic speech")
    below.set(xlabel="step", ylabel="word error rate (%)", ylim=(0, 100))
    for axis in (above, below):
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(work_dir / "curves.png", dpi=120)
    return last


def transcripts(corpus: Path, work_dir: Path, count: int = 3) -> str:
    """The first utterances of validation set 1, as spoken and as recognised."""
    with open(corpus / "val_seen_voices.json", encoding="utf-8") as manifest:
        lines = [json.loads(line) for line in islice(manifest, count)]
    files = [str(corpus / line["audio_filepath"]) for line in lines]
    heard = run("jasper_infer.py", "--load_dir", str(work_dir / "checkpoints"), *files).splitlines()[-count:]
    pairs = zip(lines, heard, strict=True)
    return "\n".join(f"  spoken:     {line['text']}\n  recognised: {text.partition(': ')[2]}" for line, text in pairs)


def main() -> None:
    """Train, draw, transcribe, and say where everything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the corpus")
    parser.add_argument("--work_dir", type=Path, required=True, help="folder for the results; an old one is replaced")
    parser.add_argument("--num_epochs", type=int, default=NUM_EPOCHS, help="epochs to train")
    args = parser.parse_args()
    shutil.rmtree(args.work_dir, ignore_errors=True)
    train(args.corpus, args.work_dir, args.num_epochs)
    rates = curves(args.work_dir)
    print("\nThree utterances of validation set 1:\n" + transcripts(args.corpus, args.work_dir))
    for name, words in SETS.items():
        print(f"WER on {words}: {rates[name]:.2%}")
    print(
        f"Curves: {args.work_dir / 'curves.png'}; DAGs: {args.work_dir / 'training.svg'}; all results: {args.work_dir}"
    )


if __name__ == "__main__":
    with reported_to_user():
        main()
