"""The searches of exported models, by family: they run without torch. ``register_search`` makes another one known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.ctc import PathSearch
from nemo_asr.run.search.exported_transducer import ExportedNetworks
from nemo_asr.run.search.parts import NO_PARTS, Parts
from nemo_asr.run.search.search import Search
from nemo_asr.run.search.transducer import GreedyTransducer
from nemo_lite.base.errors import UsageError

NewSearch: TypeAlias = "Callable[[Sequence[str], SearchOptions | None, Parts], Search]"


def ctc_search(labels: Sequence[str], options: SearchOptions | None = None, parts: Parts = NO_PARTS) -> Search:
    """The search of a CTC model.

    Args:
        labels: the vocabulary, without the blank.
        options: what is asked of it; None: the most probable class of each frame.
        parts: none.

    Raises:
        UsageError, DataError: as of `TextSearch`.
    """
    if options is None:
        return PathSearch()
    from nemo_asr.run.search.text_search import TextSearch  # greedy decoding is there sooner without

    return TextSearch(labels, **options.arguments())


def transducer_search(labels: Sequence[str], options: SearchOptions | None, parts: Parts) -> Search:
    """The search of a transducer: greedy, or with a beam.

    Args:
        labels: the vocabulary, without blanks.
        options: what is asked of it; None: the most probable output of each frame.
        parts: its networks.

    Raises:
        UsageError, DataError: as of `TransducerBeam`.
        KeyError, ValidationError: as of `search_of_family`.
    """
    networks = ExportedNetworks(parts, len(labels))
    max_symbols = networks.settings.max_symbols
    if options is None:
        return GreedyTransducer(networks, max_symbols)
    from nemo_asr.run.search.transducer_beam import TransducerBeam  # greedy decoding is there sooner without

    return TransducerBeam(networks, labels, max_symbols=max_symbols, **options.arguments())


_SEARCHES: dict[str, NewSearch] = {"ctc": ctc_search, "transducer": transducer_search}


def register_search(family: str, new_search: NewSearch) -> None:
    """Make the search of a family known to files that were exported of it.

    Args:
        family: its name.
        new_search: from labels, options, of which None asks for nothing, and parts to a search.
    """
    _SEARCHES[family] = new_search


def is_known(family: str) -> bool:
    """Whether exported models of this family have a search without torch."""
    return family in _SEARCHES


def search_of_family(
    family: str, labels: Sequence[str], options: SearchOptions | None = None, parts: Parts = NO_PARTS
) -> Search:
    """The search of an exported model.

    Raises:
        UsageError: there is none without torch for this family, or it cannot do what is asked for.
        KeyError, msgspec.ValidationError: the parts are not those of the family.
    """
    if family not in _SEARCHES:
        problem = f"there is no search for exported models of family {family}"
        remedy = "transcribe with the model folder, or give --import FILE that calls register_search"
        raise UsageError(problem, got=family, wanted=", ".join(_SEARCHES), remedy=remedy)
    return _SEARCHES[family](labels, options, parts)
