"""Options of several scripts: pages of `--help`, names of evaluation sets, the search. No torch."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from nemo_lite.config import Between
from nemo_lite.errors import DataError
from nemo_lite.files import FileKind, read_json
from nemo_lite.utils.argparse import Group, HelpPages, number_within

# Short names of evaluation sets, by which their rates are logged and their files are called.


def unique_tags(manifests: Sequence[str]) -> list[str]:
    """A short name for each evaluation set: the file's stem, with as many folders before it as make it different.

    Comma-separated manifests are named after each part: ``dev-clean+dev-other``. The same set given twice is numbered.
    """
    sets = [[_parts(manifest) for manifest in together.split(",")] for together in manifests]
    tags: list[str] = []
    for depth in range(1, 1 + max((len(parts) for together in sets for parts in together), default=0)):
        tags = ["+".join("_".join(parts[-depth:]) for parts in together) for together in sets]
        if len(set(tags)) == len(tags):
            return tags
    return _numbered(tags)


def _parts(manifest: str) -> list[str]:
    """The folders and the stem of a path."""
    path = PurePath(manifest.strip())
    return [*(folder.strip("/") for folder in path.parts[:-1]), path.stem]


def _numbered(tags: Sequence[str]) -> list[str]:
    """The tags, those that occur more than once with a number that makes them different."""
    numbered: list[str] = []
    for tag in tags:
        candidates = (f"{tag}_{number}" for number in range(1, 2 + 2 * len(tags)))
        is_taken = tags.count(tag) > 1
        numbered.append(next(c for c in candidates if c not in tags and c not in numbered) if is_taken else tag)
    return numbered


# On which page of ``--help`` each option of the speech scripts stands. Options that no line names are on ``other``.


_LAUNCHING = Group(
    "devices, precision, several processes and machines",
    """
    placement amp_opt_level amp_dtype amp_backend compile compile_mode shard_weights launcher local_rank rank world_size
    init_method dist_backend dist_timeout dist_start_timeout dist_silence_timeout
    """,
)

TRAINING = HelpPages(
    most_used="""
        model_config train_dataset eval_datasets num_epochs batch_size lr warmup_steps work_dir exp_name overrides
        load_dir init_from plan
    """,
    groups={
        "data": Group(
            "manifests, batches, and how often to evaluate",
            """
            train_dataset eval_datasets batch_size eval_batch_size global_batch_size iter_per_step uneven num_workers
            worker_timeout strict_data eval_freq eval_metric
            """,
        ),
        "model": Group(
            "the configuration, modules of your own, weights to start from",
            """
            model_config overrides imports load_dir init_from allow_feature_change freeze_encoder_until plan
            precision_check
            """,
        ),
        "optimisation": Group(
            "how long, learning rate, optimizer, batch statistics",
            """
            num_epochs max_steps lr lr_policy warmup_steps hold_steps min_lr module_lr optimizer weight_decay beta1
            beta2 grad_norm_clip random_seed seeds cudnn_benchmark bn_momentum synced_bn synced_bn_groupsize
            static_graph gradient_compression
            """,
        ),
        "regularization": Group(
            "against overfitting: decay, smoothing, further losses, averages of weights",
            "decay_weights_only label_smoothing intermediate_ctc average_last ema_decay",
        ),
        "saving": Group(
            "folders and checkpoints",
            """
            work_dir exp_name checkpoint_dir checkpoint_save_freq checkpoint_epoch_freq checkpoint_minutes
            checkpoints_to_keep best_to_keep allow_world_size_change report
            """,
        ),
        "launching": _LAUNCHING,
        "logging": Group(
            "lines in the terminal, curves, trackers",
            "log_freq log_level log_style track create_tb_writer tensorboard_dir",
        ),
        "older": Group(
            "options of NeMo's first generation",
            """
            train_manifest val_manifest1 val_manifest2 val_manifest3 batch_per_step logdir save_freq
            disable_mixed_precision num_gpus
            """,
        ),
    },
)

USE = HelpPages(
    most_used="load_dir eval_datasets out compare details decoder batch_size model_config placement",
    groups={
        "data": Group(
            "manifests, batches, results",
            "eval_datasets out compare details report batch_size strict_data eval_metric",
        ),
        "decoding": Group(
            "beam search, lexicon, language model, hot words",
            "decoder beam_size lexicon lm hotwords alpha beta hotword_weight weights search_weights",
        ),
        "model": Group("what is loaded, modules of your own", "load_dir model_config overrides imports"),
        "launching": _LAUNCHING,
        "logging": Group("lines in the terminal", "log_level log_style"),
    },
)

TRANSCRIBING = HelpPages(
    most_used="format out decoder lm nbest batch_size num_workers placement",
    groups={
        "data": Group(
            "what is written, batches, modules of your own",
            "format out nbest batch_size batch_seconds num_workers worker_timeout imports",
        ),
        "decoding": Group(
            "beam search, lexicon, language model, hot words",
            "decoder beam_size lexicon lm hotwords alpha beta hotword_weight weights",
        ),
        "launching": _LAUNCHING,
    },
)


# The command-line options of decoding: beam search, lexicon, language model, hot words. No torch in here.


# Of the search in decoding/, too.
BEAM_SIZES = Between(1, 10_000)  # more than 1,000 gain nothing
DEFAULT_BEAM_SIZE = 16
ALPHAS = Between(0, 20)
BETAS = Between(-50, 50)
HOTWORD_WEIGHTS = Between(0, 100)
SEARCHES = ("greedy", "beam", "lexicon")
# What is given to the search as it is; each needs a beam search.
_GIVEN = ("beam_size", "lexicon", "lm", "hotwords", "alpha", "beta", "hotword_weight")
_WEIGHTS_FILE = FileKind("the file of weights", 1 << 16)
_WEIGHTS = ("alpha", "beta")


def add_search_options(parser: ArgumentParser, with_weight_search: bool = False, with_nbest: bool = False) -> None:
    """Add the options; ``--search_weights`` where a development set can be scored, ``--nbest`` where it is written."""
    add = parser.add_argument
    search_help = "greedy, beam search, or beam search for the words of --lexicon (default: by the other options)"
    add("--decoder", choices=SEARCHES, help=search_help)
    add("--beam_size", type=number_within(BEAM_SIZES, int), help="hypotheses that go on after each frame (default: 16)")
    add("--lexicon", metavar="FILE", help="the only words that there may be, one a line")
    add("--lm", metavar="FILE", help="n-gram language model: ARPA, also gzipped, or a binary of KenLM")
    add("--hotwords", metavar="WORD", nargs="+", help="words that are more probable here than elsewhere")
    add(
        "--alpha",
        type=number_within(ALPHAS, float),
        help="factor of the language model's logarithms (default: 0.5)",
    )
    add("--beta", type=number_within(BETAS, float), help="added for each word (default: 1)")
    add("--hotword_weight", type=number_within(HOTWORD_WEIGHTS, float), help="added for each hot word (default: 6)")
    add("--weights", metavar="FILE", help="take alpha and beta from a file that --search_weights wrote")
    if with_nbest:
        nbest_help = "write the N most probable texts of each recording with their scores, as text or json"
        add("--nbest", type=number_within(BEAM_SIZES, int), metavar="N", help=nbest_help)
    if with_weight_search:
        weights_help = "first find alpha and beta on this set, not one of the evaluated; into OUT/weights.json"
        add("--search_weights", metavar="MANIFEST", help=weights_help)


def check_search_options(parser: ArgumentParser, args: Namespace) -> None:
    """``args.decoder`` is said by the others where it is not given; what would have no effect ends the script.

    Raises:
        DataError: the file of --weights cannot be used.
    """
    searched = getattr(args, "search_weights", None)
    options = [name for name in (*_GIVEN, "weights") if getattr(args, name) is not None]
    nbest = getattr(args, "nbest", None)
    options += [name for name, value in (("search_weights", searched), ("nbest", nbest)) if value]
    args.decoder = args.decoder or ("beam" if options else "greedy")
    if args.decoder == "greedy" and options:
        parser.error(f"--{options[0]} has no effect with --decoder greedy; leave one out")
    if args.decoder == "lexicon" and not args.lexicon:
        parser.error("--decoder lexicon needs the words; give --lexicon FILE")
    for name in ("alpha", "weights", "search_weights"):
        if name in options and not args.lm:
            parser.error(f"--{name} has no effect without --lm; leave it out")
    beam_size = args.beam_size or DEFAULT_BEAM_SIZE
    if nbest and nbest > beam_size:
        parser.error(f"--nbest {nbest} is more than --beam_size {beam_size}; raise that one")
    if args.hotword_weight is not None and not args.hotwords:
        parser.error("--hotword_weight has no effect without --hotwords; leave it out")
    sources = [name for name in options if name.endswith("weights")]
    sources += [name for name in _WEIGHTS if sources and name in options]
    if len(sources) > 1:
        parser.error(f"--{sources[0]} contradicts --{sources[1]}; leave one out")
    if searched and Path(searched).resolve() in [Path(path).resolve() for path in args.eval_datasets]:
        parser.error("--search_weights is one of --eval_datasets, whose error rates would be too low; give another set")
    if args.weights:
        args.alpha, args.beta = _read_weights(args.weights)


def search_arguments(args: Namespace) -> dict[str, Any] | None:
    """What a ``BeamSearchCTCDecoder`` is given beside its labels; None for greedy decoding."""
    if args.decoder == "greedy":
        return None
    return {name: getattr(args, name) for name in _GIVEN if getattr(args, name) is not None}


def _read_weights(path: str) -> tuple[float, float]:
    weights = read_json(Path(path).expanduser(), _WEIGHTS_FILE)
    alpha, beta = (weights.get(name) if isinstance(weights, dict) else None for name in _WEIGHTS)
    if not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)):
        wanted = "a file that nemo-lite eval --search_weights wrote"
        raise DataError("there are no weights in the file", place=path, wanted=wanted)
    return float(alpha), float(beta)
