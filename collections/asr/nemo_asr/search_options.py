"""The command-line options of decoding: beam search, lexicon, language model, hot words. No torch in here."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from nemo_lite.config.ranges import Between
from nemo_lite.errors import DataError
from nemo_lite.untrusted import FileKind, read_json
from nemo_lite.utils.argparse import number_within

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
    asked = [name for name in (*_GIVEN, "weights") if getattr(args, name) is not None]
    nbest = getattr(args, "nbest", None)
    asked += [name for name, given in (("search_weights", searched), ("nbest", nbest)) if given]
    args.decoder = args.decoder or ("beam" if asked else "greedy")
    if args.decoder == "greedy" and asked:
        parser.error(f"--{asked[0]} has no effect with --decoder greedy; leave one out")
    if args.decoder == "lexicon" and not args.lexicon:
        parser.error("--decoder lexicon needs the words; give --lexicon FILE")
    for name in ("alpha", "weights", "search_weights"):
        if name in asked and not args.lm:
            parser.error(f"--{name} has no effect without --lm; leave it out")
    beam_size = args.beam_size or DEFAULT_BEAM_SIZE
    if nbest and nbest > beam_size:
        parser.error(f"--nbest {nbest} is more than --beam_size {beam_size}; raise that one")
    if args.hotword_weight is not None and not args.hotwords:
        parser.error("--hotword_weight has no effect without --hotwords; leave it out")
    sources = [name for name in asked if name.endswith("weights")]
    sources += [name for name in _WEIGHTS if sources and name in asked]
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
    found = read_json(Path(path).expanduser(), _WEIGHTS_FILE)
    alpha, beta = (found.get(name) if isinstance(found, dict) else None for name in _WEIGHTS)
    if not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)):
        wanted = "a file that nemo-lite eval --search_weights wrote"
        raise DataError("there are no weights in the file", place=path, wanted=wanted)
    return float(alpha), float(beta)
