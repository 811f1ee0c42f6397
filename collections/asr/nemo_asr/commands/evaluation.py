"""Evaluation of trained models: error rates of texts, accuracy of classes; for ``nemo-lite eval`` and the scripts."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from nemo_asr.data.scored_texts import clusters_in_data, normalizer_for, texts_to_score, write_transcripts
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.decoding.beam_search import search_weights, write_weights
from nemo_asr.decoding.greedy import (
    post_process_predictions,
    post_process_transcripts,
)
from nemo_asr.decoding.times import frame_labels, labels_of_frames, timed_labels
from nemo_asr.run.audio.segments import frame_levels, frame_samples, longest_pause
from nemo_asr.run.engines import TranscriptionSettings
from nemo_asr.run.onnx.voice_activity import load_detector
from nemo_asr.run.options import SearchOptions, named_files, results_folder, search_options, unique_tags
from nemo_asr.run.search.search import TimedLabels
from nemo_asr.run.search.words import Spelling, weighted_phrases
from nemo_asr.run.text.labels import main_metric
from nemo_asr.run.transcribe.driver import transcribe
from nemo_asr.run.transcribe.inputs import Recording, recording_of_utterance
from nemo_asr.run.transcribe.transcript import Transcript, transcript_of
from nemo_asr.scoring.classification import (
    all_pairs,
    classification_accuracy,
    classification_confusion_matrix,
    equal_error_rate,
)
from nemo_asr.scoring.hotwords import score_hotwords, words_of
from nemo_asr.scoring.intervals import Clusters, bootstrap_interval, class_errors
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
    COMPARISON_FILE,
    compare_folders,
    comparison_table,
    write_comparison,
)
from nemo_asr.scoring.report.page import PAGE_FILE, REPORT, try_report
from nemo_asr.scoring.report.set_scores import score_rows, scores_table, write_scores
from nemo_asr.scoring.report.transcripts import read_transcripts
from nemo_asr.scoring.sclite import ENDINGS, FOLDER, TimedWord, write_sclite
from nemo_asr.tasks.families import connect_classifier
from nemo_asr.tasks.family import Wires, connect, data_of, search_of
from nemo_asr.tasks.recipe import load_recipe
from nemo_asr.trained.certificate import certify_streams, store_certificates, store_stream_rates, stream_table
from nemo_asr.trained.folder import CARD, Certificate, StreamRate, find_model
from nemo_asr.trained.invariance import Difference, certificate_table, certify
from nemo_asr.trained.model import ModelEngine, TrainedModel, load_classifier, load_model, tell_prompt
from nemo_asr.trained.windows import stride_of
from nemo_lite import Dag, DataLayerNM, NeuralModule, NeuralModuleFactory, NmTensor
from nemo_lite.backends.pytorch.data.loaders import Loaded, UnusableItems
from nemo_lite.base.errors import DataError, NemoLiteError, UsageError
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.options import factory_arguments
from nemo_lite.base.outputs import InputFiles, check_output, write_output
from nemo_lite.core.neural_types import AudioSignal

PROGRAM = "nemo-lite eval"
_TRANSCRIPTS, _SCORES, _WEIGHTS = "transcripts.jsonl", "scores.json", "weights.json"
_COMPARED = "compared"  # the folder in OUT of a second model
MOST_PAIRS = 5000  # recordings of which all pairs are compared
_MOST_CERTIFIED, _MOST_DIFFERING = 50, 3  # utterances of a set that are heard in several ways; that are told
# Utterances, evenly spread, in which pauses are looked for; seconds of them in all; seconds of a pause that is told.
_MOST_HEARD, _MOST_HEARD_SECONDS, _TOLD_PAUSE = 200, 3600.0, 0.5


def evaluate_texts(args: Namespace) -> None:
    """Evaluate one model that transcribes, or with --compare two and whether they differ.

    Args:
        args: what the parser of ``nemo-lite eval`` gave.
    """
    recipe = load_recipe(args.model_config, args.overrides) if args.model_config else None
    factory = NeuralModuleFactory(**factory_arguments(args))
    out = results_folder(args)
    factory.on_first(lambda: _check_places(args, out))
    if args.leaderboard:
        factory.on_first(lambda: check_leaderboard(args.leaderboard))
    model = load_model(args.load_dir, recipe=recipe, factory=factory, overrides=args.overrides)
    second = load_model(args.compare, factory=factory) if args.compare else None
    if args.head is not None:
        model = model.with_head(args.head)
        second = second and second.with_head(args.head)
    for each in (model, second):
        if each is not None:
            tell_prompt(each, args)
    _use_search(model, args, factory, out)
    sets = _evaluate_sets(model, args, factory, out, "A, " if second else "")
    if args.leaderboard:
        factory.on_first(lambda: _write_leaderboard(args, out, sets))
    if args.stream:
        _evaluate_streams(model, args, factory)
    if args.certify:
        _certify(model, args, factory)
    if second is not None:
        of_second = second
        _use_search(second, args, factory, out / _COMPARED)
        _evaluate_sets(second, args, factory, out / _COMPARED, "B, ")
        factory.on_first(lambda: _compare(args, out, sets, model, of_second))


def _check_places(args: Namespace, out: Path) -> None:
    """FileInTheWayError where a file is there that would be replaced and may not be; before any work is done."""
    tags, inputs = unique_tags(args.eval_datasets), InputFiles(named_files(args))
    if args.compare:
        check_output(out / COMPARISON_FILE, COMPARE, inputs=inputs, overwrite=args.overwrite)
    if args.leaderboard:
        check_output(out / RESULTS_FILE, PROGRAM, inputs=inputs, overwrite=args.overwrite)
    for folder in (out, *([out / _COMPARED] if args.compare else [])):
        names = [f"{tag}.{ending}" for tag in tags for ending in (_TRANSCRIPTS, _SCORES)]
        names += [f"{FOLDER}/{tag}.{ending}" for tag in tags for ending in ENDINGS]
        names += [_WEIGHTS] if args.search_weights else []
        for name in names:
            check_output(folder / name, PROGRAM, inputs=inputs, overwrite=args.overwrite)
        if args.report:
            check_output(folder / PAGE_FILE, REPORT, inputs=inputs, overwrite=args.overwrite)


def _evaluate_sets(
    model: TrainedModel, args: Namespace, factory: NeuralModuleFactory, folder: Path, name: str = ""
) -> list[str]:
    """Evaluate every set, print its error rates, and write its transcripts; the names of the sets.

    ``name`` of the model stands before the rates, where there are two.
    """
    recipe, manifests = model.recipe, zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True)
    options: dict[str, Any] = {"batch_size": args.batch_size, **({"strict_data": True} if args.strict_data else {})}
    data = {tag: recipe.data_layer(path, training=False, **options) for tag, path in manifests}
    detector = load_detector(args.vad) if args.vad else None

    def recognised(layer: DataLayerNM, search: NeuralModule | None = None) -> RecognisedSet:
        if args.cutting is None:
            return recognise_utterances(model, layer, factory, search)
        settings = TranscriptionSettings(
            args.batch_size, search=search, cutting=args.cutting, detector=detector, verbose=True
        )
        return recognise_segments(model, layer, factory, settings, args.strict_data)

    for data_layer in data.values() if args.cutting else ():
        with_recordings(data_layer, "--segments energy", "leave it out")
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
    return list(data)


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


def _evaluate_streams(model: TrainedModel, args: Namespace, factory: NeuralModuleFactory) -> None:
    """Print what the model's streams are worth, and store it in its card where it is a model folder."""
    rates: list[StreamRate] = []
    for tag, manifest in zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True):
        any_layer = model.recipe.data_layer(manifest, training=False, batch_size=args.batch_size)
        layer = with_recordings(any_layer, "--stream")
        rows = range(len(layer))
        texts = [layer.utterance_of(row).text for row in rows]
        said = texts_to_score(layer, list(rows), texts, texts, args.score_normalizer).references
        search = _describe_search(model, args)
        recordings = recordings_of(layer, rows, args.strict_data)
        measured = certify_streams(model, tag, recordings, said, factory, search=search)
        how = f"{measured[0].chunk_seconds:g} s of audio at a time{search and f', {search}'}"
        print(f"{tag}: as streams, {how}\n\n{stream_table(measured)}\n")
        rates += measured
    if args.head is None and (find_model(args.load_dir) / CARD).is_file():
        print(f"The table is in {store_stream_rates(args.load_dir, rates)}")


