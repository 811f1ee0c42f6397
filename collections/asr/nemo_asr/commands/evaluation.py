"""Error rates of models that transcribe, for ``nemo-lite eval`` and the scripts; and what is written of them.

What a model recognises of a set: `recognised_sets`. Classifiers: `class_evaluation`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nemo_asr.commands.recognised_sets import (
    RecognisedSet,
    pauses_line,
    recognise_segments,
    recognise_utterances,
    recordings_of,
    with_recordings,
)
from nemo_asr.data.scored_texts import clusters_in_data, normalizer_for, texts_to_score, write_transcripts
from nemo_asr.decoding.beam_search import search_weights, write_weights
from nemo_asr.run.engines import TranscriptionSettings
from nemo_asr.run.onnx.voice_activity import load_detector
from nemo_asr.run.options import SearchOptions, named_files, results_folder, search_options, unique_tags
from nemo_asr.run.search.words import Spelling, weighted_phrases
from nemo_asr.run.text.labels import main_metric
from nemo_asr.run.transcribe.transcript import Transcript
from nemo_asr.scoring.hotwords import score_hotwords, words_of
from nemo_asr.scoring.leaderboard import (
    RESULTS_FILE,
    check_leaderboard,
    leaderboard_rate,
    load_leaderboard,
    results_yaml,
)
from nemo_asr.scoring.rates import count_errors
from nemo_asr.scoring.report.comparison import (
    COMPARE,
    COMPARED,
    COMPARISON_FILE,
    compare_folders,
    comparison_table,
    write_comparison,
)
from nemo_asr.scoring.report.page import PAGE_FILE, REPORT, try_report
from nemo_asr.scoring.report.set_scores import score_rows, scores_table, write_scores
from nemo_asr.scoring.report.transcripts import read_transcripts
from nemo_asr.scoring.sclite import ENDINGS, FOLDER, write_sclite
from nemo_asr.tasks.family import connect, search_of
from nemo_asr.tasks.recipe import load_recipe
from nemo_asr.trained.certificate import certify_streams, store_certificates, store_stream_rates, stream_table
from nemo_asr.trained.folder import CARD, Certificate, StreamRate, find_model
from nemo_asr.trained.invariance import Difference, certificate_table, certify
from nemo_asr.trained.model import TrainedModel, load_model, tell_prompt
from nemo_lite import DataLayerNM, NeuralModule, NeuralModuleFactory
from nemo_lite.base.errors import NemoLiteError, UsageError
from nemo_lite.base.files import check_writable_folder, make_writable_folder
from nemo_lite.base.options import factory_arguments
from nemo_lite.base.outputs import InputFiles, check_output, write_output

PROGRAM = "nemo-lite eval"
_TRANSCRIPTS, _SCORES, _WEIGHTS = "transcripts.jsonl", "scores.json", "weights.json"
_MOST_CERTIFIED, _MOST_DIFFERING = 50, 3  # utterances of a set that are heard in several ways; that are told


def evaluate_texts(args: Namespace) -> None:
    """Evaluate one model that transcribes, or with --compare two and whether they differ.

    Args:
        args: what the parser of ``nemo-lite eval`` gave.
    """
    recipe = load_recipe(args.model_config, args.overrides) if args.model_config else None
    factory = NeuralModuleFactory(**factory_arguments(args))
    if factory.world_size > 1 and (args.stream or args.certify):
        option, got = "--stream" if args.stream else "--certify", f"{factory.world_size} ranks"
        raise UsageError(f"{option} hears recordings in one process", got=got, remedy="run it without a launcher")
    out = results_folder(args)
    factory.on_first(lambda: _check_places(args, out))
    if args.leaderboard:
        factory.on_first(lambda: check_leaderboard(args.leaderboard))
    model = load_model(args.load_dir, recipe=recipe, factory=factory, overrides=args.overrides)
    second = load_model(args.compare, factory=factory) if args.compare else None
    if args.head is not None:
        model = model.with_head(args.head)
        second = second and second.with_head(args.head)
    models = [model] if second is None else [model, second]
    for each in models:
        tell_prompt(each, args)
        _use_search(each, args)
    data, data_of_second = _data_layers(model, args), _data_layers(second, args) if second else {}
    if args.stream:
        model.streamed(factory)  # or the reason why it cannot
    if (args.stream or args.certify) and (folder := _folder_of_card(args)) is not None:
        check_writable_folder(folder)
    _find_weights(model, args, factory, out)
    _evaluate_sets(model, data, args, factory, out, "A, " if second else "")
    if args.leaderboard:
        factory.on_first(lambda: _write_leaderboard(args, out, list(data)))
    if args.stream:
        _evaluate_streams(model, data, args, factory)
    if args.certify:
        _certify(model, data, args, factory)
    if second is not None:
        of_second = second
        _find_weights(second, args, factory, out / COMPARED)
        _evaluate_sets(second, data_of_second, args, factory, out / COMPARED, "B, ")
        factory.on_first(lambda: _compare(args, out, list(data), model, of_second))


def _check_places(args: Namespace, out: Path) -> None:
    """UsageError where files cannot be written, or one is there that may not be replaced; before any work is done."""
    check_writable_folder(out)
    tags, inputs = unique_tags(args.eval_datasets), InputFiles(named_files(args))
    if args.compare:
        check_output(out / COMPARISON_FILE, COMPARE, inputs=inputs, overwrite=args.overwrite)
    if args.leaderboard:
        check_output(out / RESULTS_FILE, PROGRAM, inputs=inputs, overwrite=args.overwrite)
    for folder in (out, *([out / COMPARED] if args.compare else [])):
        names = [f"{tag}.{ending}" for tag in tags for ending in (_TRANSCRIPTS, _SCORES)]
        names += [f"{FOLDER}/{tag}.{ending}" for tag in tags for ending in ENDINGS]
        names += [_WEIGHTS] if args.search_weights else []
        for name in names:
            check_output(folder / name, PROGRAM, inputs=inputs, overwrite=args.overwrite)
        if args.report:
            check_output(folder / PAGE_FILE, REPORT, inputs=inputs, overwrite=args.overwrite)


def _data_layers(model: TrainedModel, args: Namespace) -> dict[str, DataLayerNM]:
    """The sets by their names. UsageError: an option needs recordings, and a set has none."""
    manifests = zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True)
    options: dict[str, Any] = {"batch_size": args.batch_size, **({"strict_data": True} if args.strict_data else {})}
    data = {tag: model.recipe.data_layer(path, training=False, **options) for tag, path in manifests}
    needing = {"--segments energy": args.cutting, "--stream": args.stream, "--certify": args.certify}
    for option in (option for option, asked in needing.items() if asked):
        for data_layer in data.values():
            with_recordings(data_layer, option)
    return data


def _evaluate_sets(
    model: TrainedModel,
    data: Mapping[str, DataLayerNM],
    args: Namespace,
    factory: NeuralModuleFactory,
    folder: Path,
    name: str = "",
) -> None:
    """Evaluate every set, print its error rates, and write its transcripts.

    ``name`` of the model stands before the rates, where there are two.
    """
    recipe = model.recipe
    detector = load_detector(args.vad) if args.vad else None

    def recognised(layer: DataLayerNM, search: NeuralModule | None = None) -> RecognisedSet:
        if args.cutting is None:
            return recognise_utterances(model, layer, factory, search)
        settings = TranscriptionSettings(
            args.batch_size, search=search, cutting=args.cutting, detector=detector, verbose=True
        )
        return recognise_segments(model, layer, factory, settings, args.strict_data)

    out = factory.on_first(lambda: make_writable_folder(folder))
    for tag, data_layer in data.items():
        result, without_hotwords = recognised(data_layer), list[str]()
        search = search_options(args)
        if args.hotwords and search is not None:
            plain_search = search_of(model.modules, recipe.labels, search.without_hotwords())
            without_hotwords = recognised(data_layer, plain_search).hypotheses
        if out is None:
            continue
        # Damaged files end the evaluation, unless the configuration allows some: then they are left out here too.
        texts = texts_to_score(data_layer, result.items, result.references, result.hypotheses, args.score_normalizer)
        said, heard = texts.references, texts.hypotheses
        if args.hotwords:
            plain = texts_to_score(data_layer, result.items, result.references, without_hotwords, args.score_normalizer)
            without_hotwords = plain.hypotheses
        path = out / f"{tag}.{_TRANSCRIPTS}"
        more: list[dict[str, Any]] = [{} for _ in heard]
        for values, transcript in zip(more, result.transcripts, strict=False):
            values["segments"] = _segments_of(transcript)
        for values, text in zip(more, without_hotwords, strict=False):
            values["without_hotwords"] = text
        lines = partial(write_transcripts, data_layer=data_layer, items=result.items, more=more, **texts._asdict())
        _write(path, lines, args)
        metric = args.eval_metric or main_metric(recipe.labels)
        print(f"{name}{tag}: {_describe_rates(heard, said, metric)}")
        ids = data_layer.digest_of(result.items)
        print(f"{name}{tag}: {len(result.items)} utterances, ids {ids}, transcripts in {path}")
        if args.cutting:
            number = sum(len(transcript.segments) for transcript in result.transcripts)
            print(f"{name}{tag}: {number} segments, cut at pauses as transcribe cuts them")
        elif line := pauses_line(data_layer):
            print(f"{name}{tag}: {line}")
        if said:
            rows = read_transcripts(path)
            scores, scores_file = score_rows(rows), out / f"{tag}.{_SCORES}"
            hotwords = None
            if args.hotwords:
                split = words_of(recipe.labels)
                hot = list(weighted_phrases(args.hotwords, Spelling(recipe.labels)))
                if args.score_normalizer:  # as the texts that they are looked for in
                    hot = list(map(normalizer_for(data_layer, args.score_normalizer), hot))
                clusters = clusters_in_data(data_layer, result.items)
                hotwords = score_hotwords(hot, said, without_hotwords, heard, split, clusters)
            _write(scores_file, partial(write_scores, scores=scores, hotwords=hotwords), args)
            print(f"{name}{tag}: {scores.interval_line(metric)}; by speaker, length and word in {scores_file}")
            if line := scores.variants_line(metric):
                print(f"{name}{tag}: {line}")
            files = write_sclite(out / FOLDER, tag, rows, result.words, write=partial(_write, args=args))
            print(f"{name}{tag}: for sclite {', '.join(str(file) for file in files)}")
            for line in hotwords.lines() if hotwords else ():
                print(f"{name}{tag}: {line}")
            if args.details:
                print(f"\n{scores_table(scores)}\n")
    if args.report:
        facts = _facts({"model": model}, args)
        factory.on_first(lambda: try_report(folder, sets=list(data), facts=facts, overwrite=args.overwrite))


def _facts(models: Mapping[str, TrainedModel], args: Namespace) -> dict[str, str]:
    """What stands first in a report."""
    facts = {name: f"{model.place}, step {model.card.step}" for name, model in models.items()}
    return {**facts, **({"recordings": f"cut at pauses by {args.vad or 'their levels'}"} if args.cutting else {})}


def _write_leaderboard(args: Namespace, out: Path, sets: Sequence[str]) -> None:
    """Print the rates as the public leaderboard counts them, and write them for a model's repository."""
    version, rates = load_leaderboard(args.leaderboard).version, {}
    for tag in sets:
        rows = read_transcripts(out / f"{tag}.{_TRANSCRIPTS}")
        rate = leaderboard_rate([row.reference for row in rows], [row.hypothesis for row in rows])
        rates[tag] = rate
        errors = f"{rate.insertions} insertions, {rate.deletions} deletions, {rate.substitutions} substitutions"
        how = f"of {rate.num_utterances} utterances, open_asr_leaderboard {version}"
        print(f"{tag}: WER {rate.percent:.2f}% as the leaderboard counts ({errors}), {how}")
    path = out / RESULTS_FILE
    make_writable_folder(path.parent)
    text = results_yaml(rates, version)
    _write(path, partial(Path.write_text, data=text, encoding="utf-8"), args)
    print(f"The file for the model's repository is {path}")


