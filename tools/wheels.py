"""Build both wheels of this checkout: nemo-lite, and nemo-lite-run, which recognises without PyTorch.

    python tools/wheels.py [--only run] FOLDER

nemo-lite-run holds what recognises (`nemo_asr.run`), the ground below it (`nemo_lite.base`), and the roots of both
packages. Install one of the two, as with onnxruntime and onnxruntime-gpu: they hold the same files. Version and
requirements are those of pyproject.toml.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COLLECTION = "collections/asr"
# Of nemo-lite-run: packages whole, and files.
PACKAGES = ("nemo_lite/base", f"{COLLECTION}/nemo_asr/run")
FILES = (
    *(f"nemo_lite/{name}" for name in ("__init__.py", "__init__.pyi", "__main__.py", "package_info.py", "py.typed")),
    *(f"nemo_lite/{name}" for name in ("config.pyi", "errors.pyi", "compat/__init__.py", "compat/paths.py")),
    *(f"{COLLECTION}/nemo_asr/{name}" for name in ("__init__.py", "__init__.pyi", "audio.pyi", "py.typed")),
    *(f"{COLLECTION}/nemo_asr/compat/{name}" for name in ("__init__.py", "paths.py")),
    *("README.md", "LICENSE"),
)
# Of what pyproject.toml requires; and of its extras, what a model in a file and the server need.
REQUIRED = ("numpy", "msgspec", "ruamel.yaml", "soundfile", "soxr", "rapidfuzz", "anyascii", "num2words")
EXTRAS_REQUIRED = ("serve",)
# Without silero-vad, which requires PyTorch; its file does not need it: pip install --no-deps silero-vad.
EXTRAS = ("subwords", "kenlm", "formats", "microphone", "completion")
COMMANDS = ("align", "serve", "transcribe")


def main() -> None:
    """Build the wheels into a folder."""
    parser = argparse.ArgumentParser(description="Build the wheels of nemo-lite and nemo-lite-run.")
    parser.add_argument("folder", type=Path, help="where the wheels go")
    parser.add_argument("--only", choices=["all", "run"], help="build one of the two: all for nemo-lite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for kind in ("all", "run") if options.only is None else (options.only,):
            source = Path(name) / kind
            copy_sources(source, kind)
            build(source, options.folder.resolve())


def copy_sources(folder: Path, kind: str) -> None:
    """Copy what a wheel is built of; a copy, since a build folder of the checkout could hold files that are gone."""
    ignored = shutil.ignore_patterns("__pycache__")
    if kind == "all":
        for tree in ("nemo_lite", "collections", "examples"):
            shutil.copytree(ROOT / tree, folder / tree, ignore=ignored)
        for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / file, folder)
        return
    for tree in PACKAGES:
        shutil.copytree(ROOT / tree, folder / tree, ignore=ignored)
    for file in FILES:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (folder / "pyproject.toml").write_text(project_of_run(project), encoding="utf-8")


def project_of_run(project: dict[str, Any]) -> str:
    """The pyproject.toml of nemo-lite-run, made of that of nemo-lite."""
    whole = project["project"]
    extras = whole["optional-dependencies"]
    onnxruntime = next(line for line in extras["onnx"] if name_of(line) == "onnxruntime")
    required = [line for line in whole["dependencies"] if name_of(line) in REQUIRED]
    required += [onnxruntime, *(line for extra in EXTRAS_REQUIRED for line in extras[extra])]
    commands = whole["entry-points"]["nemo_lite.commands"]
    package_data = project["tool"]["setuptools"]["package-data"]
    tables = {
        "build-system": project["build-system"],
        "project": {
            "name": "nemo-lite-run",
            "version": whole["version"],
            "description": "Speech recognition with exported models of nemo-lite, without PyTorch",
            **{key: whole[key] for key in ("readme", "requires-python", "license", "license-files", "classifiers")},
            "dependencies": required,
        },
        "project.optional-dependencies": {name: extras[name] for name in EXTRAS},
        "project.scripts": whole["scripts"],
        'project.entry-points."nemo_lite.commands"': {name: commands[name] for name in COMMANDS},
        "tool.setuptools.packages.find": project["tool"]["setuptools"]["packages"]["find"],
        "tool.setuptools.package-data": {
            "nemo_lite": package_data["nemo_lite"],
            "nemo_asr": [pattern for pattern in package_data["nemo_asr"] if not pattern.startswith("scoring/")],
        },
    }
    return "\n".join(table(name, values) for name, values in tables.items())


def name_of(requirement: str) -> str:
    """``"soxr>=0.3.7"`` -> ``"soxr"``."""
    return re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0]


def table(name: str, values: dict[str, Any]) -> str:
    """A table of TOML with texts and lists of texts, which JSON writes alike."""
    lines: Iterable[str] = (f"{key} = {json.dumps(value)}" for key, value in values.items())
    return "\n".join([f"[{name}]", *lines, ""])


def build(source: Path, folder: Path) -> None:
    """Build the wheel of a folder, with this process's setuptools."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), "."]
    subprocess.run(command, cwd=source, check=True)


if __name__ == "__main__":
    main()
