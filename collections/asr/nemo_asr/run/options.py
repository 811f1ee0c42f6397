"""The options of the speech scripts, a dataclass for each group; names of evaluation sets; the search. No torch.

`nemo_asr/argparse.py` has the parsers, and checks what was parsed.
"""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal

from nemo_asr.run.arguments import Workers, paths_in
from nemo_asr.run.text.labels import METRICS, SCORE_NORMALIZERS
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import FileKind, names_in, read_json
from nemo_lite.base.nemo_logging import LEVELS, STYLES
from nemo_lite.base.options import (
    LR_POLICY,
    OPTIMIZER,
    Names,
    NotNegativeFloat,
    NotNegativeInt,
    OneLineParser,
    PositiveFloat,
    PositiveInt,
    not_negative_float,
    option,
    option_group,
    user_path,
)
from nemo_lite.base.ranges import Between

# Any: values of a namespace.

LOSS_SETTING = "loss."
"""Begins a setting that a recipe applies to its loss, whichever class that is."""
# Keys of a configuration that give options of training, as WeNet's configurations have them.
TRAINING_KEYS = ("optim", "optim_conf", "scheduler", "scheduler_conf", "lr_policy", "train_dataset")
# Of the search in decoding/, too.
BEAM_SIZES = Between(1, 10_000)  # more than 1,000 gain nothing
DEFAULT_BEAM_SIZE = 16
ALPHAS = Between(0, 20)
BETAS = Between(-50, 50)
HOTWORD_WEIGHTS = Between(0, 100)
BeamSize = Annotated[int, BEAM_SIZES]
ShareBelow1 = Annotated[float, Between(0, 1, below=True)]


def _trackers() -> list[str]:
    from nemo_lite.core.trackers import TRACKERS

    return ["tensorboard", *TRACKERS]


def module_lr(text: str) -> tuple[str, float]:
    """An argparse type: ``MODULE=LR``."""
    module, equals, rate = text.partition("=")
    if not module or not equals:
        raise ArgumentTypeError(f"{text!r} is not MODULE=LR, such as JasperEncoder=0.002")
    return module, not_negative_float(rate)


# Of several scripts.


@option_group
class Reading:
    """How manifests are read."""

    page: ClassVar[str] = "data"
    strict_data: bool = option(
        False,
        "a duration that is not its file's, a path that does not start at the manifest's folder, or a line without a "
        "text is an error",
    )


@option_group
class Metric:
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


# Of training.


@option_group
class TrainingData:
    """Manifests, batches, and how often to evaluate."""

    page: ClassVar[str] = "data"
    train_dataset: str | None = option(
        None, "manifest to train on; several are separated by commas, perhaps with weights (a.json:3,b.json:1)"
    )
    eval_datasets: list[str] | None = option(None, "manifests to evaluate, each a set of its own", nargs="*")
    batch_size: PositiveInt | None = option(None, "items per training batch and process (default: 64)")
    eval_batch_size: PositiveInt | None = option(None, "items per evaluation batch and process", needs="eval_datasets")
    global_batch_size: PositiveInt | None = option(None, "items per step of all processes, not --batch_size")
    iter_per_step: PositiveInt = option(1, "micro-batches of one optimizer step")
    uneven: Literal["pad", "drop", "join", "error"] = option(
        "pad",
        "what becomes of an epoch's last batches where not all processes have one: take some items twice, leave them "
        "out, let the others wait, or stop",
    )
    num_workers: Workers | None = option(None, "processes that load data (default: the model's)")
    worker_timeout: NotNegativeFloat | None = option(None, "seconds a batch may take in them (600; 0: no limit)")
    eval_freq: PositiveInt | None = option(
        None, "optimizer steps between evaluations (default: an epoch, at most 1000)", needs="eval_datasets"
    )


