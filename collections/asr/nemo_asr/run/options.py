"""The options of the speech scripts, a dataclass for each group; names of evaluation sets; the search. No torch.

`nemo_asr/argparse.py` has the parsers, and checks what was parsed.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal

from nemo_asr.run.arguments import paths_in
from nemo_asr.run.text.labels import METRICS, SCORE_NORMALIZERS
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, names_in, read_json
from nemo_lite.base.nemo_logging import LEVELS, STYLES
from nemo_lite.base.options import OneLineParser, not_negative_int, option, option_group, user_path
from nemo_lite.base.ranges import Between, PositiveInt

# Any: values of a namespace.

LOSS_SETTING = "loss."
"""Begins a setting that a recipe applies to its loss, whichever class that is."""
# Keys of a configuration that give options of training, as WeNet's configurations have them.
TRAINING_KEYS = (
    *("optim", "optim_conf", "scheduler", "scheduler_conf", "lr_policy", "train_dataset"),
    *("batch_size", "eval_batch_size", "accum_grad", "grad_clip", "max_epoch", "log_interval", "save_interval"),
)
BEAM_SIZES = Between(1, 10_000)  # more than 1,000 gain nothing
DEFAULT_BEAM_SIZE = 16
ALPHAS = Between(0, 20)
BETAS = Between(-50, 50)
HOTWORD_WEIGHTS = Between(0, 100)
BeamSize = Annotated[int, BEAM_SIZES]

# What a model's path may be, for help and errors alike.
FOREIGN_MODELS = ("a .nemo file", "a folder of Hugging Face", "a folder of WeNet")
MODEL_PATHS = ", ".join(("a run's folder", "a model folder", "a folder of checkpoints", *FOREIGN_MODELS))
PUBLISHED_NAME = "the name of a published model (nemo-lite models list, hf:OWNER/NAME, ngc:...)"
WITH_WEIGHTS = f"{MODEL_PATHS}, {PUBLISHED_NAME}"


@option_group
class ReadingOptions:
    """How manifests are read."""

    page: ClassVar[str] = "data"
    strict_data: bool = option(
        False,
        "a duration that is not its file's, a path that does not start at the manifest's folder, or a line without a "
        "text is an error",
    )


@option_group
class MetricOptions:
    """``wer``, ``cer``, or None for what :func:`nemo_asr.text.main_metric` says of the labels."""

    page: ClassVar[str] = "data"
    eval_metric: str | None = option(
        None,
        "error rate that comes first (default: by the labels; cer where texts have no words, as in Chinese)",
        only_for="texts",
        choices=METRICS,
    )
    score_normalizer: str | None = option(
        None,
        "what is made of references and hypotheses alike before they are compared; none: as written (default: "
        "references as training reads them)",
        only_for="texts",
        choices=SCORE_NORMALIZERS,
    )


@option_group
class OwnModules:
    """Modules of one's own."""

    page: ClassVar[str] = "model"
    imports: list[str] = option(
        [],
        "Python file with modules of your own, run first; may be given several times",
        "--import",
        metavar="FILE",
        action="append",
    )


@option_group
class Overrides(OwnModules):
    """Changes of a configuration."""

    overrides: list[str] = option(
        [],
        "set a value of the configuration, such as JasperEncoder.jasper.0.dropout=0.1; may be given several times",
        "--set",
        metavar="KEY=VALUE",
        action="append",
    )


@option_group
class Configuration(Overrides):
    """The model's configuration, and changes of it."""

    language: list[str] = option(
        [],
        "language of the texts: en, de, zh, ... or none (default: what the script of the labels tells)",
        dest="overrides",
        metavar="CODE",
        action="append",
        type='language="{}"'.format,
    )


@option_group
class Terminal:
    """Lines in the terminal."""

    page: ClassVar[str] = "logging"
    log_level: str | None = option(None, "least level of the lines that are shown (default: info)", choices=LEVELS)
    log_style: str | None = option(
        None,
        "lines on the terminal: messages alone, or with NeMo's heads and banners (default: NEMO_LITE_LOG_STYLE)",
        choices=STYLES,
    )