def _certify(model: TrainedModel, args: Namespace, factory: NeuralModuleFactory) -> None:
    """Print whether transcripts depend on how the model is run, and store it in its card where it is a model folder.

    Raises:
        NemoLiteError: some do.
    """
    certificates: list[Certificate] = []
    differences: list[Difference] = []
    search = _describe_search(model, args)
    for tag, manifest in zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True):
        any_layer = model.recipe.data_layer(manifest, training=False, batch_size=args.batch_size)
        layer = with_recordings(any_layer, "--certify")
        rows = np.unique(np.linspace(0, len(layer) - 1, min(len(layer), _MOST_CERTIFIED)).astype(np.int64)).tolist()
        certificate, found = certify(model, tag, recordings_of(layer, rows, args.strict_data), factory, search)
        print(f"{tag}: {certificate.utterances} utterances\n\n{certificate_table(certificate)}\n")
        certificates.append(certificate)
        differences += found
    if args.head is None and (find_model(args.load_dir) / CARD).is_file():
        print(f"The certificate is in {store_certificates(args.load_dir, certificates)}")
    if differences:
        got = "; ".join(map(str, differences[:_MOST_DIFFERING]))
        number = f"{len(differences)} transcripts are others, such as {got}"
        raise NemoLiteError("transcripts depend on how the model is run", place=model.place, got=number)


