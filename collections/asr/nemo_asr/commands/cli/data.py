"""Check data sets, count what is in them, put them into tar shards, make a corpus; train on the texts.

The subcommands: ``check`` reads the audio and looks for problems (exit code 1 if there are some), ``stats`` reads the
manifests only, ``statistics`` computes mean and deviation of each feature, ``tar`` writes tar shards, ``make`` writes
manifests of a corpus, ``lm`` trains an n-gram model of the texts, ``tokenizer`` a vocabulary of subwords.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

from nemo_asr.corpora.conversion import KINDS, summary
from nemo_asr.corpora.conversion import make as make_manifests
from nemo_asr.data.check import (
    Finding,
    as_text,
    draw_histograms,
    finding_of_little,
    findings_among,
    findings_between,
    findings_in,
)
from nemo_asr.data.examined import ExaminedSet, examine, statistics_of
from nemo_asr.data.made_shards import make_shards
from nemo_asr.run.options import Overrides, OwnModules, named_files
from nemo_asr.run.search.ngram import NgramModel, write_arpa
from nemo_asr.run.text.forms import APOSTROPHES, plain_letters
from nemo_asr.run.text.labels import WORD_MARK
from nemo_asr.run.text.languages import NO_LANGUAGE, language_code, language_of
from nemo_asr.run.text.parser import CharParser, make_parser
from nemo_asr.run.text.readings import read_out
from nemo_asr.run.text.subword_training import ALGORITHMS, train_subwords
from nemo_asr.run.transcribe.inputs import recordings_of
from nemo_asr.tasks.fitting import misfits_in
from nemo_asr.tasks.recipe import Recipe, labels_are_auto, labels_for, load_recipe, recipe_from_text, with_labels
from nemo_asr.text.proposal import AUTO
from nemo_asr.trained.statistics import measured_features
from nemo_asr.trained.texts import (
    MOST_ORDER,
    check_order,
    is_trained,
    open_texts,
    perplexity,
    recipe_named,
    speller_of,
    texts_of,
    train_language_model,
)
from nemo_lite.base.config import Config
from nemo_lite.base.errors import UsageError, counted, did_you_mean
from nemo_lite.base.files import make_writable_folder, refuse_existing, write_atomically
from nemo_lite.base.options import (
    OneLineParser,
    not_negative_float,
    not_negative_int,
    number_type,
    positive_float,
    positive_int,
)
from nemo_lite.base.outputs import InputFiles, check_output, write_output
from nemo_lite.base.ranges import Between
from nemo_lite.utils import logging

_PICTURE, _LM = "nemo-lite data --picture", "nemo-lite data lm"
CORPORA = ("aishell", "an4", "librispeech", "synth")
_SHARE = number_type(Annotated[float, Between(0.0, 1.0, above=True, below=True)])


def main(arguments: Sequence[str]) -> int:
    """Run one of the subcommands; 0, or 1 where ``check`` found a problem."""
    parser = OneLineParser(
        prog="nemo-lite data", description="Check, count, tar or make data sets; train language models and tokenizers."
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="check | stats | statistics | tar | make | lm | tokenizer"
    )
    _add_check(commands.add_parser("check", help="read manifests and audio, look for problems and leaks"))
    stats = commands.add_parser("stats", help="count utterances, hours, speakers and letters; reads no audio")
    stats.add_argument("manifests", nargs="+", help="manifests, each a set; several are joined by commas")
    _add_output(stats)
    _add_statistics(
        commands.add_parser("statistics", help="mean and deviation of each feature, over audio, for a configuration")
    )
    _add_tar(commands.add_parser("tar", help="put the recordings of manifests into tar shards"))
    _add_lm(commands.add_parser("lm", help="train an n-gram language model of the texts, as an ARPA file"))
    _add_tokenizer(commands.add_parser("tokenizer", help="train a vocabulary of subwords on the texts"))
    _add_make(commands.add_parser("make", help="write the manifests of a corpus"))
    if (maker := _maker_named(arguments)) is not None:
        import_module(f"nemo_asr.corpora.{maker}").main(arguments[2:], f"nemo-lite data make {maker}")
        return 0
    options = parser.parse_args(arguments)
    run = {"check": _check, "stats": _stats, "statistics": _statistics, "tar": _tar, "make": _make, "lm": _lm}
    return {**run, "tokenizer": _tokenizer}[options.command](options)


def _maker_named(arguments: Sequence[str]) -> str | None:
    """The corpus whose maker has options of its own, where one is named."""
    is_one = len(arguments) > 1 and arguments[0] == "make" and arguments[1] in CORPORA
    return arguments[1] if is_one else None


def _add_check(parser: OneLineParser) -> None:
    add = parser.add_argument
    add("manifests", nargs="*", help="the training set, then evaluation sets; several manifests are joined by commas")
    add("--train", metavar="MANIFEST", help="the training set, instead of the order")
    add("--eval", metavar="MANIFEST", nargs="+", default=[], help="evaluation sets, instead of the order")
    strict_help = (
        "a duration that is not its file's, a path that does not start at the manifest's folder, and with "
        "--model_config what the labels cannot write, is a problem"
    )
    add("--strict_data", action="store_true", help=strict_help)
    add("--num_workers", type=positive_int, help="threads that read audio (default: one for each core)")
    model_help = (
        "a configuration or its name, or a trained model: also look for texts that do not fit the frames, the labels "
        "or the decoder's positions of this model"
    )
    add("--model_config", metavar="FILE", help=model_help)
    parser.add_options(OwnModules)
    _add_output(parser)


_OVERWRITE_HELP = "let {} replace a file that this command did not write, or that was changed since"


def _add_output(parser: OneLineParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw histograms into this file")
    parser.add_argument("--overwrite", action="store_true", help=_OVERWRITE_HELP.format("--picture"))


def _add_statistics(parser: OneLineParser) -> None:
    add = parser.add_argument
    add("manifest", nargs="+", help="the training set; its audio is read, and no text")
    config_help = "the configuration, or its name, whose preprocessor computes the features"
    add("--model_config", metavar="FILE", required=True, help=config_help)
    add("--out", metavar="FILE.yaml", required=True, help="the configuration with them; there must be no such file yet")
    hours_help = "so much of the audio, evenly from the whole set (default: %(default)s)"
    add("--hours", type=positive_float, metavar="X", default=10.0, help=hours_help)
    parser.add_options(Overrides)


def _add_tar(parser: OneLineParser) -> None:
    add = parser.add_argument
    add("manifest", help="a manifest; several are joined by commas")
    add("--target_dir", metavar="FOLDER", default="tarred", help="where the shards go (default: %(default)s)")
    add("--num_shards", type=positive_int, default=1, help="how many (default: %(default)s)")
    add("--shuffle", action="store_true", help="put the recordings into a random order first, for training")
    add("--seed", type=not_negative_int, default=0, help="of the random order (default: %(default)s)")
    add("--min_duration", type=not_negative_float, metavar="SECONDS", help="leave out shorter utterances")
    add("--max_duration", type=not_negative_float, metavar="SECONDS", help="leave out longer utterances")


def _add_lm(parser: OneLineParser) -> None:
    add = parser.add_argument
    add("manifests", nargs="+", metavar="MANIFEST", help="whose texts to count; audio is not needed")
    add("--out", metavar="FILE.arpa", required=True, help="the file to write")
    add("--overwrite", action="store_true", help=_OVERWRITE_HELP.format("--out"))
    add("--order", type=positive_int, default=3, help=f"words of the longest n-grams, 1 to {MOST_ORDER}")
    model_help = (
        "a trained model's folder, or a configuration or its name: texts are spelled as this model spells them "
        "(default: in lower case, in the letters that the texts have)"
    )
    add("--model", metavar="MODEL", help=model_help)
    add("--dev", metavar="MANIFEST", help="print the perplexity of these texts too, which are not counted")


def _add_tokenizer(parser: OneLineParser) -> None:
    add = parser.add_argument
    add("manifests", nargs="+", metavar="MANIFEST", help="the training set: its texts are read, and no audio")
    add("--vocab_size", type=positive_int, required=True, metavar="N", help="how many pieces, 128 to 1024 say")
    add("--out", required=True, metavar="FILE", help="where the SentencePiece model goes; there must be none yet")
    add("--algorithm", choices=ALGORITHMS, default=ALGORITHMS[0], help="default: %(default)s")
    parser_help = "how texts are rewritten, as the data layer's parser does (default: en where all letters are a to z)"
    add("--parser", choices=("auto", "base", "en", "none"), default="auto", help=parser_help)
    language_help = (
        "language of the texts, as training will be given it (default: what the script of the letters tells)"
    )
    add("--language", metavar="CODE", help=language_help)
    add("--keep_case", action="store_true", help="capitals stay (default: lower case)")
    add("--symbols", nargs="+", default=[], metavar="WORD", help="words that stay whole, such as <noise>")


def _add_make(parser: OneLineParser) -> None:
    add = parser.add_argument
    kinds = "; ".join(kind.description for kind in KINDS.values())
    makers = f"or the name of a corpus, with options of its own: {', '.join(CORPORA)}"
    add("source", metavar="FROM", help=f"recordings with texts: {kinds}; {makers}")
    add("--out", metavar="FOLDER", help="where the manifests go (default: beside FROM's files)")
    add("--kind", choices=tuple(KINDS), help="what FROM is (default: told by what is in it)")
    add("--dev", type=_SHARE, metavar="SHARE", help="keep this share of one set apart as dev.json, 0.1 say")
    add("--test", type=_SHARE, metavar="SHARE", help="the same as test.json")
    trim_help = (
        "leave out the silence before and behind the speech of each, by its level: by offset and duration of its line; "
        "the audio stays as it is"
    )
    add("--trim", action="store_true", help=trim_help)
    add("--overwrite", action="store_true", help="replace manifests that are there already")
    add("--num_workers", type=positive_int, help="threads that read lengths (default: one for each core)")


def _check(options: Any) -> int:
    _check_picture(options)
    train, *evaluations = _sets_asked_for(options)
    recipe = _recipe(options.model_config, train) if options.model_config else None
    arguments = {"strict": options.strict_data, "num_workers": options.num_workers, "show_progress": True}
    sets = [examine(manifests, **arguments) if manifests else None for manifests in (train, *evaluations)]
    findings = [finding for examined in sets if examined for finding in findings_in(examined)]
    first, *evaluation_sets = sets
    findings += finding_of_little(first) if first else []
    for evaluation_set in evaluation_sets:
        if first and evaluation_set:
            findings += findings_between(first, evaluation_set)
    for one, another in combinations(evaluation_sets, 2):
        if one and another:
            findings += findings_among(one, another)
    if recipe:
        pairs = zip(sets, (train, *evaluations), strict=True)
        with logging.patch_stdout_handler(sys.stderr):  # what data layers log is no finding
            for examined, paths in pairs:
                if examined:
                    findings += misfits_in(recipe, paths, examined is first, options.strict_data)
    _tell(options, list(filter(None, sets)), findings)
    return int(any(finding.is_problem for finding in findings))


def _recipe(model_config: str, train: str) -> Recipe:
    """The configuration; labels that it leaves to the texts are those of the training set."""
    if train and not is_trained(model_config) and labels_are_auto(model_config):
        return load_recipe(model_config, with_labels([], labels_for(train, path=model_config).labels))
    return recipe_named(model_config)


def _sets_asked_for(options: Any) -> list[str]:
    """The training set, '' where there is none, and the evaluation sets."""
    named = [options.train or "", *options.eval] if options.train or options.eval else []
    if named and options.manifests:
        raise UsageError(
            "sets are given by their order and by --train or --eval",
            got=" ".join(options.manifests),
            remedy="give all of them in one of the ways",
        )
    if not named and not options.manifests:
        raise UsageError("no manifest is given", remedy="nemo-lite data check TRAIN.json EVAL.json ...")
    return named or options.manifests


def _check_picture(options: Any) -> None:
    """Before anything is read."""
    if options.picture:
        inputs = InputFiles(named_files(options))
        check_output(Path(options.picture).expanduser(), _PICTURE, inputs=inputs, overwrite=options.overwrite)


def _stats(options: Any) -> int:
    _check_picture(options)
    _tell(options, [examine(manifests, with_audio=False) for manifests in options.manifests], None)
    return 0


def _statistics(options: Any) -> int:
    out = Path(options.out).expanduser()
    refuse_existing(out)
    make_writable_folder(out.parent)
    is_auto = labels_are_auto(options.model_config, options.overrides)
    settings = with_labels(options.overrides, ["a"]) if is_auto else options.overrides
    recipe = load_recipe(options.model_config, settings)
    config, name = recipe.config, type(recipe.preprocessor()).__name__
    for setting in options.overrides:
        if setting.startswith(f"{name}.normalize"):
            raise UsageError("the statistics take the place of this", place=f"--set {setting}", remedy="leave it out")
    plain = [f"{name}.normalize=none"]
    unnormalized = recipe_from_text(config.as_yaml(), options.model_config, plain, tokenizer=recipe.tokenizer)
    measured = measured_features(unnormalized, recordings_of(options.manifest), options.hours)
    fixed = {"fixed_mean": measured.mean, "fixed_std": measured.deviation}
    changed = {name: {**config.get(name, {}), "normalize": fixed}} | ({"labels": AUTO} if is_auto else {})
    text = Config({**config, **changed}, config.source).as_yaml()
    comment = f"# {Path(options.model_config).name} with the statistics of {' '.join(options.manifest)}.\n"
    write_atomically(out, lambda path: path.write_text(comment + text, encoding="utf-8"))
    lowest, highest = min(measured.mean), max(measured.mean)
    print(f"{out}: {name}.normalize of {measured.num_frames} frames, {counted(measured.num_recordings, 'recording')}")
    print(f"  means from {lowest:.2f} to {highest:.2f}, deviations from {min(measured.deviation):.2f}", end="")
    print(f" to {max(measured.deviation):.2f}")
    return 0


def _tell(options: Any, sets: Sequence[ExaminedSet], findings: Sequence[Finding] | None) -> None:
    statistics = [statistics_of(examined) for examined in sets]
    if options.json:
        report = {} if findings is None else {"findings": [asdict(finding) for finding in findings]}
        print(json.dumps({"sets": statistics, **report}, ensure_ascii=False, indent=1))
    else:
        print(as_text(statistics, findings))
    if options.picture:
        picture = draw_histograms(statistics)
        place = Path(options.picture).expanduser()
        write = partial(Path.write_text, data=picture, encoding="utf-8")
        write_output(place, write, _PICTURE, overwrite=options.overwrite)


def _tar(options: Any) -> int:
    made = make_shards(
        options.manifest,
        options.target_dir,
        num_shards=options.num_shards,
        shuffle=options.shuffle,
        seed=options.seed,
        min_duration=options.min_duration,
        max_duration=options.max_duration,
    )
    first, last = made.shards[0], len(made.shards) - 1
    shards = str(first) if last == 0 else str(first.with_name(f"audio_{{0..{last}}}.tar"))
    recordings = f"{made.num_recordings} recordings, {made.num_bytes / 1e6:.1f} MB"
    print(f"audio_tar_filepaths: {shards}  ({recordings})")
    print(f"manifest_filepath: {made.manifest}  ({made.num_lines} utterances, {made.seconds / 3600:.2f} h)")
    return 0


def _lm(options: Any) -> int:
    check_order(options.order)
    out = Path(options.out).expanduser()
    check_output(out, _LM, inputs=InputFiles(named_files(options)), overwrite=options.overwrite)
    make_writable_folder(out.parent)
    texts = open_texts(options.manifests)
    dev = open_texts([options.dev]) if options.dev else None
    speller = speller_of(options.model, texts)
    trained = train_language_model(texts, speller, options.order)
    tables, discounts = trained.estimated
    write_output(out, lambda path: write_arpa(path, tables), _LM, overwrite=options.overwrite)
    print(f"{out}: {trained.num_texts} texts, {trained.num_words} words; read as {trained.spelling}")
    for order, (table, discount) in enumerate(zip(tables.orders, discounts, strict=True), 1):
        smoothing = (
            "Witten-Bell" if discount is None else "Kneser-Ney, discounts " + " ".join(f"{d:.2f}" for d in discount)
        )
        print(f"  {order}-grams: {len(table.words)}, {smoothing}")
    if trained.lost:
        logging.warning("%s: %s; left out", texts.name, trained.lost)
    if dev is not None:
        result = perplexity(NgramModel(tables), speller.sentences(dev))
        print(f"{dev.name}: perplexity {result.value:.1f}, {result.num_unknown} of {result.num_words} words unknown")
    return 0


def _tokenizer(options: Any) -> int:
    out = Path(options.out).expanduser()
    refuse_existing(out)
    make_writable_folder(out.parent)
    texts = list(texts_of(open_texts(options.manifests)))
    parser = _parser_for(texts, options)
    normal = [text for text in map(parser.normalize, texts) if text]
    subwords = train_subwords(normal, options.vocab_size, algorithm=options.algorithm, symbols=options.symbols)
    write_atomically(out, lambda path: path.write_bytes(subwords.model))
    words = sum(len(text.split()) for text in normal)
    pieces = sum(len(subwords.ids_of(text)[0]) for text in normal)
    print(f"{out}: {len(subwords)} pieces ({options.algorithm}), SHA-256 {subwords.sha256[:16]}...")
    print(f"  {len(normal)} texts ({parser.describe()}), {words} words, {pieces / max(words, 1):.2f} pieces a word")
    print(f"  in a configuration: tokenizer: {out}")
    return 0


def _parser_for(texts: Sequence[str], options: Any) -> CharParser:
    """The parser that rewrites texts as that of a model with the new vocabulary will."""
    letters = _letters_of(texts)
    language = language_of(letters) if options.language is None else language_code(options.language)
    if options.parser == "auto" and language not in ("en", NO_LANGUAGE):  # its numbers have letters that texts may lack
        letters |= _letters_of(read_out(text, language, lambda _: True) for text in texts)
    name = "en" if options.parser == "auto" and language == "en" else options.parser
    if name == "en":
        letters = {*"abcdefghijklmnopqrstuvwxyz'"}
    symbols = [symbol for symbol in options.symbols if symbol not in letters]
    labels = [" ", *sorted(letters), *symbols]
    return make_parser(labels, name, do_lowercase=not options.keep_case, language=options.language)


def _letters_of(texts: Iterable[str]) -> set[str]:
    """The characters that become labels: in lower case, of all apostrophes ``'``, and no digits."""
    characters = {c for text in texts for c in unicodedata.normalize("NFC", plain_letters(text).lower())}
    visible = {c for c in characters if c.isprintable() and not (c.isspace() or c.isdigit() or c == WORD_MARK)}
    return visible - {*APOSTROPHES} | ({"'"} if visible & {*APOSTROPHES} else set())


def _make(options: Any) -> int:
    source = options.source
    if not Path(source).expanduser().exists() and Path(source).name == source:
        remedy = f"name a folder or a file, or one of {', '.join(CORPORA)}{did_you_mean(source, CORPORA)}"
        raise UsageError("is neither a file or folder nor the name of a corpus", place=source, remedy=remedy)
    shares = {name: share for name, share in (("dev", options.dev), ("test", options.test)) if share is not None}
    if sum(shares.values()) >= 1.0:
        raise UsageError("--dev and --test leave nothing to train on", got=f"{sum(shares.values()):g} of 1")
    made = make_manifests(
        source,
        options.out,
        kind=options.kind or "",
        overwrite=options.overwrite,
        shares=shares,
        trim=options.trim,
        num_workers=options.num_workers,
    )
    for problem in made.problems:
        print(problem, file=sys.stderr)
    print(f"{source}: {KINDS[made.kind].description}")
    print(*summary(made), *made.notes, sep="\n")
    if made.problems:
        print(f"{counted(len(made.problems), 'problem')}: see above; the other utterances are in the manifests")
    return int(bool(made.problems))