def _folder_of_card(args: Namespace) -> Path | None:
    """The model folder whose card gets what --stream and --certify find; None: there is none, or of another head."""
    folder = find_model(args.load_dir)
    return folder if args.head is None and (folder / CARD).is_file() else None


def _evaluate_streams(
    model: TrainedModel, data: Mapping[str, DataLayerNM], args: Namespace, factory: NeuralModuleFactory
) -> None:
    """Print what the model's streams are worth, and store it in its card where it is a model folder."""
    rates: list[StreamRate] = []
    for tag, data_layer in data.items():
        layer = with_recordings(data_layer, "--stream")
        rows = range(len(layer))
        texts = [layer.utterance_of(row).text for row in rows]
        said = texts_to_score(layer, list(rows), texts, texts, args.score_normalizer).references
        search = _describe_search(model, args)
        recordings = recordings_of(layer, rows, args.strict_data)
        measured = certify_streams(model, tag, recordings, said, factory, search=search)
        how = f"{measured[0].chunk_seconds:g} s of audio at a time{search and f', {search}'}"
        print(f"{tag}: as streams, {how}\n\n{stream_table(measured)}\n")
        rates += measured
    if _folder_of_card(args) is not None:
        print(f"The table is in {store_stream_rates(args.load_dir, rates)}")