def _segments_of(transcript: Transcript) -> list[dict[str, Any]]:
    """The segments of a recording that was cut, as a line of transcripts has them."""
    segments = zip(transcript.segments, transcript.segment_texts(), strict=True)
    return [{**span._asdict(), "text": text} for span, text in segments]


class RecognisedSet(NamedTuple):
    """The texts of a set; on ranks above 0 none.

    Attributes:
        items: the positions of the utterances.
        references: what is said in each, as the data layer gives it.
        hypotheses: what was recognised.
        words: of each with their times; None where they are not known.
        transcripts: of recordings that were cut.
    """

    items: Sequence[int]
    references: list[str]
    hypotheses: list[str]
    words: list[list[TimedWord]] | None
    transcripts: Sequence[Transcript] = ()


def recognise_utterances(
    model: TrainedModel, data_layer: DataLayerNM, factory: NeuralModuleFactory, search: NeuralModule | None = None
) -> RecognisedSet:
    """The texts of utterances as the manifest has them, in the batches of the data layer, as evaluations in training
    compute them. Over several ranks each utterance comes once. All ranks call it.

    Args:
        model: with its search.
        data_layer: of any kind.
        factory: where it runs.
        search: in the place of the model's.
    """
    recipe, modules = model.recipe, model.modules
    wires_of_set = connect(modules if search is None else replace(modules, search=search), data_layer)
    _, *wires = wires_of_set.scored  # all but the loss
    times = None if recipe.reading.trim_silence else _times_of(wires_of_set, recipe.labels)
    hypotheses: list[str] = []
    references: list[str] = []
    words: list[list[TimedWord]] = []
    batches = factory.infer_batches([*wires, *(times.wires if times else [])])  # come out on rank 0
    for predictions, texts, lengths, *of_labels in batches:
        hypotheses += post_process_predictions([predictions], recipe.labels)
        references += post_process_transcripts([texts], [lengths], recipe.labels)
        if times:
            words += _timed_words(of_labels, recipe.labels, times.frame_samples, recipe.sample_rate)
    assert batches.items is not None, "data layers of speech number their items"
    return RecognisedSet(batches.items, references, hypotheses, words if times else None)


