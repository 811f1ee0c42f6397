"""Golden runs: what the scripts of examples/asr compute, print and save, before and after a refactoring.

    python benchmarks/golden.py record golden.json                          # on the unchanged source
    python benchmarks/golden.py compare golden.json [--only losses,errors] [--full]
    python benchmarks/golden.py small [--update]                            # half a minute; CI runs it

A comparison runs everything again and prints, for each section, what differs and a line that sums it up. Exit code 0:
all is equal; 1: something differs, or a run that should succeed fails; 2: misuse. The corpus is made anew each time:
tones, one for each letter. Scripts run as processes of their own, one thread each, on the CPU, in a temporary folder,
with the packages of this checkout; the cases are in golden_cases.py. Nothing here reads the insides of nemo_lite, only
command lines, documented output files and public names. The sections:

- losses: each scalar in TensorBoard's events, to the last bit: losses of training, losses and rates of evaluation; and
  the losses that golden_api.py computes with the Python interface. One process and two.
- rates: the lines with word and character error rates.
- transcripts: transcript files of jasper_eval.py, output of jasper_infer.py, sentences of demo.py.
- checkpoints: names of the files; of each tensor name, shape, type and SHA-256; all else that the files say.
- plan: the text of --plan, its pictures, and the text, Mermaid and SVG of DAGs made in Python.
- errors: exit code, error text and files left behind of user mistakes, two processes included.
- logs: what the runs that succeed print, and the names of all files they leave.

Times, paths, ports, process ids, host names and the places of log lines in the source are taken out. Bits of a loss
are those of one machine and one version of torch: record and compare on the same. Two minutes on two idle cores. Not
covered: GPUs, float16, several machines, Slurm and MPI, ONNX, Weights & Biases, ``curves.png`` of demo.py.

The small form runs ten of the cases and compares them twice. With ``golden_small.json`` of this checkout: rates,
transcripts, plans, error texts, names and shapes of what is saved, and losses within 0.1 %. And with the source of the
commit that last changed that file, run here and now: losses, transcripts and saved tensors, to the last bit. After a
change of results that is meant, ``small --update`` writes the file, and the commit says why.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import io
import json
import math
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from golden_cases import SMALL
from golden_runs import Run, run_all

MOST_LINES = 40
ROOT = Path(__file__).resolve().parents[1]
SMALL_RECORD = Path(__file__).resolve().with_name("golden_small.json")

Document = dict[str, Any]


# The sections: what is kept of a run


def losses(run: Run) -> object:
    """Every scalar of TensorBoard's events: tag -> its values, which are float32, with their steps."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[str]] = {}
    for path in run.files("events.out.tfevents.*"):
        events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        for tag in (tag for tag in events.Tags()["scalars"] if not tag.endswith("time")):
            values = [
                f"step {event.step}: {float(event.value).hex()} ({event.value:.6g})" for event in events.Scalars(tag)
            ]
            found.setdefault(tag, []).extend(values)
    return {**found, **api(run, "losses")}


def api(run: Run, section: str) -> dict[str, Any]:
    """What golden_api.py wrote for this section."""
    return {
        key: value for path in run.files("api.json") for key, value in json.loads(path.read_text())[section].items()
    }


def rates(run: Run) -> object:
    return run.matching(r"\b(WER|CER|Evaluation (Loss|errors))\b")


def transcripts(run: Run) -> object:
    files = {run.name_of(path): path.read_text().splitlines() for path in run.files("*.transcripts.jsonl")}
    said = run.matching(r"^(\S+\.(wav|flac): |  (spoken|recognised): )")
    return {**files, **({"printed": said} if said else {})}


def checkpoints(run: Run) -> object:
    """Each file in a folder of checkpoints: a tensor's type, shape and digest; the metadata of the file."""
    found: dict[str, object] = {}
    for path in run.files("*-STEP-*") + run.files("*-EPOCH-*") + run.files("record.json"):
        if path.suffix == ".safetensors":
            found[run.name_of(path)] = tensors(path)
        else:
            found[run.name_of(path)] = path.read_text().splitlines()
    return found


