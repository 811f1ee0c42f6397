"""Before a release: the wheel and the source archive installed elsewhere, with the newest of everything.

Of each Python: a new environment, ``pip install`` of the wheel as a user does it, a script of a user's checked by
``mypy --strict``, the demo with little data; then the same package from the source archive. ``make release-check`` runs
it. An environment takes up to 6 GB of ``TMPDIR`` on Linux, where torch comes with CUDA, and is removed after its turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from shutil import which

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


def main() -> int:
    """Check each Python; 1 where one fails or is not there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="*", default=["3.11", "3.12", "3.13", "3.14"], help="versions")
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        wheel, archive = built(Path(name))
        for version in parser.parse_args().pythons:
            started = time.perf_counter()
            try:
                told = checked(version, wheel, archive)
            except CheckError as error:
                told, failed = str(error), [*failed, version]
            print(f"Python {version}: {told} ({time.perf_counter() - started:.0f} s)", flush=True)
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


class CheckError(Exception):
    """A step failed; the text says which."""


def built(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source archive of what is committed."""
    source = folder / "source"
    run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), source], folder)
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source], folder)
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    run([sys.executable, "-c", build], source)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def checked(version: str, wheel: Path, archive: Path) -> str:
    """Try both under a Python; what was installed, in words.

    Raises:
        CheckError: this Python is not here, or a step fails.
    """
    python = which(f"python{version}")
    if python is None:
        raise CheckError("not found; install it, or name those to try")
    with tempfile.TemporaryDirectory(prefix="release-") as name:  # mypy reads the settings of folders around
        folder = Path(name)
        run([python, "-m", "venv", folder / "venv"], folder)
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-cache-dir"]
        run([*pip, "install", f"{wheel}[demo]", "mypy"], folder)
        size = sum(path.lstat().st_size for path in (folder / "venv").rglob("*")) / 2**30
        check_installed(folder / "venv/bin", folder / "of_the_wheel")
        run([*pip, "install", "--no-deps", "--force-reinstall", archive], folder)
        check_installed(folder / "venv/bin", folder / "of_the_archive")
        listed = json.loads(run([*pip, "list", "--format", "json"], folder))
    versions = {package["name"].lower(): package["version"] for package in listed}
    return f"works with torch {versions['torch']}, numpy {versions['numpy']}, {len(listed)} packages, {size:.1f} GiB"


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