@option_group
class StoredModelOptions:
    """Which model is used."""

    page: ClassVar[str] = "model"
    load_dir: str = option(
        None,
        "the model, as nemo-lite eval MODEL takes it",
        type=user_path,
        required=True,
    )
    model_config: str | None = option(None, "YAML file to use instead of the model's own; it must fit the model")
    batch_size: PositiveInt = option(64, "utterances in a batch", page="data")


@option_group
class SearchArguments:
    """Decoding: beam search, lexicon, language model, hot words; what a model's own search makes of them."""

    page: ClassVar[str] = "decoding"
    head: str | None = option(
        None,
        "ctc, transducer, attention or attention_rescoring: which head of a model with several is used (default: the "
        "first that nemo-lite models show tells)",
        metavar="HEAD",
    )
    decoder: Literal["greedy", "beam", "lexicon"] | None = option(
        None, "greedy, beam search, or beam search for the words of --lexicon (default: by the other options)"
    )
    beam_size: BeamSize | None = option(None, "hypotheses that go on after each frame (default: 16)")
    lexicon: str | None = option(None, "the only words that there may be, one a line", metavar="FILE")
    lm: str | None = option(None, "n-gram language model: ARPA, also gzipped, or a binary of KenLM", metavar="FILE")
    hotwords: list[str] | None = option(
        None,
        "words and phrases that are more probable here; word:8 has its own weight, @FILE has one a line",
        metavar="WORD",
        nargs="+",
    )
    alpha: Annotated[float, ALPHAS] | None = option(
        None, "factor of the language model's logarithms (default: 0.5)", needs="lm"
    )
    beta: Annotated[float, BETAS] | None = option(None, "added for each word (default: 1)")
    hotword_weight: Annotated[float, HOTWORD_WEIGHTS] | None = option(
        None, "added for each hot word or phrase without a weight of its own (default: 6)", needs="hotwords"
    )
    weights: str | None = option(
        None, "take alpha and beta from a file that --search_weights wrote", needs="lm", metavar="FILE"
    )


@option_group
class TextOptions:
    """What the texts of all recordings are to be, and what attention sees, of a model that can be told."""

    page: ClassVar[str] = "decoding"
    target_language: str | None = option(
        None, "the language of the text, of a model that translates (default: the one that is spoken)", metavar="CODE"
    )
    punctuation: Literal["on", "off"] | None = option(
        None, "whether texts have punctuation and capital letters, of a model that can do without (default: on)"
    )
    att_context_size: list[int] | None = option(
        None,
        "encoded frames before and behind a frame that the attention of a Conformer sees, in chunks of one more than "
        "the second: 48 15 is two chunks of 16. By default those of the model",
        type=not_negative_int,
        nargs=2,
        metavar=("LEFT", "RIGHT"),
    )


@option_group
class PromptOptions(TextOptions):
    """What a model is told about all recordings."""

    prompt_language: str | None = option(
        None,
        "the language that is spoken, of a model that takes it as a prompt: one that it knows, such as de-DE, or auto "
        "(default: auto; en, of models without it)",
        "--language",
        metavar="CODE",
    )
    prompt_task: Literal["transcribe", "translate"] | None = option(
        None, "of a model that has tasks, such as Whisper: write what is said, or its English translation", "--task"
    )
    timestamps: bool = option(
        False,
        "let a model that can (Whisper, Canary's flash models) find when parts of a text are said; its text may be "
        "another one",
    )


@option_group
class WeightSearch:
    """A search of the weights, where a development set can be scored."""

    page: ClassVar[str] = "decoding"
    search_weights: str | None = option(
        None,
        "first find alpha and beta on this set, not one of the evaluated; into OUT/weights.json",
        needs="lm",
        only_for="texts",
        metavar="MANIFEST",
    )