def recognise_segments(
    model: TrainedModel,
    data_layer: DataLayerNM,
    factory: NeuralModuleFactory,
    settings: TranscriptionSettings,
    strict: bool = False,
) -> RecognisedSet:
    """The texts of utterances whose recordings are cut at pauses, by the code of ``transcribe``. All ranks call it.

    Args:
        model: with its search.
        data_layer: has recordings.
        factory: where it runs.
        settings: how they are cut, and batches.
        strict: a file that is not as long as its line says cannot be read.

    Raises:
        DataError: more recordings cannot be read than the configuration allows.
    """
    assert isinstance(data_layer, SpeechDataLayer)
    settings = replace(
        settings,
        calibration=model.card.calibration,
        num_workers=data_layer.setting("num_workers", None) or 0,
        worker_timeout=data_layer.setting("worker_timeout", None),
        count_gaps=True,
    )
    recordings = recordings_of(data_layer, range(len(data_layer)), strict)
    transcripts, faults, _ = transcribe(ModelEngine(model, factory), recordings, settings)
    budget = data_layer.corrupt_budget(False)
    account = UnusableItems(
        data_layer.utterances.name, budget, data_layer.place_of, noun="utterance", remedy=data_layer.remedy
    )
    account.note(Loaded(None, faults=sorted(faults.items())))
    account.report()
    items = [item for item in range(len(data_layer)) if item not in faults] if transcripts else []
    references = [data_layer.utterance_of(item).text for item in items]
    words = [[TimedWord(word.text, word.start, word.end) for word in each.words] for each in transcripts]
    return RecognisedSet(items, references, [transcript.text for transcript in transcripts], words, transcripts)


def recordings_of(data_layer: SpeechDataLayer, rows: Iterable[int], strict: bool = False) -> list[Recording]:
    """Utterances of a data layer as recordings: those that ``transcribe`` makes of the lines of its manifest.

    Args:
        data_layer: has utterances. The content of those in archives is read here.
        rows: their positions.
        strict: a file that is not as long as its line says cannot be read.
    """
    reader = data_layer.utterances.reader
    return [recording_of_utterance(data_layer.utterance_of(row), reader, strict=strict) for row in rows]


def pauses_line(data_layer: DataLayerNM) -> str | None:
    """How many utterances have a pause of more than 0.5 s; None: none of them, or there are no recordings.

    At most 200 are read, evenly spread, and at most an hour of them.
    """
    if not _has_recordings(data_layer):
        return None
    number = len(data_layer)
    rows = np.unique(np.linspace(0, number - 1, min(number, _MOST_HEARD)).astype(np.int64))
    rows = rows[np.cumsum(data_layer.durations[rows]) <= _MOST_HEARD_SECONDS]
    pausing = sum(_has_pause(data_layer, row) for row in rows.tolist())
    if not pausing:
        return None
    spread = "" if len(rows) == number else ", evenly spread,"
    remedy = "--segments energy cuts there as transcribe does"
    return f"{pausing} of {len(rows)} utterances{spread} have pauses longer than {_TOLD_PAUSE:g} s: {remedy}"


def _has_pause(data_layer: SpeechDataLayer, row: int) -> bool:
    try:
        (recording,) = recordings_of(data_layer, [row])
        with recording.pieces() as (_, pieces, sample_rate):
            levels = frame_levels(pieces, sample_rate)
    except DataError:
        return False  # it has been told
    return longest_pause(levels, frame_samples(sample_rate) / sample_rate) > _TOLD_PAUSE


def with_recordings(data_layer: DataLayerNM, option: str, remedy: str = "") -> SpeechDataLayer:
    """The data layer, where it has the recordings that an option needs; else UsageError."""
    if _has_recordings(data_layer):
        return data_layer
    raise UsageError(f"{option} needs recordings, and this data layer has none", place=data_layer.label, remedy=remedy)


def _has_recordings(data_layer: DataLayerNM) -> TypeGuard[SpeechDataLayer]:
    """Whether its utterances are recordings, not features."""
    types = [ntype.elements_type for ntype in data_layer.output_ports.values()]
    return isinstance(data_layer, SpeechDataLayer) and any(isinstance(each, AudioSignal) for each in types)


