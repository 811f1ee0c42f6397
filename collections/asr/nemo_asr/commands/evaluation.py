"""Error rates of models that transcribe, for ``nemo-lite eval`` and the scripts; and what is written of them.

What a model recognises of a set: `recognised_sets`. Classifiers: `class_evaluation`.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections import Counter
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
from nemo_asr.data.scored_texts import (
    TextsToScore,
    clusters_in_data,
    normalizer_for,
    references_to_score,
    texts_to_score,
    write_transcripts,
)
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.decoding.beam_search import search_weights, write_weights
from nemo_asr.run.arguments import paths_in
from nemo_asr.run.engines import TranscriptionSettings
from nemo_asr.run.manifest import evenly
from nemo_asr.run.onnx.voice_activity import load_detector
from nemo_asr.run.options import SearchOptions, named_files, results_folder, search_options, unique_tags
from nemo_asr.run.search.words import Spelling, weighted_phrases
from nemo_asr.run.text.labels import main_metric
from nemo_asr.run.transcribe.transcript import Transcript
from nemo_asr.scoring.hotwords import HotwordScores, score_hotwords, words_of
from nemo_asr.scoring.leaderboard import (
    RESULTS_FILE,
    check_leaderboard,
    check_references,
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
from nemo_asr.scoring.report.set_scores import rate_text, score_rows, scores_table, write_scores
from nemo_asr.scoring.report.transcripts import read_transcripts
from nemo_asr.scoring.sclite import ENDINGS, FOLDER, write_sclite
from nemo_asr.tasks.family import connect, search_of
from nemo_asr.tasks.recipe import load_recipe
from nemo_asr.trained.folder import CARD, Certificate, StreamRate, find_model, store_in_card
from nemo_asr.trained.invariance import Difference, certificate_table, certify
from nemo_asr.trained.model import ModelEngine, TrainedModel, load_model, tell_prompt
from nemo_asr.trained.stream_rates import rate_streams, stream_table
from nemo_lite import DataLayerNM, NeuralModule, NeuralModuleFactory
from nemo_lite.base.errors import NemoLiteError, UsageError, counted
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
        factory.on_first(lambda: _check_leaderboard(args))
    model = load_model(args.load_dir, recipe=recipe, factory=factory, overrides=args.overrides)
    second = load_model(args.compare, factory=factory) if args.compare else None
    if args.head is not None:
        model = model.with_head(args.head)
        second = second and second.with_head(args.head)
    evaluation = _Evaluation(model, args, factory, out, "A, " if second else "")
    of_second = _Evaluation(second, args, factory, out / COMPARED, "B, ") if second else None
    if of_second is not None:
        sets_b = of_second.data
        factory.on_first(lambda: _check_references(evaluation.data, sets_b, args.score_normalizer))
    if args.leaderboard:
        factory.on_first(lambda: _check_leaderboard_references(evaluation.data, args.score_normalizer))
    if args.stream:
        model.streamed(factory)  # or the reason why it cannot
    if args.certify:
        evaluation.certified_rows()  # or the reason why there are none
    if (args.stream or args.certify) and (folder := _folder_of_card(args)) is not None:
        check_writable_folder(folder)
    evaluation.run()
    if args.leaderboard:
        factory.on_first(lambda: _write_leaderboard(args, out, list(evaluation.data)))
    if args.stream:
        evaluation.hear_streams()
    if args.certify:
        evaluation.certify()
    if of_second is not None:
        models = {"A": model, "B": of_second.model}
        of_second.run()
        factory.on_first(lambda: _compare(args, out, list(evaluation.data), models))


def _check_places(args: Namespace, out: Path) -> None:
    """UsageError where files cannot be written, or one is there that may not be replaced; before any work is done."""
    tags, inputs = unique_tags(args.eval_datasets), InputFiles(named_files(args))
    written = [(out / COMPARISON_FILE, COMPARE)] if args.compare else []
    written += [(out / RESULTS_FILE, PROGRAM)] if args.leaderboard else []
    for folder in (out, *([out / COMPARED] if args.compare else [])):
        names = [f"{tag}.{ending}" for tag in tags for ending in (_TRANSCRIPTS, _SCORES)]
        names += [f"{FOLDER}/{tag}.{ending}" for tag in tags for ending in ENDINGS]
        names += [_WEIGHTS] if args.search_weights else []
        written += [(folder / name, PROGRAM) for name in names]
        written += [(folder / PAGE_FILE, REPORT)] if args.report else []
    for folder in dict.fromkeys([out, *(path.parent for path, _ in written)]):
        check_writable_folder(folder)
    for path, kind in written:
        check_output(path, kind, inputs=inputs, overwrite=args.overwrite)


def _check_references(
    sets_a: Mapping[str, DataLayerNM], sets_b: Mapping[str, DataLayerNM], normalizer: str | None
) -> None:
    """UsageError where utterances or references of two models differ, which cannot be compared; before any work."""
    for tag, layer in sets_a.items():
        places_a, places_b = ([*map(each.place_of, range(len(each)))] for each in (layer, sets_b[tag]))
        if places_a != places_b:
            got = f"{len(places_a)} of A and {len(places_b)} of B"
            remedy = (
                "evaluate each alone, with the same limits (--set ...max_duration=), then: nemo-lite compare OUT OUT"
            )
            raise UsageError("the two models leave out other utterances", place=tag, got=got, remedy=remedy)
        a, b = (references_to_score(each, range(len(each)), normalizer) for each in (layer, sets_b[tag]))
        if differing := [row for row, (one, other) in enumerate(zip(a, b, strict=True)) if one != other]:
            row = differing[0]
            got = f'{len(differing)} differ, first {layer.place_of(row)}: "{a[row]}" of A and "{b[row]}" of B'
            remedy = (
                "evaluate each alone" if normalizer else "if they differ in spelling, give --score_normalizer basic"
            )
            raise UsageError("the references of the two models differ", place=tag, got=got, remedy=remedy)


def _check_leaderboard(args: Namespace) -> None:
    """UsageError where nothing can be counted as the leaderboard does, or a set would be counted twice."""
    check_leaderboard(args.leaderboard)
    paths = Counter(os.path.realpath(path) for together in args.eval_datasets for path in paths_in(together))
    names = Counter(tag.lower() for tag in unique_tags(args.eval_datasets))
    twice = [[name for name, number in each.items() if number > 1] for each in (paths, names)]
    if twice[0]:
        raise UsageError("--leaderboard takes each manifest once", got=f"{twice[0][0]} twice")
    if twice[1]:
        problem, remedy = "--leaderboard writes two sets under one name, without capital letters", "rename a manifest"
        raise UsageError(problem, got=twice[1][0], remedy=remedy)


def _check_leaderboard_references(sets: Mapping[str, DataLayerNM], normalizer: str) -> None:
    """UsageError where a set has no words; before any work is done."""
    for tag, layer in sets.items():
        if isinstance(layer, SpeechDataLayer):
            check_references(references_to_score(layer, range(len(layer)), normalizer), tag)


class _Evaluation:
    """A model on all sets: its error rates are printed, and what it heard is written.

    Args:
        model: the search that is asked for takes the place of its own.
        args: of the command.
        factory: where it runs.
        folder: for what is written.
        name: of the model in front of its lines, where there are two: ``A, ``.

    Attributes:
        model: as given.
        data: the sets by their names.

    Raises:
        UsageError: the model cannot be told, or searched, as it is asked for; a set has no recordings, and needs them.
        DataError: a manifest or a file of the search cannot be used.
    """

    def __init__(
        self, model: TrainedModel, args: Namespace, factory: NeuralModuleFactory, folder: Path, name: str = ""
    ) -> None:
        self.model, self._args, self._factory, self._folder, self._name = model, args, factory, folder, name
        self._labels = model.recipe.labels
        self._metric = args.eval_metric or main_metric(self._labels)
        tell_prompt(model, args)
        self._search = search_options(args)
        if self._search is not None:
            model.modules = replace(model.modules, search=search_of(model.modules, self._labels, self._search))
        self._detector = load_detector(args.vad) if args.vad else None
        manifests = zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True)
        options: dict[str, Any] = {"batch_size": args.batch_size, **({"strict_data": True} if args.strict_data else {})}
        self.data = {tag: model.recipe.data_layer(path, training=False, **options) for tag, path in manifests}
        needing = {"--segments energy": args.cutting, "--stream": args.stream, "--certify": args.certify}
        for option in (option for option, asked in needing.items() if asked):
            for data_layer in self.data.values():
                with_recordings(data_layer, option)

    def run(self) -> None:
        """Evaluate every set, print its error rates, and write its transcripts, its scores and the report."""
        if self._args.search_weights:
            self._find_weights()
        out = self._factory.on_first(lambda: make_writable_folder(self._folder))
        for tag, data_layer in self.data.items():
            result, plain = self._recognised(data_layer), None
            if self._args.hotwords and self._search is not None:
                search = search_of(self.model.modules, self._labels, self._search.without_hotwords())
                plain = self._recognised(data_layer, search)
            if out is not None:
                self._write_set(tag, data_layer, result, plain)
        if self._args.report:
            sets, facts = list(self.data), _facts({"model": self.model}, self._args)
            overwrite = self._args.overwrite
            self._factory.on_first(lambda: try_report(self._folder, sets=sets, facts=facts, overwrite=overwrite))

    def _recognised(self, data_layer: DataLayerNM, search: NeuralModule | None = None) -> RecognisedSet:
        args = self._args
        if args.cutting is None:
            return recognise_utterances(self.model, data_layer, self._factory, search)
        settings = TranscriptionSettings(
            args.batch_size, search=search, cutting=args.cutting, detector=self._detector, verbose=True
        )
        return recognise_segments(self.model, data_layer, self._factory, settings, args.strict_data)

    def _write_set(self, tag: str, data_layer: DataLayerNM, result: RecognisedSet, plain: RecognisedSet | None) -> None:
        """Print the error rates of a set, and write its transcripts and scores; ``plain``: without the hot words."""
        # Damaged files end the evaluation, unless the configuration allows some: then they are left out here too.
        texts, tell = self._texts(data_layer, result), partial(_tell, f"{self._name}{tag}")
        texts_of_plain = self._texts(data_layer, plain).hypotheses if plain else []
        path = self._folder / f"{tag}.{_TRANSCRIPTS}"
        more: list[dict[str, Any]] = [{} for _ in texts.hypotheses]
        for values, transcript in zip(more, result.transcripts, strict=False):
            values["segments"] = _segments_of(transcript)
        for values, text in zip(more, texts_of_plain, strict=False):
            values["without_hotwords"] = text
        lines = partial(write_transcripts, data_layer=data_layer, items=result.items, more=more, **texts._asdict())
        _write(path, lines, self._args)
        tell(_describe_rates(texts.hypotheses, texts.references, self._metric))
        told = f"{counted(len(result.items), 'utterance')}, ids {data_layer.digest_of(result.items)}"
        tell(f"{told}, transcripts in {path}")
        if self._args.cutting:
            number = sum(len(transcript.segments) for transcript in result.transcripts)
            tell(f"{counted(number, 'segment')}, cut at pauses as transcribe cuts them")
        elif line := pauses_line(data_layer):
            tell(line)
        if texts.references:
            hotwords = self._score_hotwords(data_layer, result.items, texts, texts_of_plain) if plain else None
            self._write_scores(tag, path, result, hotwords)

    def _texts(self, data_layer: DataLayerNM, result: RecognisedSet) -> TextsToScore:
        texts = result.references, result.hypotheses
        return texts_to_score(data_layer, result.items, *texts, self._args.score_normalizer)

    def _score_hotwords(
        self, data_layer: DataLayerNM, items: Sequence[int], texts: TextsToScore, texts_of_plain: list[str]
    ) -> HotwordScores:
        hot = list(weighted_phrases(self._args.hotwords, Spelling(self._labels)))
        if self._args.score_normalizer:  # as the texts that they are looked for in
            hot = list(map(normalizer_for(data_layer, self._args.score_normalizer), hot))
        split, clusters = words_of(self._labels), clusters_in_data(data_layer, items)
        return score_hotwords(hot, texts.references, texts_of_plain, texts.hypotheses, split, clusters)

    def _write_scores(self, tag: str, transcripts: Path, result: RecognisedSet, hotwords: HotwordScores | None) -> None:
        """Print how sure the error rates are, and write scores and files for sclite of what was just written."""
        tell, rows = partial(_tell, f"{self._name}{tag}"), read_transcripts(transcripts)
        scores, path = score_rows(rows), self._folder / f"{tag}.{_SCORES}"
        _write(path, partial(write_scores, scores=scores, hotwords=hotwords), self._args)
        intervals = scores.interval_line(self._metric)
        tell(f"{intervals and f'{intervals}; '}by speaker, length and word in {path}")
        if line := scores.variants_line(self._metric):
            tell(line)
        files = write_sclite(self._folder / FOLDER, tag, rows, result.words, write=partial(_write, args=self._args))
        tell(f"for sclite {', '.join(str(file) for file in files)}")
        for line in hotwords.lines() if hotwords else ():
            tell(line)
        if self._args.details:
            print(f"\n{scores_table(scores)}\n")

    def hear_streams(self) -> None:
        """Print what the model's streams are worth, and store it in its card where it is a model folder."""
        rates: list[StreamRate] = []
        search = self._describe_search()
        for tag, data_layer in self.data.items():
            layer = with_recordings(data_layer, "--stream")
            rows = range(len(layer))
            texts = [layer.utterance_of(row).text for row in rows]
            said = texts_to_score(layer, list(rows), texts, texts, self._args.score_normalizer).references
            recordings = recordings_of(layer, rows, self._args.strict_data)
            measured = rate_streams(self.model, tag, recordings, said, self._factory, search=search)
            how = f"{measured[0].chunk_seconds:g} s of audio at a time{search and f', {search}'}"
            print(f"{tag}: as streams, {how}\n\n{stream_table(measured)}\n")
            rates += measured
        if _folder_of_card(self._args) is not None:
            card = store_in_card(self._args.load_dir, self.model.card, "streams", rates)
            print(f"The table is in {card}")

    def certify(self) -> None:
        """Print whether transcripts depend on how the model is run; in its card too, where it is a model folder.

        Raises:
            NemoLiteError: some do.
        """
        certificates: list[Certificate] = []
        differences: list[Difference] = []
        search = self._describe_search()
        for tag, rows in self.certified_rows().items():
            recordings = recordings_of(with_recordings(self.data[tag], "--certify"), rows, self._args.strict_data)
            certificate, found = certify(self.model, tag, recordings, self._factory, search)
            print(f"{tag}: {counted(certificate.utterances, 'utterance')}\n\n{certificate_table(certificate)}\n")
            certificates.append(certificate)
            differences += found
        if _folder_of_card(self._args) is not None:
            card = store_in_card(self._args.load_dir, self.model.card, "certificates", certificates)
            print(f"The certificate is in {card}")
        if differences:
            got = "; ".join(map(str, differences[:_MOST_DIFFERING]))
            number = f"{len(differences)} transcripts are others, such as {got}"
            raise NemoLiteError("transcripts depend on how the model is run", place=self.model.place, got=number)

    def certified_rows(self) -> dict[str, list[int]]:
        """By set, up to 50 utterances, evenly spread over those that the model hears at once by their durations.

        Raises:
            UsageError: a set has none.
        """
        longest, rows_of_sets = ModelEngine(self.model, self._factory).longest_seconds, dict[str, list[int]]()
        for tag, data_layer in self.data.items():
            durations = with_recordings(data_layer, "--certify").durations
            rows = np.flatnonzero(durations <= (longest or np.inf))
            if not len(rows):
                problem, remedy = "all recordings are longer than the model hears at once", "give a set of shorter ones"
                got, wanted = f"{durations.min():.1f} s and more", f"at most {longest:g} s for --certify"
                raise UsageError(problem, place=tag, got=got, wanted=wanted, remedy=remedy)
            rows_of_sets[tag] = rows[evenly(len(rows), _MOST_CERTIFIED)].tolist()
        return rows_of_sets

    def _find_weights(self) -> None:
        """Let the search have the weights that are best on ``--search_weights``."""
        args, factory, search = self._args, self._factory, self.model.modules.search
        assert search is not None, "check_search_options refuses --search_weights without one"
        layer = self.model.recipe.data_layer(args.search_weights, training=False, batch_size=args.batch_size)
        dag = connect(self.model.modules, layer)
        _, _, *texts = dag.scored
        trials = search_weights(
            search,
            dag.predictions.call.inputs,
            texts,
            self._labels,
            factory,
            lambda heard, said: count_errors(heard, said, self._metric == "cer").errors,
        )
        path = self._folder / _WEIGHTS
        best, worst = trials[0], trials[-1]
        lines = partial(write_weights, source=args.search_weights, trials=trials)
        factory.on_first(lambda: _write(make_writable_folder(self._folder) / path.name, lines, args))
        weights = f"alpha {best.alpha:g} and beta {best.beta:g} make {best.errors} errors"
        of = f"the fewest of {len(trials)} trials (the most: {worst.errors}); in {path}"
        factory.on_first(lambda: print(f"{args.search_weights}: {weights}, {of}"))

    def _describe_search(self) -> str:
        """The options of the search in the place of the model's own; empty: none is. Hot words are counted only."""
        options = self._search
        if options is None:
            return ""
        used: SearchOptions = getattr(self.model.modules.search, "options", options)  # with what was not asked for
        files = ("lexicon", options.lexicon), ("lm", options.lm)
        told = [f"beam_size {used.beam_size}"] if used.beam_size is not None else []
        told += [f"{name} {Path(path).name}" for name, path in files if path]
        weights = {
            "hotwords": len(options.hotwords) or None,
            "hotword_weight": used.hotword_weight if options.hotwords else None,
            "alpha": used.alpha if options.lm else None,
            "beta": used.beta,
        }
        return ", ".join([*told, *(f"{name} {value:g}" for name, value in weights.items() if value is not None)])


