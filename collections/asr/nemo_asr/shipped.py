"""The scripts and configurations that come with the package: where they are, configurations by name.

A wheel carries them inside the package (``setup.py``); in a checkout they are in ``examples/asr``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from nemo_lite import logging
from nemo_lite.base.errors import ConfigError, UsageError, did_you_mean
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.options import OneLineParser

_PACKAGE = Path(__file__).resolve().parent
# Where NeMo's guides have its configurations, below one folder or another.
_IN_GUIDES = ("examples", "asr", "configs")
# Configurations of other toolkits, by the names in their guides -> ours of the same model and corpus.
_OTHER_NAMES = {"train_conformer": "conformer_aishell", "train_u2++_conformer": "u2pp_aishell"}
_PLACES = (_PACKAGE / "examples", _PACKAGE.parents[2] / "examples" / "asr")


def examples_folder() -> Path:
    """The folder of the scripts; their configurations are in ``configs`` below it."""
    return next(place for place in _PLACES if (place / "configs").is_dir())


def config_path(name_or_path: str | os.PathLike[str]) -> Path:
    """The file that is meant by a path, or by the name of a configuration that comes with the package.

    A file wins over a name: ``quartznet15x5`` is the one of that name in the current folder, else ours. A path as in
    NeMo's guides, ``.../examples/asr/configs/jasper15x5SEP.yaml``, stands for the name where there is no such file; so
    does WeNet's ``train_conformer.yaml`` for ``conformer_aishell``.

    Raises:
        ConfigError: a name, not a path, that is neither; with the nearest name and all known ones.
    """
    path = Path(name_or_path)
    if path.stem in _OTHER_NAMES and path.suffix in ("", ".yaml") and not path.exists():
        ours = _OTHER_NAMES[path.stem]
        logging.info("%s is not there: taking %s, the configuration here for the same model", path, ours)
        path = Path(ours)
    is_name = path.parent == Path()
    if path.is_file() or not path.name or not (is_name or path.parent.parts[-3:] == _IN_GUIDES):
        return path
    shipped = {file.stem: file for file in sorted((examples_folder() / "configs").glob("*.yaml"))}
    if path.suffix in ("", ".yaml") and path.stem in shipped:
        if not is_name:
            logging.info("%s is not there: taking the %s that comes with nemo_lite", path, path.stem)
        return shipped[path.stem]
    if path.suffix or not is_name:
        return path
    names = f"{', '.join(shipped)}{did_you_mean(path.name, shipped)}"
    raise ConfigError(f"{name_or_path}: is neither a file nor the name of a configuration; known names: {names}")


def examples(arguments: Sequence[str]) -> None:
    """Copy the scripts and configurations that come with the package, to change them.

    ``copy DIR`` writes them into a folder, over no file that is there.

    Raises:
        UsageError: a file is there already, or the folder cannot be written to.
    """
    description = "Copy the scripts and configurations that come with the package, to change them."
    parser = OneLineParser(prog="nemo-lite examples", description=description)
    copy = parser.add_subparsers(metavar="copy", required=True).add_parser("copy", help="write them into a folder")
    copy.add_argument("folder", type=Path, help="made where it is missing")
    target = parser.parse_args(arguments).folder.expanduser()
    source = examples_folder()
    files = [file.relative_to(source) for file in (*source.glob("*.py"), *source.glob("configs/*.yaml"))]
    there = sorted(target / file for file in files if os.path.lexists(target / file))
    if there:
        raise UsageError("a file of this name is there already", place=str(there[0]), remedy="give another folder")
    for file in files:
        make_writable_folder((target / file).parent)
        shutil.copyfile(source / file, target / file)
    print(f"{len(files)} files in {target}: python {target / 'jasper.py'} --help")