@option_group
class TrainedModel:
    """The configuration, and weights to start from."""

    page: ClassVar[str] = "model"
    model_config: str | None = option(
        None,
        "YAML file of the model, or the name of one that comes with nemo_lite: quartznet15x5 (default: the "
        "configuration of the model in --init_from)",
    )
    load_dir: str | None = option(None, "folder of checkpoints to start from (default: the run's own)", type=user_path)
    init_from: str | None = option(
        None,
        "a trained model whose weights training starts from: a run's folder, a model folder, a folder of checkpoints, "
        "or a model of another toolkit; steps, epochs and optimizer start anew, labels may differ",
        only_for="texts",
        type=user_path,
        metavar="MODEL",
    )
    allow_feature_change: bool = option(
        False, "use --init_from also where its features differ from those of the configuration", needs="init_from"
    )
    freeze_encoder_until: PositiveInt | None = option(
        None, "steps in which the encoder stays as it is, its batch statistics too", only_for="texts"
    )
    plan: bool = option(False, "print and save the DAGs and the schedule, then exit")


@option_group
class Optimisation:
    """How long, learning rate, optimizer, batch statistics."""

    page: ClassVar[str] = "optimisation"
    num_epochs: PositiveInt | None = option(None, "epochs to train")
    max_steps: PositiveInt | None = option(None, "optimizer steps to train")
    lr: NotNegativeFloat = option(0.02, "initial learning rate")
    lr_policy: str = option("CosineAnnealing", "learning-rate policy", choices=LR_POLICY)
    warmup_steps: NotNegativeInt | None = option(
        None, "steps in which the learning rate rises (default: 0; warmuplr has 25000, NoamAnnealing 10000)"
    )
    hold_steps: NotNegativeInt | None = option(
        None, "steps after the warm-up in which the rate stays at --lr, with a Hold policy (default: 0)"
    )
    min_lr: NotNegativeFloat | None = option(None, "learning rate at the end (default: the policy's, mostly 0)")
    d_model: PositiveInt | None = option(
        None, "channels of the encoder, of which the rate of NoamAnnealing depends (default: 512)"
    )
    module_lr: list[tuple[str, float]] | None = option(
        None,
        "learning rate of a module, instead of --lr: JasperEncoder=0.002",
        type=module_lr,
        nargs="+",
        action="extend",
        metavar="MODULE=LR",
    )
    optimizer: str = option("novograd", "optimizer", choices=OPTIMIZER)
    weight_decay: NotNegativeFloat = option(0.001, "weight decay")
    beta1: ShareBelow1 | None = option(None, "first decay rate of the optimizer")
    beta2: ShareBelow1 | None = option(None, "second decay rate of the optimizer")
    grad_norm_clip: PositiveFloat | None = option(None, "largest norm of a step's gradients (default: no limit)")
    random_seed: NotNegativeInt | None = option(
        None, "seed of every random draw (default: 0)", "--random_seed", "--seed"
    )
    seeds: PositiveInt = option(
        1,
        "train with so many seeds, one after the other; the end is a table of mean and spread (default: 1)",
        needs="eval_datasets",
    )
    cudnn_benchmark: bool = option(False, "let cuDNN time its kernels; for constant shapes")
    bn_momentum: Annotated[float, Between(0, 1, above=True)] | None = option(
        None, "weight of a new batch in the running batch statistics, 0 to 1 (default: the model's, 0.1)"
    )
    synced_bn: bool = option(False, "batch statistics of all processes together")
    synced_bn_groupsize: NotNegativeInt = option(
        0, "processes that share batch statistics (default: 0, all)", needs="synced_bn"
    )
    static_graph: bool = option(
        False, "tell torch's DistributedDataParallel that every step takes the same path through the model"
    )
    gradient_compression: Literal["bfloat16"] | None = option(
        None, "type in which processes exchange gradients: half the traffic, rounded (default: their own)"
    )


@option_group
class Regularization:
    """Against overfitting: decay, smoothing, further losses, averages of weights."""

    page: ClassVar[str] = "regularization"
    decay_weights_only: bool = option(False, "weight decay of weights alone, not of biases and normalisation")
    label_smoothing: ShareBelow1 = option(
        0.0,
        "share of the training loss that pulls each frame towards equal probabilities of all labels",
        only_for="texts",
    )
    intermediate_ctc: ShareBelow1 = option(
        0.0, "share of the training loss that is the CTC loss of the encoder's middle block", only_for="texts"
    )
    average_last: PositiveInt | None = option(
        None,
        "at the end, also write WORK_DIR/EXP_NAME/averaged: the mean of the last N checkpoints, which are kept",
        only_for="texts",
    )
    ema_decay: ShareBelow1 | None = option(
        None, "the same of a moving average of the weights over all steps, such as 0.999", only_for="texts"
    )


