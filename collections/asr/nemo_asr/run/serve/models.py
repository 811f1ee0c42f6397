"""The models that a server has: each with its thread, and searches for hot words. No HTTP in here."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nemo_asr.run.engines import NO_PROMPT, Engine, FrameModel, Prompt, TranscriptionSettings
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.serve.batching import Batcher
from nemo_asr.run.transcribe.domain import Domain
from nemo_asr.run.transcribe.driver import row_transcriber
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.stream import FrameStream, Stream
from nemo_asr.run.transcribe.transcript import Transcribed
from nemo_lite.base.errors import UsageError

# Any: a search: what it is, its engine knows.

_KEPT_SEARCHES, _KEPT_BYTES = 16, 256 << 20  # of the last requests with hot words


@dataclass(frozen=True, eq=False)
class PromptedSearch:
    """A search of requests with a prompt.

    Attributes:
        engine: with the prompt.
        search: in the place of its own; None: its own.
    """

    engine: Engine
    search: Any

    @property
    def num_bytes(self) -> int:
        """Of the search."""
        return getattr(self.search, "num_bytes", 0)

    @cached_property
    def frame_model(self) -> FrameModel:
        """The engine in chunks."""
        return self.engine.frame_model()


@dataclass(frozen=True)
class ServedModel:
    """A model that requests may name.

    Attributes:
        name: in requests.
        labels: the vocabulary.
        sample_rate: samples a second that it takes.
        batcher: computes its rows.
        search_for: the search with some hot words and a prompt, and with the options of the server; None: the model's
            own. It raises UsageError for words that the labels cannot spell.
        longest_seconds: that it hears at once; None: any number.
        domain: what it has shown to know; None: that is not known.
        frame_stream: a stream by frames, for samples of a rate, with a search or None; None: the model cannot.
        languages: those that requests may tell; none: it takes no language.
        translates: whether requests may ask for English.
    """

    name: str
    labels: Sequence[str]
    sample_rate: int
    batcher: Batcher
    search_for: Callable[[tuple[str, ...], Prompt], Any]
    frame_stream: Callable[[int, Any], Stream] | None = None
    longest_seconds: float | None = None
    languages: Sequence[str] = ()
    translates: bool = False
    domain: Domain | None = None


def serve_model(
    engine: Engine,
    name: str,
    options: SearchOptions | None,
    batch_size: int,
    batch_seconds: float,
    observe: Callable[[int, float, float], object],
) -> ServedModel:
    """Start the thread of a model.

    Args:
        engine: computes it.
        name: in requests.
        options: of a search; None: the model's own.
        batch_size, batch_seconds, observe: see `Batcher`.

    Raises:
        UsageError: options of the search that do not fit it.
    """
    # Requests copy the modules of one that never computes: what computes may change while it is copied.
    resting = engine.with_prompt(NO_PROMPT) if engine.languages else engine

    def new_search(options: SearchOptions | None, prompt: Prompt) -> Any:
        if prompt == NO_PROMPT:
            return engine.new_search(options)
        prompted = resting.with_prompt(prompt)
        return PromptedSearch(prompted, None if options is None else prompted.new_search(options))

    search_for = Searches(new_search, options)
    transcribers: dict[Any, Callable[[Sequence[Recording]], Transcribed]] = {}  # used in the model's thread alone
    settings = TranscriptionSettings(batch_seconds=batch_seconds, calibration=engine.calibration)

    def compute(rows: Sequence[Recording], search: Any) -> Transcribed:
        for other in [other for other in transcribers if not search_for.keeps(other)]:
            del transcribers[other]
        if search not in transcribers:
            prompted = search if isinstance(search, PromptedSearch) else PromptedSearch(engine, search)
            transcribers[search] = row_transcriber(prompted.engine, replace(settings, search=prompted.search))
        return transcribers[search](rows)

    batcher = Batcher(compute, batch_size, batch_seconds, observe=observe)
    return ServedModel(
        name=name,
        labels=engine.labels,
        sample_rate=engine.sample_rate,
        batcher=batcher,
        search_for=search_for,
        frame_stream=_frame_streams(engine),
        longest_seconds=engine.longest_seconds,
        languages=engine.languages,
        translates=engine.translates,
        domain=engine.domain and engine.domain.calibrated(engine.calibration),
    )


def _frame_streams(engine: Engine) -> Callable[[int, Any], Stream] | None:
    try:
        model = engine.frame_model()
    except UsageError:
        return None

    known: dict[str, Any] = {"calibration": engine.calibration, "domain": engine.domain}

    def stream(rate: int, search: Any) -> Stream:
        if isinstance(search, PromptedSearch):
            return FrameStream(search.frame_model, rate, decoder=search.search, **known)
        return FrameStream(model, rate, decoder=search, **known)

    return stream


class Searches:
    """The searches for the hot words and prompts of requests. Each is made once; those of the last ones are kept.

    Args:
        new_search: makes one, for an engine with a prompt.
        options: of all; None: the model's own search, where a request has no hot words.
    """

    def __init__(
        self, new_search: Callable[[SearchOptions | None, Prompt], Any], options: SearchOptions | None
    ) -> None:
        self._new_search, self._options = new_search, options
        self._always = None if options is None else new_search(options, NO_PROMPT)
        self._made: OrderedDict[tuple[tuple[str, ...], Prompt], Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, words: tuple[str, ...], prompt: Prompt = NO_PROMPT) -> Any:
        """The search for these hot words beside those of the server; made now, or by a request before.

        Raises:
            UsageError: the labels cannot spell them.
        """
        if not words and prompt == NO_PROMPT:
            return self._always
        wanted = words, prompt
        with self._lock:
            is_new = wanted not in self._made
            made = self._made.setdefault(wanted, Future())
            self._made.move_to_end(wanted)
        if is_new:
            try:
                options = (self._options or SearchOptions()).with_hotwords(words) if words else self._options
                made.set_result(self._new_search(options, prompt))
            except BaseException as error:
                with self._lock:
                    self._made.pop(wanted, None)
                made.set_exception(error)
        self._forget()
        return made.result()

    def keeps(self, search: Any) -> bool:
        """Whether requests may come that use it again."""
        with self._lock:
            return search is self._always or any(search is one for one in self._finished())

    def _finished(self) -> list[Any]:
        return [made.result() for made in self._made.values() if made.done() and not made.exception()]

    def _forget(self) -> None:
        """Drop the oldest ones, but for the last, where they are too many or too large. They grow while they search."""
        with self._lock:
            while len(self._made) > 1:
                num_bytes = sum(getattr(search, "num_bytes", 0) for search in self._finished())
                if len(self._made) <= _KEPT_SEARCHES and num_bytes <= _KEPT_BYTES:
                    break
                self._made.popitem(last=False)


def names_of_models(paths: Sequence[str]) -> list[str]:
    """How requests call models: a file or a folder without its ending.

    Raises:
        UsageError: two have one name.
    """
    found = [Path(path).expanduser().resolve() for path in paths]
    names = [path.stem if path.suffix[1:].isalpha() else path.name for path in found]  # small-0.6b has no ending
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two models are called {name}", place=name, remedy="rename a file or a folder")
    return names