class _Times(NamedTuple):
    """Wires that say when labels are said.

    Attributes:
        wires: ids, starts and ends (B, N, U) of hypotheses, the best first; samples (B,) of the recordings.
        frame_samples: how many samples a frame stands for.
    """

    wires: list[NmTensor]
    frame_samples: int


def _times_of(wires: Wires, labels: Sequence[str]) -> _Times | None:
    """Where the labels of a search lie in time; None where neither the search nor the model tells."""
    frame, search = stride_of(wires.frames), wires.predictions.call
    if frame is None:
        return None
    if of_frames := frame_labels(search, wires.log_probs, wires.log_probs_lengths):
        timed = labels_of_frames(of_frames[0], None, None, labels)
    else:
        (port,) = (port for port, wire in search.outputs.items() if wire is wires.predictions)
        timed = timed_labels(search, port, wires.log_probs, wires.log_probs_lengths, labels)
    num_samples = data_of(tuple(Dag([wires.frames]).data_node.outputs.values())).audio.lengths
    if num_samples is None or "starts" not in timed:
        return None
    return _Times([*(timed[name] for name in ("ids", "starts", "ends")), num_samples], frame)


def _timed_words(
    values: Sequence[Tensor], labels: list[str], frame_samples: int, sample_rate: int
) -> list[list[TimedWord]]:
    """The words of each utterance of a batch, from the values of :class:`_Times`."""
    rows = []
    for *of_labels, num_samples in zip(*(value.cpu() for value in values), strict=True):
        ids, starts, ends = (value[0].tolist() for value in of_labels)
        number = sum(label >= 0 for label in ids)
        found = TimedLabels(ids[:number], starts[:number], ends[:number], [0.0] * number)
        recording = Recording("", "", seconds=int(num_samples) / sample_rate)
        heard = transcript_of(found, labels, recording, frame_samples / sample_rate).words
        rows.append([TimedWord(word.text, word.start, word.end) for word in heard])
    return rows


def _use_search(model: TrainedModel, args: Namespace, factory: NeuralModuleFactory, folder: Path) -> None:
    """Let the search that is asked for take the place of greedy decoding, with weights from ``--search_weights``."""
    options = search_options(args)
    if options is None:
        return
    decoder = search_of(model.modules, model.recipe.labels, options)
    model.modules = replace(model.modules, search=decoder)
    if not args.search_weights:
        return
    layer = model.recipe.data_layer(args.search_weights, training=False, batch_size=args.batch_size)
    dag = connect(model.modules, layer)
    _, _, *texts = dag.scored
    use_cer = (args.eval_metric or main_metric(model.recipe.labels)) == "cer"
    trials = search_weights(
        decoder,
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
    compared = compare_folders(out, out / _COMPARED, sets=sets)
    print("\n" + comparison_table(compared, args.load_dir, args.compare))
    path = write_comparison(out, compared, args.load_dir, args.compare, overwrite=args.overwrite)
    print(f"\nThe comparison is in {path}")
    if args.report:
        facts = _facts({"A": model, "B": second}, args)
        try_report(out, sets=sets, facts=facts, overwrite=args.overwrite, beside=out / _COMPARED)


def evaluate_classes(args: Namespace) -> None:
    """Evaluate a classifier: accuracy and its interval; of a model with embeddings also the equal error rate.

    Writes OUT/<set>.classes.jsonl, with embeddings also OUT/<set>.npy (N, D) and OUT/<set>_labels.npy (N,).

    Args:
        args: as of `evaluate_texts`.
    """
    recipe = load_recipe(args.model_config, args.overrides) if args.model_config else None
    factory = NeuralModuleFactory(**factory_arguments(args))
    place = results_folder(args)
    factory.on_first(lambda: _check_places_of_classes(args, place))
    model = load_classifier(args.load_dir, recipe=recipe, factory=factory, overrides=args.overrides)
    options: dict[str, Any] = {"batch_size": args.batch_size, **({"strict_data": True} if args.strict_data else {})}
    out = factory.on_first(lambda: make_writable_folder(place))
    for tag, manifest in zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True):
        data_layer: Any = model.recipe.data_layer(manifest, training=False, **options)
        wires = connect_classifier(model.modules, data_layer)
        outputs = [wires.logits, wires.classes, *([wires.embeddings] if wires.embeddings else [])]
        batches = factory.infer_batches(outputs)  # come out on rank 0
        columns = list(zip(*batches, strict=True))
        if out is None:
            continue
        logits, classes, *embeddings = map(torch.cat, columns)
        assert batches.items is not None, "data layers of speech number their items"
        labels, (path, file, file_of_labels) = model.recipe.labels, _files_of_classes(out, tag)
        text = _class_lines([data_layer.place_of(item) for item in batches.items], logits, classes, labels)
        _write(path, partial(Path.write_text, data=text, encoding="utf-8"), args)
        print(f"{tag}: {_describe_accuracy(logits, classes, labels)}")
        clusters = clusters_in_data(data_layer, batches.items)
        print(f"{tag}: {_describe_interval(logits, classes, clusters)}")
        print(f"{tag}: {batches.num_items} recordings, ids {batches.digest}, classes in {path}")
        if embeddings:
            _write(file, partial(np.save, arr=embeddings[0].float().numpy()), args)
            _write(file_of_labels, partial(np.save, arr=np.array([labels[int(each)] for each in classes])), args)
            print(f"{tag}: {_describe_speakers(embeddings[0], classes)}")