def tensors(path: Path) -> dict[str, object]:
    """The file's format is public: the length of a JSON header, the header, the bytes."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    described: dict[str, object] = {"metadata": header.pop("__metadata__", None)}
    for name, tensor in header.items():
        first, last = tensor["data_offsets"]
        digest = hashlib.sha256(content[end + first : end + last]).hexdigest()
        described[name] = f"{tensor['dtype']} {tensor['shape']} {digest}"
    return described


def plan(run: Run) -> object:
    pictures = {run.name_of(path): path.read_text().splitlines() for path in run.files("*.svg") + run.files("plan.txt")}
    printed = {"printed": run.out} if "--plan" in run.case.words else {}
    return {**pictures, **printed, **api(run, "plan")}


def errors(run: Run) -> object:
    left = [run.name_of(path) for path in run.files()]
    return {"exit": run.codes, "told": run.err, "left": left}


def logs(run: Run) -> object:
    left = [run.name_of(path) for path in run.files()]
    return {"exit": run.codes, "out": run.out, "err": run.err, "left": left}


SECTIONS: dict[str, Callable[[Run], object]] = {
    function.__name__: function for function in (losses, rates, transcripts, checkpoints, plan, errors, logs)
}


def make_document(sections: Sequence[str], names: Container[str] | None = None) -> tuple[Document, list[str]]:
    """Run everything, or the cases with these names.

    Returns what is to be recorded, and a line for each run that should have succeeded and did not.
    """
    libraries = {name: version(name) for name in ("torch", "numpy", "safetensors")}
    document: Document = {
        "made with": {"python": platform.python_version(), "cpu": torch.backends.cpu.get_cpu_capability(), **libraries}
    }
    document.update((name, {}) for name in sections)
    failed = []
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        for run in run_all(Path(folder).resolve(), sections, names):
            if any(run.codes) and not run.is_mistake:
                last = "\n  ".join(line for lines in run.err for line in lines[-5:])
                failed.append(f"{run.case.name} ended with {run.codes}:\n  {last}")
            for name in sections:
                is_of_section = run.is_mistake == (name == "errors")
                if is_of_section and (kept := SECTIONS[name](run)):
                    document[name][run.case.name] = kept
    return document, failed


# Comparing


def flat(value: object, path: str = "") -> Iterator[str]:
    """A line for each leaf, which starts with its path: so a line that differs says where it is."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from flat(value[key], f"{path}/{key}" if path else key)
    elif isinstance(value, list):
        for item in value:
            yield from flat(item, path)
    else:
        yield f"{path}: {value}"


def differences(old: Document, new: Document, sections: Sequence[str], most: int | None = MOST_LINES) -> dict[str, str]:
    """The sections that differ, and how, in at most so many lines."""
    found = {}
    for name in sections:
        before, after = list(flat(old.get(name, {}))), list(flat(new.get(name, {})))
        if before == after:
            continue
        lines = list(difflib.unified_diff(before, after, "recorded", "now", n=0, lineterm=""))
        rest = len(lines) - len(lines[:most])
        found[name] = "\n".join(lines[:most] + ([f"... and {rest} more lines; see them with --full"] if rest else []))
    return found


def compare(old: Document, sections: Sequence[str], most: int | None) -> int:
    """Run everything again and print what differs; the exit code."""
    new, failed = make_document(sections)
    if old["made with"] != new["made with"]:
        print(f"Recorded with {old['made with']}, now {new['made with']}: losses may differ for that reason\n")
    found = differences(old, new, sections, most)
    for name, text in found.items():
        print(f"== {name}\n{text}\n")
    for problem in failed:
        print(f"failed: {problem}")
    for name in sections:
        count = f"{len(list(flat(old[name])))} values recorded"
        print(f"{name + ':':13}{'DIFFERS' if name in found else 'equal'} ({count})")
    return 1 if found or failed else 0


def record(path: Path, names: Container[str] | None = None) -> int:
    """Run everything, or these cases, and write it, unless a run fails that should succeed; the exit code."""
    document, failed = make_document(list(SECTIONS), names)
    for problem in failed:
        print(f"failed: {problem}")
    if failed:
        print("Nothing is recorded: mend these runs first")
        return 1
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(f"Recorded in {path}: " + ", ".join(f"{name} of {len(document[name])} runs" for name in SECTIONS))
    return 0


# The small form


def small(update: bool) -> int:
    """Run the small cases and compare them with the recorded results and with the recorded source; the exit code."""
    new, failed = make_document(list(SECTIONS), SMALL)
    for problem in failed:
        print(f"failed: {problem}")
    if update and not failed:
        SMALL_RECORD.write_text(json.dumps(portable(new), indent=1, ensure_ascii=False) + "\n")
        print(f"Recorded in {SMALL_RECORD}; commit it, and say why the results changed")
        return 0
    old = json.loads(SMALL_RECORD.read_text())
    changes = differences(rounded(old, old), rounded(portable(new), old), list(old))
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        base = document_of_recorded_source(Path(folder))
    if base is None:
        print("The source of the record is not in this clone: nothing is compared to the last bit")
    else:
        bits = differences(base, new, ("losses", "transcripts"))
        tensors_now, tensors_then = (list(flat(digests(document))) for document in (new, base))
        if tensors_now != tensors_then:
            bits["tensors"] = f"{len(set(tensors_now) ^ set(tensors_then))} lines differ"
        changes.update((f"{name}, to the last bit", text) for name, text in bits.items())
    for name, text in changes.items():
        print(f"== {name}\n{text}\n")
    print("golden: " + ("DIFFERS" if changes or failed else f"equal ({len(list(flat(new)))} values)"))
    return 1 if changes or failed else 0


