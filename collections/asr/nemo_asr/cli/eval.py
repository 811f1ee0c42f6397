"""Error rates of a trained model on manifests; of two models, with --compare, and whether they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nemo_asr.argparse import EvalArgParser, add_data_options, add_language_option, add_metric_option, add_report_option
from nemo_asr.options import add_search_options, check_search_options
from nemo_lite.errors import NemoLiteError, UsageError

_OF_TEXTS = ("compare", "details", "eval_metric", "search_weights")


def main(arguments: Sequence[str]) -> None:
    """Evaluate a model that transcribes, or a classifier."""
    parser = EvalParser(prog="nemo-lite eval", description="Error rates of a trained model")
    args = parser.parse_args(arguments)
    from nemo_asr.evaluation import evaluate_classes, evaluate_texts  # imports torch, which --help does not need
    from nemo_asr.transcribe.fine_tuning import task_of_model

    try:
        task = task_of_model(args.load_dir)
    except NemoLiteError:  # loading the model will say what is wrong with it
        task = "transcription"
    if task == "classification":
        parser.refuse_options_of_texts(args)
        evaluate_classes(args)
    else:
        evaluate_texts(args)


class EvalParser(EvalArgParser):
    """The options of ``nemo-lite eval``: also models in front of the options or between them.

    ``A ...`` is ``--load_dir A ...``, and ``A B ... --compare`` is ``--load_dir A ... --compare B``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.usage = "%(prog)s MODEL [MODEL_B --compare] --eval_datasets MANIFEST ... [options]"
        self._option_string_actions["--load_dir"].required = False
        add = self.add_argument
        add("models", metavar="MODEL", nargs="*", help="as --load_dir; with --compare two")
        add("--eval_datasets", nargs="+", required=True, help="manifests, each a set of its own")
        add("--out", default=".", help="folder for the transcripts (default: here)")
        details_help = (
            "print error rates by speaker and by length, and the words most often lost, inserted and confused"
        )
        add("--details", action="store_true", help=details_help)
        compare_help = (
            "a second model: it is evaluated too, into OUT/compared, and a paired test says whether they differ"
        )
        add("--compare", metavar="MODEL", nargs="?", const="", help=compare_help)
        add_report_option(self, "OUT/report.html")
        add_data_options(self)
        add_language_option(self)
        add_metric_option(self)
        add_search_options(self, with_weight_search=True)

    def check(self, parsed: Any) -> None:
        """The models become ``load_dir`` and ``compare``; what would have no effect ends the script.

        Raises:
            UsageError: more than one model without --compare, or more than two.
        """
        super().check(parsed)
        models = [model for model in (parsed.load_dir, *parsed.models, parsed.compare) if model]
        if not models:
            self.error("the following arguments are required: --load_dir")
        if len(models) != (1 if parsed.compare is None else 2):
            wanted = "one model, or two and --compare"
            raise UsageError("the models cannot be evaluated together", got=" ".join(models), wanted=wanted)
        parsed.load_dir, parsed.compare = models[0], models[1] if len(models) > 1 else None
        del parsed.models
        check_search_options(self, parsed)
        if parsed.compare and (parsed.overrides or parsed.model_config):
            self.error(
                "--compare takes models as they are; evaluate changed ones alone, then: nemo-lite compare OUT OUT"
            )

    def refuse_options_of_texts(self, parsed: Any) -> None:
        """End the script where an option is given that the evaluation of a classifier does not have."""
        for option in _OF_TEXTS:
            if getattr(parsed, option):
                self.error(f"--{option} is for models that transcribe; leave it out")
        if parsed.decoder != "greedy":
            self.error("--decoder is for models that transcribe; leave it out")
