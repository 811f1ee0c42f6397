"""Error rates of a trained model on manifests; of two models, with --compare, and whether they differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from nemo_asr.shipped import load_script, run_script
from nemo_asr.transcribe.fine_tuning import evaluation_script
from nemo_lite.errors import UsageError


def main(arguments: Sequence[str]) -> None:
    """Run ``examples/asr/jasper_eval.py``, or ``classify_eval.py`` where the model is a classifier."""
    options = as_options(arguments)
    run_script(evaluation_script(options), "eval", options)


def as_options(arguments: Sequence[str]) -> list[str]:
    """``A ...`` becomes ``--load_dir A ...``, and ``A B ... --compare`` becomes ``--load_dir A ... --compare B``.

    The models stand before the options or behind them, as in ``--import my.py A``.

    Raises:
        UsageError: more than one model without --compare, or more than two.
    """
    models = list(takewhile(lambda word: not word.startswith("-"), arguments))
    rest = list(arguments[len(models) :])
    if not models:
        models = _models_between(rest)
        for model in models:  # the last of equal words: the others are values of options
            del rest[len(rest) - 1 - rest[::-1].index(model)]
    if not models:
        return rest
    if len(models) > 1:
        if len(models) > 2 or "--compare" not in rest:
            wanted = "one model, or two and --compare"
            raise UsageError("the models cannot be evaluated together", got=" ".join(models), wanted=wanted)
        rest.insert(rest.index("--compare") + 1, models[1])
    return ["--load_dir", models[0], *rest]


def _models_between(arguments: Sequence[str]) -> list[str]:
    """The words that belong to no option of the script."""
    if {"-h", "--help"} & set(arguments):
        return []
    parser = load_script("jasper_eval.py").make_parser()
    parser.prog = "nemo-lite eval"
    for action in parser._actions:
        action.required = False
    return [word for word in parser.parse_known_args(arguments)[1] if not word.startswith("-")]