def _certify(
    model: TrainedModel, data: Mapping[str, DataLayerNM], args: Namespace, factory: NeuralModuleFactory
) -> None:
    """Print whether transcripts depend on how the model is run, and store it in its card where it is a model folder.

    Raises:
        NemoLiteError: some do.
    """
    certificates: list[Certificate] = []
    differences: list[Difference] = []
    search = _describe_search(model, args)
    for tag, data_layer in data.items():
        layer = with_recordings(data_layer, "--certify")
        rows = np.unique(np.linspace(0, len(layer) - 1, min(len(layer), _MOST_CERTIFIED)).astype(np.int64)).tolist()
        certificate, found = certify(model, tag, recordings_of(layer, rows, args.strict_data), factory, search)
        print(f"{tag}: {certificate.utterances} utterances\n\n{certificate_table(certificate)}\n")
        certificates.append(certificate)
        differences += found
    if _folder_of_card(args) is not None:
        print(f"The certificate is in {store_certificates(args.load_dir, certificates)}")
    if differences:
        got = "; ".join(map(str, differences[:_MOST_DIFFERING]))
        number = f"{len(differences)} transcripts are others, such as {got}"
        raise NemoLiteError("transcripts depend on how the model is run", place=model.place, got=number)


def _segments_of(transcript: Transcript) -> list[dict[str, Any]]:
    """The segments of a recording that was cut, as a line of transcripts has them."""
    segments = zip(transcript.segments, transcript.segment_texts(), strict=True)
    return [{**span._asdict(), "text": text} for span, text in segments]