def portable(document: Document) -> Document:
    """What does not depend on the machine: losses as decimal numbers, saved tensors without digests, no logs."""
    losses = {
        run: {
            tag: [float(re.sub(r"^.*\((.*)\)$", r"\1", value)) for value in values]
            for tag, values in tags.items()
            if values and values[0].startswith("step ") and values[0].endswith(")")
        }
        for run, tags in document["losses"].items()
    }
    # The model has learned the set "dev" by heart; what it hears in "other" may differ on another processor.
    rates = {
        run: [line for line in lines if "Loss" not in line and "other" not in line]
        for run, lines in document["rates"].items()
    }
    transcripts = {
        run: {name: text for name, text in files.items() if "other" not in name}
        for run, files in document["transcripts"].items()
    }
    checkpoints = {
        run: {name: shapes(content) for name, content in files.items()}
        for run, files in document["checkpoints"].items()
    }
    plans = {
        run: {name: picture_digest(lines) if name.endswith(".svg") else lines for name, lines in content.items()}
        for run, content in document["plan"].items()
        if run != "api"
    }
    return {
        "losses": losses,
        "rates": rates,
        "transcripts": transcripts,
        "checkpoints": checkpoints,
        "plan": plans,
        "errors": document["errors"],
    }


def picture_digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def shapes(content: object) -> object:
    """Of a file with tensors: their types and shapes. Of another file: that it is there."""
    if not isinstance(content, dict):
        return "written"
    return {name: text.rpartition(" ")[0] for name, text in content.items() if name != "metadata"}


def digests(document: Document) -> dict[str, object]:
    """The saved tensors with their SHA-256, without all else that checkpoints say (times, digests of the source)."""
    return {
        f"{run}/{name}": {tensor: text for tensor, text in content.items() if tensor != "metadata"}
        for run, files in document["checkpoints"].items()
        for name, content in files.items()
        if isinstance(content, dict)
    }


def rounded(document: Document, reference: Document) -> Document:
    """The document with each loss that is within 0.1 % of the reference's replaced by the reference's."""

    def near(values: list[float], expected: list[float]) -> list[float]:
        if len(values) != len(expected):
            return values
        pairs = zip(values, expected, strict=True)
        return [e if math.isclose(v, e, rel_tol=1e-3, abs_tol=1e-6) else v for v, e in pairs]

    expected = reference["losses"]
    losses = {
        run: {tag: near(values, expected.get(run, {}).get(tag, [])) for tag, values in tags.items()}
        for run, tags in document["losses"].items()
    }
    return {**document, "losses": losses}


def document_of_recorded_source(folder: Path) -> Document | None:
    """The small cases of the commit that last changed the record; None where git does not have it."""
    git = ["git", "-C", str(ROOT)]
    log = subprocess.run([*git, "log", "-1", "--format=%H", "--", str(SMALL_RECORD)], capture_output=True, text=True)
    if log.returncode or not (commit := log.stdout.strip()):
        return None
    source, record_file = folder / "source", folder / "golden.json"
    source.mkdir()
    archive = subprocess.run([*git, "archive", commit], capture_output=True)
    if archive.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(source, filter="data")
    print(f"Comparing to the last bit with the source of commit {commit[:12]}", flush=True)
    command = [sys.executable, str(source / "benchmarks" / "golden.py"), "record", "--small", str(record_file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    document: Document = json.loads(record_file.read_text())
    return document


def sections_of(text: str) -> list[str]:
    """Names between commas."""
    names = text.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no section {', '.join(unknown)}; known: {', '.join(SECTIONS)}")
    return names


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run everything and write FILE")
    recording.add_argument("file", type=Path)
    recording.add_argument("--small", action="store_true", help="only the cases of the small form")
    checking = commands.add_parser("small", help="run ten cases and compare them with the record of this checkout")
    checking.add_argument("--update", action="store_true", help=f"write {SMALL_RECORD.name} in the place of comparing")
    comparing = commands.add_parser("compare", help="run everything again and print what differs from FILE")
    comparing.add_argument("file", type=Path)
    comparing.add_argument("--only", type=sections_of, default=list(SECTIONS), help="sections, separated by commas")
    comparing.add_argument("--full", action="store_true", help="print all that differs")
    args = parser.parse_args()
    if args.command == "record":
        if not args.file.absolute().parent.is_dir():
            parser.error(f"{args.file}: there is no folder {args.file.parent}; make it first")
        return record(args.file, SMALL if args.small else None)
    if args.command == "small":
        return small(args.update)
    try:
        old = json.loads(args.file.read_text())
        lacking = [name for name in ("made with", *args.only) if name not in old]
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"{args.file} cannot be read as a record: {error}; make one with: record {args.file}")
    if lacking:
        parser.error(f"{args.file} is no complete record: it lacks {', '.join(lacking)}; make one with: record FILE")
    return compare(old, args.only, None if args.full else MOST_LINES)


if __name__ == "__main__":
    sys.exit(main())