def _files_of_classes(out: Path, tag: str) -> tuple[Path, Path, Path]:
    """Of a set: its classes, embeddings and their labels."""
    return out / f"{tag}.classes.jsonl", out / f"{tag}.npy", out / f"{tag}_labels.npy"


def _check_places_of_classes(args: Namespace, out: Path) -> None:
    """As `_check_places`."""
    inputs = InputFiles(named_files(args))
    for path in [path for tag in unique_tags(args.eval_datasets) for path in _files_of_classes(out, tag)]:
        check_output(path, PROGRAM, inputs=inputs, overwrite=args.overwrite)


def _write(path: Path, write: Callable[[Path], object], args: Namespace) -> None:
    write_output(path, write, PROGRAM, overwrite=args.overwrite)


def _describe_accuracy(logits: torch.Tensor, classes: torch.Tensor, labels: list[str]) -> str:
    """The accuracy, and the pair of classes that was confused most often."""
    (accuracy,) = classification_accuracy(logits, classes)
    confused = classification_confusion_matrix(logits, classes).fill_diagonal_(0)
    text = f"accuracy {accuracy:.2%} ({int(confused.sum())} errors in {len(classes)} recordings)"
    if confused.any():
        true, confused_with = divmod(int(confused.argmax()), len(labels))
        text += f", most often {labels[true]} taken for {labels[confused_with]}: {int(confused.max())}"
    return text


def _describe_interval(logits: torch.Tensor, classes: torch.Tensor, clusters: Clusters | None) -> str:
    """The 95 % interval of the accuracy, by speaker or recording where they are known."""
    errors = class_errors((logits.argmax(dim=1) != classes).numpy(), clusters)
    interval = bootstrap_interval(errors)
    resampled = clusters or f"{len(classes)} recordings"
    return (
        f"95 % interval of the accuracy: {1 - interval.high:.2%} to {1 - interval.low:.2%}, by resampling {resampled}"
    )


def _class_lines(places: list[str], logits: torch.Tensor, classes: torch.Tensor, labels: list[str]) -> str:
    """A line of JSON for each recording."""
    best, predicted = logits.double().softmax(dim=1).max(dim=1)
    rows = zip(places, classes.tolist(), predicted.tolist(), best.tolist(), strict=True)
    lines = [
        {"place": place, "class": labels[true], "found": labels[index], "probability": round(probability, 6)}
        for place, true, index, probability in rows
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _describe_speakers(embeddings: torch.Tensor, classes: torch.Tensor) -> str:
    """The equal error rate over all pairs of recordings."""
    embeddings, classes = embeddings[:MOST_PAIRS], classes[:MOST_PAIRS]
    rate, threshold = equal_error_rate(*all_pairs(embeddings, classes))
    return f"equal error rate {rate:.2%} at a cosine of {threshold:.3f} (all pairs of {len(classes)} recordings)"