@option_group
class Saving:
    """Folders, and when checkpoints are saved and how many stay; ``CheckpointCallback`` explains that."""

    page: ClassVar[str] = "saving"
    work_dir: str | None = option(None, "folder for logs, curves and checkpoints")
    exp_name: str | None = option(
        None,
        "name of the run: its results go to WORK_DIR/EXP_NAME, without --work_dir to ./EXP_NAME, without both to "
        "runs/Jasper (default: Jasper)",
    )
    checkpoint_dir: str | None = option(None, "folder for checkpoints (default: WORK_DIR/EXP_NAME/checkpoints)")
    checkpoint_save_freq: PositiveInt | None = option(None, "also save after every so many optimizer steps")
    checkpoint_epoch_freq: NotNegativeInt = option(1, "epochs between checkpoints; 0: none by epochs")
    checkpoint_minutes: NotNegativeFloat = option(
        15.0, "save when the last checkpoint is so many minutes old; 0: not by time"
    )
    checkpoints_to_keep: PositiveInt = option(4, "how many of the newest checkpoints stay")
    best_to_keep: PositiveInt = option(
        2, "how many of the best by the first evaluation set stay, beside the newest", needs="eval_datasets"
    )
    allow_world_size_change: bool = option(
        False, "go on from a checkpoint that another number of processes saved; what that changes is logged"
    )
    report: bool = option(
        True, "write WORK_DIR/EXP_NAME/report.html at the end: curves, error rates, the worst utterances"
    )


@option_group
class Logging(Terminal):
    """Lines in the terminal, curves, trackers."""

    log_freq: PositiveInt = option(25, "steps between log lines about training")
    track: list[str] = option([], "record the run there too", nargs="+", choices=Names(_trackers))
    create_tb_writer: bool | None = option(None, "write TensorBoard events (default: to a folder)")
    tensorboard_dir: str | None = option(None, "folder for events (default: WORK_DIR/EXP_NAME/tensorboard)")


@option_group
class FirstGeneration:
    """The options of NeMo's first generation."""

    page: ClassVar[str] = "older"
    train_manifest: str | None = option(None, "older name of --train_dataset")
    val_manifest1: str = option("", "one more of --eval_datasets")
    val_manifest2: str = option("", "one more of --eval_datasets")
    val_manifest3: str = option("", "one more of --eval_datasets")
    batch_per_step: PositiveInt | None = option(None, "older name of --iter_per_step")
    logdir: str | None = option(None, "older name of --work_dir")
    save_freq: PositiveInt | None = option(None, "older name of --checkpoint_save_freq")
    num_gpus: PositiveInt | None = option(None, "processes that the launcher started, one for each GPU; checked")


# Of scripts that use a trained model.


@option_group
class StoredModel:
    """Which model is used."""

    page: ClassVar[str] = "model"
    load_dir: str = option(
        None,
        "the model: a run's folder, a model folder or one of checkpoints; nemo-lite eval MODEL is the same",
        type=user_path,
        required=True,
    )
    model_config: str | None = option(None, "YAML file to use instead of the model's own; it must fit the model")
    batch_size: PositiveInt = option(64, "utterances in a batch", page="data")


@option_group
class Search:
    """Decoding: beam search, lexicon, language model, hot words; arguments of ``BeamSearchCTCDecoder``."""

    page: ClassVar[str] = "decoding"
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


def search_arguments(args: Namespace) -> dict[str, Any] | None:
    """What a ``BeamSearchCTCDecoder`` is given beside its labels; None for greedy decoding."""
    if args.decoder == "greedy":
        return None
    return {name: getattr(args, name) for name in _GIVEN if getattr(args, name) is not None}


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
    paths += [folder / name for model in models for folder in (model, model / "model") for name in _names_in(folder)]
    return [path for path in paths if os.path.isfile(path)]


def _names_in(folder: Path) -> list[str]:
    with suppress(UsageError):  # what reads the model says that it cannot be read
        return names_in(folder)
    return []


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
