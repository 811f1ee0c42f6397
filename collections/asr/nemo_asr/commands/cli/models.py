"""List and fetch published models, show and calibrate a model, or make a model folder of weights from elsewhere."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from shutil import get_terminal_size
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import msgspec

from nemo_asr.export.int8 import MOST_LOSS, export_int8
from nemo_asr.export.onnx_asr_export import export_onnx_asr
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.export.runner_export import Written, greedy_texts
from nemo_asr.export.sherpa_export import export_sherpa, export_sherpa_stream
from nemo_asr.export.stream_export import export_stream
from nemo_asr.export.torch_export import export_torch
from nemo_asr.published.catalogue import (
    NGC_PREFIX,
    PREFIX,
    SPELLINGS,
    door,
    published_models,
    repository_of,
)
from nemo_asr.published.hub import cached_folder, download_of, fetch
from nemo_asr.run.arguments import paths_in
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.calibration import FILE_NAME
from nemo_asr.run.manifest import Manifest
from nemo_asr.run.onnx.onnx_model import INT8, SUFFIX, DescribedFile
from nemo_asr.run.onnx.onnx_stream import described_file
from nemo_asr.run.options import FOREIGN_MODELS, PUBLISHED_NAME, WITH_WEIGHTS, OwnModules, PromptOptions
from nemo_asr.run.transcribe.inputs import recordings_of
from nemo_asr.scoring.report.page import PAGE_FILE as REPORT
from nemo_asr.scoring.report.page import try_report
from nemo_asr.tasks.family import family_of
from nemo_asr.tasks.recipe import Recipe, load_recipe, recipe_from_text
from nemo_asr.tasks.registry import TASKS
from nemo_asr.trained.calibrating import MOST_CALIBRATED, calibrate, store_calibration
from nemo_asr.trained.folder import ModelCard, Rate, StoredModel, card_file, card_to_json, check_new_model, read_model
from nemo_asr.trained.hugging_face import check_kind
from nemo_asr.trained.licences import require_commercial
from nemo_asr.trained.model import TrainedModel, completed, import_model, load_model, tell_prompt
from nemo_lite.base.errors import ConfigError, UsageError, printable
from nemo_lite.base.files import check_writable_folder, json_text, make_writable_folder, refuse_existing
from nemo_lite.base.options import OneLineParser, not_negative_float, option, option_group, positive_int
from nemo_lite.base.outputs import check_output, write_output
from nemo_lite.utils import logging

_CALIBRATE, _REMEDY = "nemo-lite models calibrate", "move it away"
_NAME_COLUMNS = 37  # where a terminal is narrow; two published names are longer
_MAX_LABELS = 64  # alphabets are shown whole, vocabularies of subwords are not


def main(arguments: Sequence[str]) -> None:
    """``list``, ``get``, ``show MODEL``, ``calibrate MODEL MANIFEST``, ``import FILE`` or ``convert SOURCE FOLDER``.

    Raises:
        CheckpointError: there is no model, it is damaged, or it does not fit its configuration.
        UsageError: the folder to write has a model already, or cannot be written to.
        DataError: recordings to calibrate on cannot be read, or have too few words.
    """
    parser = OneLineParser(prog="nemo-lite models", description=__doc__)
    commands = parser.add_subparsers(metavar="list | get | show | calibrate | import | convert", required=True)
    listed = commands.add_parser("list", help="published models that are read here: facts, no error rates")
    listed.set_defaults(run=_list)
    got = commands.add_parser("get", help="fetch a published model, or what has changed of it")
    got.add_argument("name", help=f"one of nemo-lite models list, {' or '.join(SPELLINGS.values())}")
    folder_help = "also write a model folder, whose card has the SHA-256 of each file that was fetched"
    got.add_argument("--to", dest="folder", metavar="DIR", type=_folder, help=folder_help)
    got.add_argument("--offline", action="store_true", help="what is in the cache, or an error")
    got.set_defaults(run=_get)
    show = commands.add_parser("show", help="labels, sample rate, error rates, sizes; hashes are verified")
    show.add_argument("model", help=f"{WITH_WEIGHTS}, or a file of nemo-lite export (*{SUFFIX})")
    show.add_argument("--json", action="store_true", help="print model.json, or the metadata of the file, as they are")
    require_help = "exit with 1 unless the licence that the model states is known to allow commercial use"
    show.add_argument("--require", choices=["commercial"], help=require_help)
    show.set_defaults(run=_show)
    calibrate_help = "learn how confident words are right, and store it in the model folder"
    _add_calibrate(commands.add_parser("calibrate", help=calibrate_help))
    imported = commands.add_parser(
        "import", help="write a model folder of a published model: .nemo, Hugging Face, WeNet"
    )
    imported.add_argument("source", help=f"{', '.join(FOREIGN_MODELS)}, {PUBLISHED_NAME}")
    to_help = "the folder; by default beside a file, its name without the ending, and in a folder: model"
    imported.add_argument("--to", dest="folder", metavar="DIR", type=_folder, help=to_help)
    imported.add_argument("--licence", help="licence of the weights")
    imported.set_defaults(run=_import)
    convert = commands.add_parser("convert", help="write a model folder of checkpoints, also of those of NeMo 0.x")
    convert.add_argument("source", help=f"{WITH_WEIGHTS}, also checkpoints of NeMo 0.x (*.pt)")
    convert.add_argument("folder", type=_folder, help="the model folder to write")
    convert.add_argument("--model_config", help="YAML file, or the name of one; where the source carries none")
    convert.add_argument("--licence", help="licence of the weights")
    convert.add_options(OwnModules)
    convert.set_defaults(run=_convert)
    options = parser.parse_args(arguments)
    options.run(options)


def _folder(text: str) -> Path:
    """A type of argparse: an empty text, as a shell makes of a variable without a value, names no folder."""
    if not text:
        raise ArgumentTypeError("names no folder; give one, or . for the working directory")
    return Path(text)


def _add_calibrate(parser: OneLineParser) -> None:
    add = parser.add_argument
    add("model", help="a run's folder or a model folder")
    heard = f"of more than {MOST_CALIBRATED:,} as many are heard, evenly spread"
    add("manifest", help=f"utterances to learn from; not those of the training; {heard}")
    add("--test", metavar="MANIFEST", nargs="+", default=[], help="other sets on which the calibration is measured")
    add("--batch_size", type=positive_int, default=16, help="most recordings in a batch")
    parser.add_options(OwnModules)
    parser.set_defaults(run=_calibrate)


def _list(options: Namespace) -> None:
    """A line for each model: on a terminal the first columns, as many as fit, else all."""
    head = ("name", "heads", "languages", "weights", "licence", "sample rate", "repository")
    rows = [head] + [
        (
            each.name,
            each.heads,
            each.languages,
            each.parameters,
            each.licence or "see its page",
            f"{each.sample_rate} Hz",
            each.repository,
        )
        for each in published_models().values()
    ]
    widths, number = [max(map(len, column)) for column in zip(*rows, strict=True)], len(head)
    others = f"{SPELLINGS[PREFIX]} (Hugging Face), {SPELLINGS[NGC_PREFIX]} (NVIDIA's NGC)"
    note = f"As their publishers say it. Any other that is read here:\n{others}"
    columns = get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    while number > 1 and sum(widths[:number]) + 2 * (number - 1) > columns:
        if widths[0] > _NAME_COLUMNS:
            widths[0] = _NAME_COLUMNS
        else:
            number -= 1
    if number < len(head):
        note += f"\nAlso {', '.join(head[number:])}: nemo-lite models list | less -S"
    for name, *facts in rows:
        if len(name) > widths[0]:  # a line of its own
            print(name)
            name = ""
        cells = zip([name, *facts[: number - 1]], widths[:number], strict=True)
        print("  ".join(value.ljust(width) for value, width in cells).rstrip())
    print(note, file=sys.stderr)  # a pipe gets models alone


def _get(options: Namespace) -> None:
    repository = repository_of(options.name, path_first=False)
    if repository is None:
        problem = "there is no published model of this name"
        raise UsageError(problem, place=options.name, remedy=door(options.name))
    if options.folder is not None:
        check_new_model(options.folder)
    path = fetch(repository, check=check_kind, offline=options.offline, refresh=not options.offline)
    for file in download_of(cached_folder(repository)).files:
        print(f"{file.name}  {file.bytes / 2**20:.1f} MiB  SHA-256 {file.sha256}")
    print(printable(str(path)))
    if options.folder is not None:
        _tell_written(import_model(str(repository), options.folder))


def _show(options: Namespace) -> None:
    if options.model.endswith(SUFFIX):
        file = described_file(options.model)
        print(json_text(dict(file.metadata)) if options.json else printable("\n".join(_described_file(file))))
        _require(options, file.metadata.get("licence", ""), str(file.path))
        return
    stored, recipe = read_model(options.model), None
    if stored.config:
        with suppress(ConfigError):  # modules that are not known here
            recipe = recipe_from_text(stored.config, stored.place, tokenizer=stored.tokenizer, for_training=False)
    if recipe is not None:
        stored = stored._replace(card=completed(stored.card, recipe))
    if options.json:
        print(card_to_json(stored.card))
    else:
        print(printable("\n".join(_described(stored, recipe))))
    _require(options, stored.card.licence, stored.place)


def _require(options: Namespace, licence: str, place: str) -> None:
    if options.require is not None:
        try:
            require_commercial(licence, place)
        except UsageError as error:
            logging.error("%s", error)
            raise SystemExit(1) from None


def _described(stored: StoredModel, recipe: Recipe | None) -> Iterator[str]:
    card = stored.card
    yield f"{card.name or 'a model without a name'}, {stored.place}"
    if not card.sources:
        yield f"trained      step {card.step}, epoch {card.epoch}"
    if card.labels:
        yield _labels(card.labels)
        yield f"audio        {card.sample_rate} Hz; {1000 * card.frame_seconds:g} ms a frame"
    if recipe is not None:
        yield f"features     {_features(recipe.preprocessor())}"
        heads = list(family_of(recipe.family).heads)
        if len(heads) > 1:
            yield f"heads        {heads[0]}, or with --head {' or '.join(heads[1:])}"
        modules = recipe.model(with_weights=False).modules.values() if recipe.task == TASKS[0] else ()
        for name in ("languages", "tasks"):
            yield from (f"{name:<13}{', '.join(given)}" for module in modules if (given := getattr(module, name, None)))
    yield from (f"rates        {_rate(rate)}" for rate in card.rates)
    numbers = {name: sum(each.numel() for each in tensors.values()) for name, tensors in stored.weights.items()}
    yield from (f"weights      {name}: {number:,} numbers" for name, number in numbers.items())
    if card.config is not None:  # of a model folder
        yield from _files(card)
    if card.calibration is not None:
        yield f"calibration  confidences of words, learned on {card.calibration.words} words of {card.calibration.set}"
    if card.domain is not None:
        yield f"domain       {card.domain.described()}"
    for certificate in card.certificates:
        told = f"{certificate.differing} differences" if certificate.differing else "equal"
        yield f"certificate  {certificate.utterances} of {certificate.set} in {certificate.num_ways} ways: {told}"
    yield from (
        f"source       {name}{f'  SHA-256 {sha256[:16]}...' * bool(sha256)}" for name, sha256 in card.sources.items()
    )
    yield f"licence      {card.licence or 'not said'}"
    yield f"written by   {', '.join(f'{name} {version}' for name, version in card.versions.items()) or 'not said'}"


def _described_file(file: DescribedFile) -> Iterator[str]:
    said = file.metadata
    yield f"{said.get('name') or 'a model without a name'}, {file.path}"
    if "step" in said:
        yield f"trained      step {said['step']}, epoch {said.get('epoch', 'not said')}"
    yield f"family       {file.family}; gives {', '.join(file.time_axes)}"
    yield _labels(file.labels)
    yield f"audio        {file.sample_rate} Hz; {1000 * file.frame_seconds:g} ms a frame"
    for name, path in {"file": file.path, **file.part_files}.items():
        yield f"{name:12} {path.name}  {path.stat().st_size / 2**20:.1f} MiB"
    if INT8 in said:
        yield "weights      int8, where that costs no accuracy"
    yield f"licence      {said.get('licence') or 'not said'}"


def _labels(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _MAX_LABELS} more" if len(labels) > _MAX_LABELS else ""
    return f"labels       {len(labels)}: {' '.join(map(_label, labels[:_MAX_LABELS]))}{more}"


def _features(preprocessor: Any) -> str:
    """How many, and whose: 80 a frame; frames of NeMo 1.0 to 2.4."""
    return str(getattr(preprocessor, "summary", type(preprocessor).__name__))


def _files(card: ModelCard) -> Iterator[str]:
    for file in card.files:  # read_model has compared each with its hash
        yield f"file         {file.name}  {file.bytes / 2**20:.1f} MiB  SHA-256 {file.sha256[:16]}... as written"


def _label(label: str) -> str:
    return label if label.strip() else repr(label)


def _rate(rate: Rate) -> str:
    size = f", {rate.utterances} utterances" if rate.utterances is not None else ""
    hashes = ", ".join(f"{name} {sha256[:16]}..." for name, sha256 in rate.manifests.items())
    return f"{rate}{size}{f'; SHA-256 of {hashes}' if hashes else ''}"


def _calibrate(options: Namespace) -> None:
    card, folder = card_file(options.model), Path(options.model).expanduser()
    place = folder / FILE_NAME
    check_output(place, _CALIBRATE, remedy=_REMEDY)
    check_writable_folder(folder)
    model = load_model(options.model)
    done, domain = calibrate(model, options.manifest, options.test, options.batch_size)
    store_calibration(card, model.card, done.calibration, domain)
    record = msgspec.json.encode(done)
    content = msgspec.json.format(record, indent=1)
    write_output(place, lambda file: file.write_bytes(content), _CALIBRATE, remedy=_REMEDY)
    for each in done.sets:
        before, after = each.before, each.after
        right = f"{before.words} words, {before.right:.1%} right"
        print(f"{each.name}: {right}; confidences are off by {before.error:.1%}, calibrated by {after.error:.1%}")
    print(f"{card}: slope {done.calibration.slope:g}, offset {done.calibration.offset:g}; in {place} too")
    if domain is not None:
        print(f"{card}: recordings that are not like {domain.described()} are marked")
    if (folder / REPORT).is_file():
        try_report(folder)


def _import(options: Namespace) -> None:
    _tell_written(import_model(options.source, options.folder, options.licence))


def _convert(options: Namespace) -> None:
    target = options.folder.expanduser()
    check_new_model(target, "give another folder")
    recipe = load_recipe(options.model_config) if options.model_config else None
    model = load_model(options.source, recipe=recipe)
    model.save(target, licence=options.licence)
    _tell_written(TrainedModel(str(target), model.recipe, model.modules, model.card))


def _tell_written(model: TrainedModel) -> None:
    print(f"features     {_features(model.modules.preprocessor)}")
    print(printable(f"{model.place}: {model.card.name}, {model.card.progress()}"))


def export(arguments: Sequence[str]) -> None:
    """Write a trained model as files that other programs run.

    Each file is compared with the modules in torch; how near it is is printed.

    Raises:
        CheckpointError: there is no model, or it is damaged.
        UsageError: the file exists, a package is missing, the program cannot run the model, or the file and torch
            differ; then there is no file.
        DataError: a recording that cannot be read.
    """
    parser = _ExportParser()
    options = parser.parse_args(list(arguments))
    _check_export(parser, options)
    path = options.file.expanduser()
    refuse_existing(path)
    make_writable_folder(path.parent)
    if options.int8:
        _export_int8(options)
    else:
        _export_float(options, options.file)


def _check_export(parser: OneLineParser, options: Namespace) -> None:
    """End the command where options contradict each other, before anything is read."""
    suffix, _ = _EXPORTS[options.format]
    if options.stream and options.format not in ("onnx", "sherpa-onnx"):
        parser.error(f"--stream has no effect with --format {options.format}; leave it out")
    if options.waveform and (options.stream or options.format != "sherpa-onnx"):
        parser.error("--waveform is for --format sherpa-onnx without --stream; leave it out")
    if options.int8 and (options.stream or options.format != "onnx"):
        parser.error("--int8 is for --format onnx without --stream; leave it out")
    if options.int8 != bool(options.eval_datasets) or (options.max_wer_loss is not None and not options.int8):
        parser.error("--int8 needs --eval_datasets, and neither these nor --max_wer_loss have an effect without it")
    if options.file.suffix != suffix:
        wanted = f"FILE{suffix}" if suffix else "the name of a folder, without an ending"
        raise UsageError("the name of the file has another ending", got=str(options.file), wanted=wanted)


def _export_int8(options: Namespace) -> None:
    """The int8 file of an ONNX file, or of one that is written for it."""
    for manifests in options.eval_datasets:
        Manifest.open(paths_in(manifests))  # DataError before the model is exported
    most_loss = MOST_LOSS if options.max_wer_loss is None else options.max_wer_loss / 100
    with TemporaryDirectory() as folder:
        source = Path(options.model)
        if source.suffix != SUFFIX:
            source = Path(folder) / options.file.name
            _export_float(options, source)
        print(export_int8(source, options.file, options.eval_datasets, most_loss))


def _export_float(options: Namespace, path: Path) -> None:
    recordings = recordings_of(options.audio)
    recipe = load_recipe(options.model_config) if options.model_config else None
    model = load_model(options.model, recipe=recipe)
    if options.head is not None:
        model = model.with_head(options.head)
    tell_prompt(model, options)
    reading = model.recipe.reading
    heard = [
        recording.read(reading.sample_rate, trim_silence=reading.trim_silence, int_values=reading.int_values).samples
        for recording in recordings
    ]
    _, write = _EXPORTS[options.format]
    lines = list(write(model, path, options, heard))
    files = [*path.expanduser().iterdir()] if path.expanduser().is_dir() else [path.expanduser()]
    size = sum(file.stat().st_size for file in files) / 2**20
    print(f"{path}: {model.card.name}, {model.card.progress()}, {size:.1f} MiB")
    for line in lines:
        print(line)


def _export_onnx(model: TrainedModel, path: Path, options: Namespace, heard: Sequence[Samples]) -> Iterator[str]:
    write = export_stream if options.stream else export_onnx
    yield f"compared with ONNX Runtime: {write(model, path, heard)}"


def _export_torch(model: TrainedModel, path: Path, options: Namespace, heard: Sequence[Samples]) -> Iterator[str]:
    yield f"compared with the program read back: {export_torch(model, path, heard)}"


def _export_onnx_asr(model: TrainedModel, path: Path, options: Namespace, heard: Sequence[Samples]) -> Iterator[str]:
    return _told(model, export_onnx_asr(model, path, heard), heard)


def _export_sherpa(model: TrainedModel, path: Path, options: Namespace, heard: Sequence[Samples]) -> Iterator[str]:
    if options.stream:
        return _told(model, export_sherpa_stream(model, path), heard)
    return _told(model, export_sherpa(model, path, True if options.waveform else None, heard), heard)


def _told(model: TrainedModel, written: Written, heard: Sequence[Samples]) -> Iterator[str]:
    """How near the file is to torch, how to load it, and what the program itself hears."""
    yield f"compared with ONNX Runtime: largest difference of {written.values} {written.difference:.1e}"
    yield f"load it with {written}"
    if written.before or written.behind:
        yield f"put {written.before} zero samples before the audio, and {written.behind} behind it"
    yield from written.advice
    if not heard:
        return
    texts = written.hear(heard, model.card.sample_rate)
    if texts is None:
        yield f"its texts are not compared: {written.package} is not installed"
        return
    wanted = greedy_texts(model, heard)
    equal = sum(text == other for text, other in zip(texts, wanted, strict=True))
    yield f"{written.package} {version(written.package)}: {equal} of {len(texts)} texts equal the model's"
    for text, other in zip(texts, wanted, strict=True):
        if text != other:
            yield printable(f"  {written.package}: {text!r}, model: {other!r}")


_EXPORTS: Mapping[str, tuple[str, Callable[[TrainedModel, Path, Namespace, Sequence[Samples]], Iterator[str]]]] = {
    "onnx": (SUFFIX, _export_onnx),
    "sherpa-onnx": ("", _export_sherpa),
    "onnx-asr": ("", _export_onnx_asr),
    "torch": (".pt2", _export_torch),
}


@option_group
class _ExportOptions:
    """What is written, of which part of a model, and on what it is tried."""

    page: ClassVar[str] = "file"
    format: str = option(
        "onnx",
        "the program: our own and ONNX Runtime (onnx), sherpa-onnx, onnx-asr, or torch alone (default: onnx)",
        choices=tuple(_EXPORTS),
    )
    stream: bool = option(
        False, "a file that takes audio in chunks, with the states between them; onnx and sherpa-onnx"
    )
    audio: list[str] = option(
        [],
        "recordings (files, folders, manifests) on which it is compared as well, by the program if it is installed",
        metavar="AUDIO",
        nargs="+",
    )
    waveform: bool = option(False, "sherpa-onnx takes the waveform, also where it could compute the model's features")
    head: str | None = option(
        None,
        "which head of a model with several is written, such as ctc; by default the first",
        metavar="HEAD",
        page="model",
    )
    model_config: str | None = option(
        None, "YAML file, or the name of one, where MODEL carries none: checkpoints of NeMo 0.x (*.pt)", page="model"
    )
    int8: bool = option(
        False,
        "write int8 weights, if the error rate on --eval_datasets stays as it is: needs them",
        page="int8",
    )
    eval_datasets: list[str] = option(
        [], "sets on which --int8 is measured", metavar="MANIFEST", nargs="+", page="int8"
    )
    max_wer_loss: float | None = option(
        None,
        f"by how much an error rate may grow with --int8, in points (default: {100 * MOST_LOSS:g})",
        type=not_negative_float,
        metavar="POINTS",
        page="int8",
    )


class _ExportParser(OneLineParser):
    groups = (_ExportOptions, OwnModules, PromptOptions)
    most_used = "format stream head audio int8 eval_datasets"
    pages: ClassVar[dict[str, str]] = {
        "file": "the program, and recordings on which the file is compared",
        "model": "which head, modules of your own",
        "decoding": "languages and tasks, punctuation, what attention sees",
        "int8": "smaller weights, and what they may cost",
    }

    def __init__(self) -> None:
        super().__init__(prog="nemo-lite export", description="Write a trained model as files that other programs run.")
        self.add_argument("model", metavar="MODEL", help=f"{WITH_WEIGHTS}; with --int8 also FILE{SUFFIX}")
        self.add_argument(
            "file",
            metavar="FILE",
            type=Path,
            help="what to write (FILE.onnx, FILE.pt2, or for sherpa-onnx and onnx-asr a folder); it must be new",
        )
