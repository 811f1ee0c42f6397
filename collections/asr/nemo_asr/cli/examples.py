"""Copy the scripts and configurations that come with the package, to change them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from nemo_asr.shipped import examples_folder
from nemo_lite.errors import UsageError
from nemo_lite.files import make_writable_folder
from nemo_lite.options import OneLineParser


def main(arguments: Sequence[str]) -> None:
    """``copy DIR``: write them into a folder, over no file that is there.

    Raises:
        UsageError: a file is there already, or the folder cannot be written to.
    """
    parser = OneLineParser(prog="nemo-lite examples", description=__doc__)
    copy = parser.add_subparsers(metavar="copy", required=True).add_parser("copy", help="write them into a folder")
    copy.add_argument("folder", type=Path, help="made where it is missing")
    target = parser.parse_args(arguments).folder.expanduser()
    source = examples_folder()
    files = [file.relative_to(source) for file in (*source.glob("*.py"), *source.glob("configs/*.yaml"))]
    there = sorted(target / file for file in files if (target / file).exists())
    if there:
        raise UsageError("a file of this name is there already", place=str(there[0]), remedy="give another folder")
    for file in files:
        make_writable_folder((target / file).parent)
        shutil.copyfile(source / file, target / file)
    print(f"{len(files)} files in {target}: python {target / 'jasper.py'} --help")
