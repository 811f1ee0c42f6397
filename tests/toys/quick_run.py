"""A script that looks like a training: forty steps in two seconds, a checkpoint every third, no torch."""

from pathlib import Path

SCRIPT = """
import json, pathlib, random, signal, sys, time
words = sys.argv[1:]
if "--fail" in words:
    sys.exit(print("no such corpus") or 3)
folder = pathlib.Path(words[words.index("--work_dir") + 1], "x")
folder.mkdir(parents=True, exist_ok=True)
state, stopped = folder / "state.json", []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
step, draw = 0, random.Random(0)
if state.exists():
    step, (version, numbers, gauss) = json.loads(state.read_text())
    if "--forget-generator" not in words:
        draw.setstate((version, tuple(numbers), gauss))
def save():
    new = folder / "new"
    new.write_text(json.dumps([step, draw.getstate()]))
    new.replace(state)
while step < 40:
    if stopped:
        save()
        sys.exit(75)
    step += 1
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "step": step, "loss": draw.random()}) + "\\n")
    if step % 3 == 0:
        save()
    time.sleep(0.05)
"""


def script(folder: Path) -> Path:
    """Write it into a folder."""
    path = folder / "quick_run.py"
    path.write_text(SCRIPT)
    return path