def _providers(text: str) -> list[str]:
    """A type of argparse: names with commas between."""
    return [name.strip() for name in text.split(",") if name.strip()]


@option_group
class OnnxRuntime:
    """What computes an ONNX file."""

    page: ClassVar[str] = "launching"
    providers: list[str] = option(
        [],
        "what computes an ONNX file, with commas between, the first one first, such as CUDA,CPU (default: CPU)",
        type=_providers,
        metavar="NAMES",
    )
    threads: Annotated[int, Between(1, 1024)] | None = option(
        None, "threads that compute an ONNX file (default: one for each core)"
    )


# What the options of decoding mean together.


_WEIGHTS_FILE = FileKind("the file of weights", 1 << 16)
# What a search is given as it is.
_GIVEN = ("beam_size", "lexicon", "lm", "hotwords", "alpha", "beta", "hotword_weight")


def check_search_options(parser: OneLineParser, args: Namespace) -> None:
    """``args.decoder`` is said by the others where it is not given; what would have no effect ends the script.

    Raises:
        DataError: the file of --weights cannot be used.
    """
    searched, nbest = getattr(args, "search_weights", None), getattr(args, "nbest", None)
    options = [
        name for name in (*_GIVEN, "weights", "search_weights", "nbest") if getattr(args, name, None) is not None
    ]
    args.decoder = args.decoder or ("beam" if options else "greedy")
    if args.decoder == "greedy" and options:
        parser.error(f"--{options[0]} has no effect with --decoder greedy; leave one out")
    if args.decoder == "lexicon" and not args.lexicon:
        parser.error("--decoder lexicon needs the words; give --lexicon FILE")
    parser.check_needs(args)
    beam_size = args.beam_size or DEFAULT_BEAM_SIZE
    if nbest and nbest > beam_size:
        parser.error(f"--nbest {nbest} is more than --beam_size {beam_size}; raise that one")
    sources: list[str] = [name for name in ("weights", "search_weights") if name in options]
    sources += [name for name in ("alpha", "beta") if sources and name in options]
    if len(sources) > 1:
        parser.error(f"--{sources[0]} contradicts --{sources[1]}; leave one out")
    if searched and Path(searched).resolve() in [Path(path).resolve() for path in args.eval_datasets]:
        parser.error("--search_weights is one of --eval_datasets, whose error rates would be too low; give another set")
    if args.weights:
        args.alpha, args.beta = read_weights(args.weights)


@dataclass(frozen=True)
class SearchOptions:
    """What is asked of a search. None, and no words: what the search has by itself.

    Attributes:
        beam_size: hypotheses that go on after each frame.
        lexicon: a file of the only words that there may be.
        lm: a file of a language model.
        hotwords: words and phrases that are more probable here.
        alpha: factor of the language model's logarithms.
        beta: added for each word.
        hotword_weight: added for each hot word or phrase without a weight of its own.
        temperature: of an attention decoder: draw each label, from probabilities to the power of 1 by this.
    """

    beam_size: int | None = None
    lexicon: str | None = None
    lm: str | None = None
    hotwords: tuple[str, ...] = ()
    alpha: float | None = None
    beta: float | None = None
    hotword_weight: float | None = None
    temperature: float | None = None

    def arguments(self) -> dict[str, Any]:
        """What is asked for, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, ())}

    def with_hotwords(self, words: Iterable[str]) -> SearchOptions:
        """With more hot words."""
        return replace(self, hotwords=(*self.hotwords, *words))

    def without_hotwords(self) -> SearchOptions:
        """The same search without hot words."""
        return replace(self, hotwords=(), hotword_weight=None)

    def refuse_others(self, names: Collection[str], place: str) -> None:
        """UsageError where something is asked for that a search cannot do.

        Args:
            names: what it can do.
            place: whose search it is.
        """
        others = [name for name in self.arguments() if name not in names]
        if others:
            wanted = f"one of {', '.join(names)}" if names else "no option of a search"
            problem, remedy = "this search has no such option", "leave it out, or take a model with a CTC head"
            raise UsageError(problem, place=place, got=", ".join(others), wanted=wanted, remedy=remedy)


def search_options(args: Namespace) -> SearchOptions | None:
    """What is asked of a search; None: nothing, so it is the model's own."""
    if args.decoder == "greedy":
        return None
    values = {name: getattr(args, name) for name in _GIVEN}
    return SearchOptions(**{**values, "hotwords": tuple(args.hotwords or ())})