def _tell(name: str, line: str) -> None:
    print(f"{name}: {line}")


def _facts(models: Mapping[str, TrainedModel], args: Namespace) -> dict[str, str]:
    """What stands first in a report."""
    facts = {}
    for name, model in models.items():
        is_foreign = bool(model.card.sources) and not model.card.step  # how long it was trained is not known
        facts[name] = model.place if is_foreign else f"{model.place}, step {model.card.step}"
    return {**facts, **({"recordings": f"cut at pauses by {args.vad or 'their levels'}"} if args.cutting else {})}


def _write_leaderboard(args: Namespace, out: Path, sets: Sequence[str]) -> None:
    """Print the rates as the public leaderboard counts them, and write them for a model's repository."""
    version, rates = load_leaderboard(args.leaderboard).version, {}
    for tag in sets:
        rows = read_transcripts(out / f"{tag}.{_TRANSCRIPTS}")
        rate = leaderboard_rate([row.reference for row in rows], [row.hypothesis for row in rows], tag)
        rates[tag] = rate
        errors = f"{rate.insertions} insertions, {rate.deletions} deletions, {rate.substitutions} substitutions"
        how = f"of {counted(rate.num_utterances, 'utterance')}, open_asr_leaderboard {version}"
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


def _segments_of(transcript: Transcript) -> list[dict[str, Any]]:
    """The segments of a recording that was cut, as a line of transcripts has them."""
    segments = zip(transcript.segments, transcript.segment_texts(), strict=True)
    return [{**span._asdict(), "text": text} for span, text in segments]


