"""Word error rate of a trained model on manifests, with every hypothesis written beside its reference.

    python examples/asr/jasper_eval.py --load_dir runs/Jasper --eval_datasets test-clean.json test-other.json \
        --out results

Beside the transcripts lies OUT/<set>.scores.json: the rates with 95 % intervals, by speaker, by length and by word;
``--details`` prints them too. ``--compare MODEL`` evaluates a second model on the same sets, and tests whether the two
differ. ``--decoder beam`` with ``--lm``, ``--lexicon`` or ``--hotwords`` takes the place of greedy decoding, for both.

Started by torchrun, the processes share the work; the result is the same.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import nemo_asr
import nemo_lite as nemo
from nemo_asr.argparse import EvalArgParser, add_data_options, add_language_option, add_metric_option, add_report_option
from nemo_asr.decoding.beam_search import search_weights, write_weights
from nemo_asr.decoding.greedy import post_process_predictions, post_process_transcripts
from nemo_asr.options import add_search_options, check_search_options, search_arguments, unique_tags
from nemo_asr.scoring.rates import count_errors
from nemo_asr.scoring.report.page import compare_folders, comparison_table, try_report
from nemo_asr.scoring.report.records import score_transcripts, scores_table, write_scores
from nemo_asr.text.labels import main_metric
from nemo_lite.errors import reported_to_user
from nemo_lite.files import make_writable_folder
from nemo_lite.utils.argparse import factory_arguments


def describe_rates(heard: list[str], said: list[str], metric: str) -> str:
    """Both error rates, the one that comes first with its errors."""
    rates = {"wer": count_errors(heard, said), "cer": count_errors(heard, said, use_cer=True)}
    first, unit = rates.pop(metric), "words" if metric == "wer" else "characters"
    errors = f"{first.insertions} insertions, {first.deletions} deletions, {first.substitutions} substitutions"
    others = ", ".join(f"{name.upper()} {counts.rate:.2%}" for name, counts in rates.items())
    return f"{metric.upper()} {first.rate:.2%} ({errors} in {first.reference_length} {unit}), {others}"


def tell_scores(name: str, transcripts: Path, path: Path, metric: str, with_tables: bool) -> None:
    """Print the intervals of the rates, and with tables where the errors are; write all of it as JSON."""
    scores = score_transcripts(transcripts)
    write_scores(path, scores)
    print(f"{name}: {scores.interval_line(metric)}; by speaker, length and word in {path}")
    if with_tables:
        print(f"\n{scores_table(scores)}\n")


def evaluate(
    model: nemo_asr.TrainedModel, args: Namespace, factory: nemo.NeuralModuleFactory, folder: Path, name: str = ""
) -> list[str]:
    """Evaluate every set, print its error rates, and write its transcripts; the names of the sets.

    ``name`` of the model stands before the rates, where there are two.
    """
    recipe, manifests = model.recipe, zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True)
    given: dict[str, Any] = {"batch_size": args.batch_size, **({"strict_data": True} if args.strict_data else {})}
    data = {tag: recipe.data_layer(path, training=False, **given) for tag, path in manifests}
    out = factory.on_first(lambda: make_writable_folder(folder))
    for tag, data_layer in data.items():
        _, *wires = nemo_asr.connect(model.modules, data_layer).scored  # all but the loss
        heard: list[str] = []
        said: list[str] = []
        for predictions, texts, lengths in factory.infer_batches(wires):  # comes out on rank 0
            heard += post_process_predictions([predictions], recipe.labels)
            said += post_process_transcripts([texts], [lengths], recipe.labels)
        if out is None:
            continue
        # Damaged files end the evaluation, unless the configuration allows some: then they are left out here too.
        scored = factory.get_trainer().inferred
        assert scored is not None, "infer has run"
        assert scored.items is not None, "data layers of speech number their items"
        said = nemo_asr.references_in_data(data_layer, scored.items, said)
        heard = nemo_asr.hypotheses_in_data(data_layer, heard)
        path = out / f"{tag}.transcripts.jsonl"
        nemo_asr.write_transcripts(path, data_layer, scored.items, said, heard)
        metric = args.eval_metric or main_metric(recipe.labels)
        print(f"{name}{tag}: {describe_rates(heard, said, metric)}")
        print(f"{name}{tag}: {scored.num_items} utterances, ids {scored.digest}, transcripts in {path}")
        if said:
            tell_scores(f"{name}{tag}", path, out / f"{tag}.scores.json", metric, args.details)
    if args.report:
        facts = {"model": f"{model.place}, step {model.card.step}"}
        factory.on_first(lambda: try_report(folder, sets=list(data), facts=facts))
    return list(data)


def use_search(model: nemo_asr.TrainedModel, args: Namespace, factory: nemo.NeuralModuleFactory, folder: Path) -> None:
    """Let the search that is asked for take the place of greedy decoding, with weights from ``--search_weights``."""
    given = search_arguments(args)
    if given is None:
        return
    decoder = nemo_asr.BeamSearchCTCDecoder(model.recipe.labels, **given)
    model.modules = replace(model.modules, greedy=decoder)
    if not args.search_weights:
        return
    layer = model.recipe.data_layer(args.search_weights, training=False, batch_size=args.batch_size)
    found = nemo_asr.connect(model.modules, layer)
    wires = [found.log_probs, found.log_probs_lengths, found.transcripts, found.transcript_lengths]
    use_cer = (args.eval_metric or main_metric(model.recipe.labels)) == "cer"
    trials = search_weights(
        decoder,
        [wire for wire in wires if wire is not None],
        factory,
        lambda heard, said: count_errors(heard, said, use_cer).errors,
    )
    path = folder / "weights.json"
    best, worst = trials[0], trials[-1]
    factory.on_first(lambda: write_weights(make_writable_folder(folder) / path.name, args.search_weights, trials))
    factory.on_first(
        lambda: print(
            f"{args.search_weights}: alpha {best.alpha:g} and beta {best.beta:g} make {best.errors} errors, the fewest "
            f"of {len(trials)} trials (the most: {worst.errors}); in {path}"
        )
    )


def make_parser() -> EvalArgParser:
    """The options."""
    parser = EvalArgParser(description="Word error rate of a trained model")
    parser.add_argument("--eval_datasets", nargs="+", required=True, help="manifests, each a set of its own")
    parser.add_argument("--out", default=".", help="folder for the transcripts (default: here)")
    details_help = "print error rates by speaker and by length, and the words most often lost, inserted and confused"
    parser.add_argument("--details", action="store_true", help=details_help)
    compare_help = "a second model: it is evaluated too, into OUT/compared, and a paired test says whether they differ"
    parser.add_argument("--compare", metavar="MODEL", help=compare_help)
    add_report_option(parser, "OUT/report.html")
    add_data_options(parser)
    add_language_option(parser)
    add_metric_option(parser)
    add_search_options(parser, with_weight_search=True)
    return parser


def main() -> None:
    """Evaluate one model, or with --compare two and whether they differ."""
    parser = make_parser()
    args = parser.parse_args()
    check_search_options(parser, args)
    if args.compare and (args.overrides or args.model_config):
        parser.error("--compare takes models as they are; evaluate changed ones alone, then: nemo-lite compare OUT OUT")
    recipe = nemo_asr.load_recipe(args.model_config, args.overrides) if args.model_config else None
    factory = nemo.NeuralModuleFactory(**factory_arguments(args))
    model = nemo_asr.load_model(args.load_dir, recipe=recipe, factory=factory, overrides=args.overrides)
    second = nemo_asr.load_model(args.compare, factory=factory) if args.compare else None
    use_search(model, args, factory, Path(args.out))
    sets = evaluate(model, args, factory, Path(args.out), "A, " if second else "")
    if second is not None:
        use_search(second, args, factory, Path(args.out) / "compared")
        evaluate(second, args, factory, Path(args.out) / "compared", "B, ")
        factory.on_first(lambda: print_comparison(args, sets))


def print_comparison(args: Namespace, sets: list[str]) -> None:
    """A table of both models, from the transcripts that were just written."""
    compared = compare_folders(args.out, Path(args.out) / "compared", sets=sets)
    print("\n" + comparison_table(compared, args.load_dir, args.compare))


if __name__ == "__main__":
    with reported_to_user():
        main()
