"""Before a release: the wheel and the source archive installed elsewhere, with the newest of everything.

Of each Python: a new environment, ``pip install`` of the wheel as a user does it, a script of a user's checked by
``mypy --strict``, the demo with little data; then the same package from the source archive. ``make release-check`` runs
it, for some with ``PYTHONS="3.11 3.13"``. An environment is in ``TMPDIR`` and is removed after its turn; on Linux torch
comes with CUDA. A Python that fails or is missing has its line, the others still run, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# Measured on Linux with torch 2.15, on two cores that others used too.
NEEDS = "up to 9 GB, 3 GB of downloads and 41 minutes"
ROOT = Path(__file__).resolve().parents[1]
DEMO = ["demo", "--utterances", "16", "--num_epochs", "1"]
DEMO_FILES = ("model/model.json", "report.html", "curves.png", "new.wav")
# What a user may write, with the types that the package promises.
SCRIPT = """
import nemo_asr
import nemo_lite as nemo

factory = nemo.NeuralModuleFactory(random_seed=1)
model = nemo_asr.load_model("runs/demo")
texts: list[str] = [transcript.text for transcript in model.transcribe(["a.wav"])]
steps: int = len(texts)
"""
VERSIONS = """
import importlib.metadata, json
print(json.dumps({package.name: package.version for package in importlib.metadata.distributions()}))
"""


def main() -> int:
    """Check each Python; 1 where one fails or is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=["3.11", "3.12", "3.13", "3.14"], help="versions to try")
    versions = parser.parse_args().pythons
    failed = [version for version in versions if not starts(f"python{version}")]
    here = [version for version in versions if version not in failed]
    for version in failed:
        print(f"Python {version}: not found; install it, or name those to try: PYTHONS='3.11 3.12'", flush=True)
    with tempfile.TemporaryDirectory() as name:
        packages: tuple[Path, Path] | None = None
        for version in here:
            started = time.perf_counter()
            try:
                packages = packages or built(Path(name))
                told = checked(version, *packages)
            except CheckError as error:
                told, failed = str(error), [*failed, version]
            print(f"Python {version}: {told} ({time.perf_counter() - started:.0f} s)", flush=True)
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


class CheckError(Exception):
    """A step failed; the text says which."""


def starts(python: str) -> bool:
    """Whether this Python is here. pyenv has a command for a version that is switched off, too, which only fails."""
    return shutil.which(python) is not None and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def built(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source archive of what is committed."""
    free = shutil.disk_usage(folder).free / 1e9
    commit = run(["git", "describe", "--always"], ROOT).strip()
    print(f"Commit {commit}. Each Python takes {NEEDS}; {free:.0f} GB are free in {tempfile.gettempdir()}.", flush=True)
    source = folder / "source"
    run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), source], folder)
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source], folder)
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    run([sys.executable, "-c", build], source)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def checked(version: str, wheel: Path, archive: Path) -> str:
    """Try both under a Python; what was installed, in words.

    Raises:
        CheckError: a step fails.
    """
    with tempfile.TemporaryDirectory(prefix="release-") as name:  # mypy reads the settings of folders around
        folder = Path(name)
        run([f"python{version}", "-m", "venv", folder / "venv"], folder)
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-cache-dir"]
        run([*pip, "install", f"{wheel}[demo]", "mypy"], folder)
        size = sum(path.lstat().st_size for path in (folder / "venv").rglob("*")) / 1e9
        check_installed(folder / "venv/bin", folder / "of_the_wheel")
        run([*pip, "install", "--no-deps", "--force-reinstall", archive], folder)
        check_installed(folder / "venv/bin", folder / "of_the_archive")
        versions = json.loads(run([folder / "venv/bin/python", "-c", VERSIONS], folder))
    tested = ", ".join(f"{name} {versions[name]}" for name in ("torch", "numpy", "mypy"))
    return f"works with {tested}; {len(versions)} packages, {size:.1f} GB"


def check_installed(programs: Path, place: Path) -> None:
    """The command's demo, and the types, in a new folder."""
    place.mkdir()
    (place / "script.py").write_text(SCRIPT)
    run([programs / "mypy", "--strict", "script.py"], place)
    run([programs / "nemo-lite", *DEMO], place)
    for file in DEMO_FILES:
        if not (place / "runs/demo" / file).is_file():
            raise CheckError(f"nemo-lite demo wrote no {file}")


def run(command: Sequence[str | Path], folder: Path) -> str:
    """What a program prints.

    Raises:
        CheckError: it fails.
    """
    words = [str(word) for word in command]
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    finished = subprocess.run(words, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise CheckError(f"{' '.join(words)} failed:\n{finished.stdout}\n{finished.stderr}")
    return finished.stdout


if __name__ == "__main__":
    sys.exit(main())