def _describe_rates(heard: list[str], said: list[str], metric: str) -> str:
    """Both error rates, the one that comes first with its errors."""
    rates = {"wer": count_errors(heard, said), "cer": count_errors(heard, said, use_cer=True)}
    first, unit = rates.pop(metric), "words" if metric == "wer" else "characters"
    if not first.reference_length:
        return f"the references have no words, so there are no rates ({first})"
    others = ", ".join(f"{name.upper()} {rate_text(counts.rate)}" for name, counts in rates.items())
    return f"{metric.upper()} {first.rate:.2%} ({first} in {first.reference_length} {unit}), {others}"


def _compare(args: Namespace, out: Path, sets: list[str], models: Mapping[str, TrainedModel]) -> None:
    """A table of both models from the transcripts that were just written, as JSON too; the report has both."""
    compared = compare_folders(out, out / COMPARED, sets=sets)
    print("\n" + comparison_table(compared, args.load_dir, args.compare))
    path = write_comparison(out, compared, args.load_dir, args.compare, overwrite=args.overwrite)
    print(f"\nThe comparison is in {path}")
    if args.report:
        try_report(out, sets=sets, facts=_facts(models, args), overwrite=args.overwrite, beside=out / COMPARED)


def _write(path: Path, write: Callable[[Path], object], args: Namespace) -> None:
    write_output(path, write, PROGRAM, overwrite=args.overwrite)