def _use_search(model: TrainedModel, args: Namespace) -> None:
    """Let the search that is asked for take the place of greedy decoding."""
    options = search_options(args)
    if options is not None:
        model.modules = replace(model.modules, search=search_of(model.modules, model.recipe.labels, options))


def _find_weights(model: TrainedModel, args: Namespace, factory: NeuralModuleFactory, folder: Path) -> None:
    """Let the search have the weights that are best on ``--search_weights``."""
    if not args.search_weights:
        return
    search = model.modules.search
    assert search is not None, "check_search_options refuses --search_weights without one"
    layer = model.recipe.data_layer(args.search_weights, training=False, batch_size=args.batch_size)
    dag = connect(model.modules, layer)
    _, _, *texts = dag.scored
    use_cer = (args.eval_metric or main_metric(model.recipe.labels)) == "cer"
    trials = search_weights(
        search,
        dag.predictions.call.inputs,
        texts,
        model.recipe.labels,
        factory,
        lambda heard, said: count_errors(heard, said, use_cer).errors,
    )
    path = folder / _WEIGHTS
    best, worst = trials[0], trials[-1]
    lines = partial(write_weights, source=args.search_weights, trials=trials)
    factory.on_first(lambda: _write(make_writable_folder(folder) / path.name, lines, args))
    factory.on_first(
        lambda: print(
            f"{args.search_weights}: alpha {best.alpha:g} and beta {best.beta:g} make {best.errors} errors, the fewest "
            f"of {len(trials)} trials (the most: {worst.errors}); in {path}"
        )
    )


def _describe_search(model: TrainedModel, args: Namespace) -> str:
    """The options of the search that took the place of the model's own; empty: none did. Hot words are counted only."""
    options = search_options(args)
    if options is None:
        return ""
    used: SearchOptions = getattr(model.modules.search, "options", options)  # with what was not asked for
    told = [f"beam_size {used.beam_size}"] if used.beam_size is not None else []
    told += [f"{name} {Path(path).name}" for name, path in (("lexicon", options.lexicon), ("lm", options.lm)) if path]
    weights = {
        "hotwords": len(options.hotwords) or None,
        "hotword_weight": used.hotword_weight if options.hotwords else None,
        "alpha": used.alpha if options.lm else None,
        "beta": used.beta,
    }
    return ", ".join([*told, *(f"{name} {value:g}" for name, value in weights.items() if value is not None)])


def _describe_rates(heard: list[str], said: list[str], metric: str) -> str:
    """Both error rates, the one that comes first with its errors."""
    rates = {"wer": count_errors(heard, said), "cer": count_errors(heard, said, use_cer=True)}
    first, unit = rates.pop(metric), "words" if metric == "wer" else "characters"
    others = ", ".join(f"{name.upper()} {counts.rate:.2%}" for name, counts in rates.items())
    return f"{metric.upper()} {first.rate:.2%} ({first} in {first.reference_length} {unit}), {others}"


def _compare(args: Namespace, out: Path, sets: list[str], model: TrainedModel, second: TrainedModel) -> None:
    """A table of both models from the transcripts that were just written, as JSON too; the report has both."""
    compared = compare_folders(out, out / COMPARED, sets=sets)
    print("\n" + comparison_table(compared, args.load_dir, args.compare))
    path = write_comparison(out, compared, args.load_dir, args.compare, overwrite=args.overwrite)
    print(f"\nThe comparison is in {path}")
    if args.report:
        facts = _facts({"A": model, "B": second}, args)
        try_report(out, sets=sets, facts=facts, overwrite=args.overwrite, beside=out / COMPARED)


def _write(path: Path, write: Callable[[Path], object], args: Namespace) -> None:
    write_output(path, write, PROGRAM, overwrite=args.overwrite)
