"""Error rates of a trained model on manifests; of two models, with --compare, and whether they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from nemo_asr.argparse import EvalArgParser, refuse_options_of_texts
from nemo_asr.run.cli.transcribe import MODEL_MISSING, Segments, check_segments, cutting_of
from nemo_asr.run.options import (
    WITH_WEIGHTS,
    MetricOptions,
    ReadingOptions,
    SearchArguments,
    TextOptions,
    WeightSearch,
    check_search_options,
)
from nemo_asr.scoring.leaderboard import CLONE, PREFIX
from nemo_lite.base.errors import NemoLiteError, UsageError
from nemo_lite.base.options import option, option_group


def main(arguments: Sequence[str]) -> None:
    """Evaluate a model that transcribes, or a classifier."""
    parser = EvalParser(prog="nemo-lite eval", description="Error rates of a trained model")
    args = parser.parse_args(arguments)
    from nemo_asr.commands.class_evaluation import evaluate_classes  # torch, which --help does not need
    from nemo_asr.commands.evaluation import evaluate_texts
    from nemo_asr.trained.fine_tuning import task_of_model

    try:
        task = task_of_model(args.load_dir)
    except NemoLiteError:  # loading the model will say what is wrong with it
        task = "transcription"
    if task == "classification":
        refuse_options_of_texts(parser, args)
        if args.decoder != "greedy":
            parser.error("--decoder is for models that transcribe; leave it out")
        evaluate_classes(args)
    else:
        evaluate_texts(args)


@option_group
class EvaluationOptions:
    """What is evaluated, and what is written."""

    page: ClassVar[str] = "data"
    eval_datasets: list[str] = option([], "manifests, each a set of its own", nargs="+", required=True)
    out: str | None = option(
        None, "folder for the transcripts (default: results/NAME, by the name of the model)", metavar="FOLDER"
    )
    overwrite: bool = option(False, "replace files in OUT that no evaluation wrote, or that were changed since")
    compare: str | None = option(
        None,
        "a second model: it is evaluated too, into OUT/compared, and a paired test says whether they differ",
        only_for="texts",
        metavar="MODEL",
        nargs="?",
        const="",
    )
    details: bool = option(
        False,
        "print error rates by speaker and by length, and the words most often lost, inserted and confused",
        only_for="texts",
    )
    leaderboard: str | None = option(
        None,
        "score as the public Open ASR leaderboard does, by the normaliser of this checkout of its repository, which "
        "runs; writes OUT/.eval_results/open_asr_leaderboard.yaml",
        only_for="texts",
        metavar="FOLDER",
        nargs="?",
        const="",
    )
    report: bool = option(True, "write OUT/report.html: curves, error rates, the worst utterances")
    segments: Literal["energy", "off"] = option(
        "off",
        "take utterances as the manifest has them (off), as training does; or cut recordings at pauses as transcribe "
        "does (energy)",
        only_for="texts",
        page="segments",
    )
    vad: str | None = option(
        None, "a voice-activity model in the place of levels, as of transcribe", page="segments", metavar="MODEL"
    )
    stream: bool = option(
        False,
        "hear the utterances as streams by frames as well: a table of latency, speed and error rates, also in the "
        "model's card, and whether the texts are those of whole recordings. With the options of beam search both are "
        "searched so",
        only_for="texts",
    )
    certify: bool = option(
        False,
        "hear up to 50 utterances of each set in batches, in another order, beside longer ones, in windows, as a "
        "stream and by other threads: text, times and durations must be those of each alone. The certificate goes into "
        "the model's card",
        only_for="texts",
    )


class EvalParser(EvalArgParser):
    """The options of ``nemo-lite eval``: also models in front of the options or between them.

    ``A ...`` is ``--load_dir A ...``, and ``A B ... --compare`` is ``--load_dir A ... --compare B``.
    """

    groups = (
        EvaluationOptions,
        Segments,
        *EvalArgParser.groups,
        ReadingOptions,
        MetricOptions,
        SearchArguments,
        TextOptions,
        WeightSearch,
    )
    most_used = f"{EvalArgParser.most_used} segments"
    pages: ClassVar[dict[str, str]] = {
        **EvalArgParser.pages,
        "segments": "whether recordings are cut at pauses, and where",
    }

    on_missing = MODEL_MISSING

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.usage = "%(prog)s MODEL [MODEL_B --compare] --eval_datasets MANIFEST ... [options]"
        self._option_string_actions["--load_dir"].required = False
        self.add_argument("models", metavar="MODEL", nargs="*", help=f"{WITH_WEIGHTS}; with --compare two")

    def check(self, parsed: Any) -> None:
        """The models become ``load_dir`` and ``compare``; what would have no effect ends the script.

        Raises:
            UsageError: more than one model without --compare, or more than two.
        """
        super().check(parsed)
        models = [model for model in (parsed.load_dir, *parsed.models, parsed.compare) if model]
        if not models:
            self.error("the following arguments are required: MODEL")
        if len(models) != (1 if parsed.compare is None else 2):
            wanted = "one model, or two and --compare"
            raise UsageError("the models cannot be evaluated together", got=" ".join(models), wanted=wanted)
        parsed.load_dir, parsed.compare = models[0], models[1] if len(models) > 1 else None
        del parsed.models
        check_search_options(self, parsed)
        check_segments(self, parsed)
        parsed.cutting = cutting_of(parsed)
        if parsed.cutting and parsed.search_weights:
            self.error(
                "--search_weights hears recordings as they are, not cut: leave --segments out, then give --weights "
                "OUT/weights.json"
            )
        if parsed.stream and (parsed.compare or parsed.cutting):
            self.error("--stream hears one model, and recordings as they are; leave --compare and --segments out")
        if parsed.certify and (parsed.compare or parsed.cutting):
            self.error("--certify hears one model, and recordings as they are; leave --compare and --segments out")
        if parsed.leaderboard == "":
            self.error(f"argument --leaderboard: no checkout is named; {CLONE}")
        if parsed.leaderboard:
            if parsed.compare or parsed.score_normalizer:
                self.error(
                    "--leaderboard scores one model, and by its own normaliser: without --compare, --score_normalizer"
                )
            parsed.score_normalizer = PREFIX + parsed.leaderboard
        if parsed.compare and (parsed.overrides or parsed.model_config):
            self.error(
                "--compare takes models as they are; evaluate changed ones alone, then: nemo-lite compare OUT OUT"
            )