def read_weights(path: str) -> tuple[float, float]:
    """Alpha and beta of a file that ``nemo-lite eval --search_weights`` wrote.

    Raises:
        DataError: there are none in it.
    """
    weights = read_json(Path(path).expanduser(), _WEIGHTS_FILE)
    alpha, beta = (weights.get(name) if isinstance(weights, dict) else None for name in ("alpha", "beta"))
    if not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)):
        wanted = "a file that nemo-lite eval --search_weights wrote"
        raise DataError("there are no weights in the file", place=path, wanted=wanted)
    return float(alpha), float(beta)


# Short names of evaluation sets, by which their rates are logged and their files are called.


_WRITTEN = ("out", "cut", "picture")  # options that name what a command writes
_MODELS = ("model", "load_dir", "compare")


def named_files(args: Namespace) -> list[Path]:
    """The files that options and arguments name, but for those to be written; of a model's folder those that are in it.

    A command may not overwrite them, see `nemo_lite.base.outputs.check_output`.
    """
    values = [value for name, value in vars(args).items() if name not in _WRITTEN]
    several = [each for value in values for each in (value if isinstance(value, (list, tuple)) else [value])]
    texts = [str(each) for each in several if isinstance(each, (str, Path))]
    paths = [Path(part.removeprefix("@")).expanduser() for text in texts for part in {text, *text.split(",")} if part]
    models = [Path(model).expanduser() for name in _MODELS if isinstance(model := getattr(args, name, None), str)]
    for folder in (folder for model in models for folder in (model, model / "model")):
        with suppress(UsageError):  # what reads the model says that it cannot be read
            paths += [folder / name for name in names_in(folder)]
    return [path for path in paths if os.path.isfile(path)]


def results_folder(args: Namespace) -> Path:
    """Where an evaluation writes: ``--out``, or ``results/NAME`` by the name of the run or the model."""
    if args.out:
        return Path(args.out).expanduser()
    place = Path(args.load_dir).expanduser().resolve()
    if place.name in ("model", "checkpoints"):  # of a run
        place = place.parent
    return Path("results", (place.stem if place.is_file() else place.name) or "model")


def unique_tags(manifests: Sequence[str]) -> list[str]:
    """A short name for each evaluation set: the file's stem, with as many folders before it as make it different.

    Comma-separated manifests are named after each part: ``dev-clean+dev-other``. The same set given twice is numbered.
    """
    sets = [[_parts(manifest) for manifest in paths_in(together)] for together in manifests]
    tags: list[str] = []
    for depth in range(1, 1 + max((len(parts) for together in sets for parts in together), default=0)):
        tags = ["+".join("_".join(parts[-depth:]) for parts in together) for together in sets]
        if len(set(tags)) == len(tags):
            return tags
    return _numbered(tags)


def _parts(manifest: str) -> list[str]:
    """The folders and the stem of a path; a byte that is no UTF-8, which TensorBoard does not take, is ``?``."""
    path = PurePath(manifest.strip().encode(errors="replace").decode())
    return [*(folder.strip("/") for folder in path.parts[:-1]), path.stem]


def _numbered(tags: Sequence[str]) -> list[str]:
    """The tags, those that occur more than once with a number that makes them different."""
    numbered: list[str] = []
    for tag in tags:
        candidates = (f"{tag}_{number}" for number in range(1, 2 + 2 * len(tags)))
        is_taken = tags.count(tag) > 1
        numbered.append(next(c for c in candidates if c not in tags and c not in numbered) if is_taken else tag)
    return numbered
