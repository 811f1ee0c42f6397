"""Make a spoken corpus, train a small model on it, and show what it recognises."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from nemo_asr.corpora import synth
from nemo_asr.shipped import run_script
from nemo_lite.errors import UsageError
from nemo_lite.utils.argparse import OneLineParser, positive_int

_NEEDED = ("espeakng_loader", "matplotlib")


def main(arguments: Sequence[str]) -> None:
    """Make the corpus, unless it is there, and run ``examples/asr/demo.py``.

    Raises:
        UsageError: a package that only the demo needs is missing.
    """
    parser = OneLineParser(prog="nemo-lite demo", description=__doc__)
    parser.add_argument("--corpus", default="data/synth", help="folder of the corpus; one that is complete stays")
    parser.add_argument("--work_dir", default="runs/demo", help="folder for the results; an old one is replaced")
    parser.add_argument("--utterances", type=positive_int, help="size of the training set to make (default: 3600)")
    parser.add_argument("--num_epochs", type=positive_int, help="epochs to train (default: 10)")
    args = parser.parse_args(arguments)
    missing = [package for package in _NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        remedy = "pip install espeakng-loader matplotlib"
        raise UsageError(f"packages are missing: {', '.join(missing)}", remedy=remedy)
    synth.main([args.corpus, *_sizes(args.utterances)], parser.prog)
    epochs = () if args.num_epochs is None else ("--num_epochs", str(args.num_epochs))
    run_script("demo.py", "demo", ["--corpus", args.corpus, "--work_dir", args.work_dir, *epochs])


def _sizes(utterances: int | None) -> list[str]:
    """Options of the corpus maker: the validation sets are an eighth of a small training set, and as large as ever."""
    if utterances is None:
        return []
    validation = str(min(synth.Arguments.val1, max(1, utterances // 8)))
    return ["--train", str(utterances), "--val1", validation, "--val2", validation]
