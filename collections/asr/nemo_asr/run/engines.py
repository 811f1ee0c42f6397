"""Engines: a model in a runtime, which computes rows of recordings and lets a search look for labels in them.

What is around that is the same for all: see `run.transcribe.driver`. An engine is opened by the kind of its path. What
needs torch is named here, not imported.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from nemo_asr.run.arguments import BatchSeconds, BatchSize, Workers
from nemo_asr.run.audio.segments import DEFAULT_CUTTING, Cutting, Detector, Samples
from nemo_asr.run.options import SearchOptions
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import check_number

if TYPE_CHECKING:
    from nemo_asr.run.calibration import Calibration
    from nemo_asr.run.search.search import Aligner, Hypotheses, Search, States
    from nemo_asr.run.text.parser import CharParser
    from nemo_asr.run.transcribe.domain import Domain, Moments
    from nemo_asr.run.transcribe.inputs import Recording

T = TypeVar("T")

BATCH_SIZE, BATCH_SECONDS = 16, 240.0


@dataclass(frozen=True)
class TranscriptionSettings:
    """How recordings are transcribed.

    Attributes:
        batch_size: most recordings in a batch; -1: as many as ``batch_seconds`` allow.
        batch_seconds: most seconds of audio that are computed at once. In torch it bounds memory: longer rows are
            computed in overlapping windows. A batch of several rows is not longer in any engine, padding included.
        num_workers: processes that read audio, where the engine has some.
        worker_timeout: seconds that a batch may take in them before an error; 0: for ever. None: 600.
        search: in the place of the model's own, one that `Engine.new_search` gives.
        nbest: above 1, transcripts have so many ``hypotheses``, of a search that gives several.
        cutting: pauses and lengths of segments; None: recordings are transcribed as they are.
        detector: says where somebody speaks, see `voice_activity`; None: the levels of the recording.
        calibration: turns the confidence of a word into a calibrated one; None: it is as the model gives it.
        verbose: show progress on a terminal.
        temperatures: at which a text that repeats itself or is improbable is drawn anew, one after the other, of an
            attention decoder; none: it stays. See `nemo_asr.run.transcribe.doubts`.
        count_gaps: of a set on which a model is measured, say in one line how many recordings have gaps; not of each.

    Raises:
        UsageError: numbers out of range.
    """

    batch_size: BatchSize = BATCH_SIZE
    batch_seconds: BatchSeconds = BATCH_SECONDS
    num_workers: Workers = 0
    worker_timeout: float | None = None
    search: object = None
    nbest: int = 1
    cutting: Cutting | None = DEFAULT_CUTTING
    detector: Detector | None = None
    calibration: Callable[[float], float] | None = None
    verbose: bool = False
    temperatures: Sequence[float] = ()
    count_gaps: bool = False

    def __post_init__(self) -> None:
        check_number("batch_size", self.batch_size, BatchSize)
        check_number("batch_seconds", self.batch_seconds, BatchSeconds)
        check_number("num_workers", self.num_workers, Workers)


class Prompt(NamedTuple):
    """What a model is told about recordings, beside what it was told before.

    Attributes:
        language: that is spoken; "": nothing is said about it.
        translate: write it in English.
    """

    language: str = ""
    translate: bool = False


NO_PROMPT = Prompt()


class Row(NamedTuple, Generic[T]):
    """What an engine gives of a row.

    Attributes:
        number: of the row.
        value: what was computed of it.
        start: seconds into the row where its first frame begins: quiet samples before it were left out.
        frame_seconds: how much audio a frame stands for.
        moments: of what the search reads, see `nemo_asr.run.transcribe.domain`; None: they are not needed.
    """

    number: int
    value: T
    start: float
    frame_seconds: float
    moments: Moments | None = None


ComputeRows: TypeAlias = "Callable[[Sequence[Recording], dict[int, str]], Iterable[Row[Hypotheses]]]"


class FrameModel(Protocol):
    """A model that runs in chunks, of which many streams can be made: `StreamedModel`, or one in an ONNX file."""

    @property
    def labels(self) -> Sequence[str]:
        """The vocabulary."""

    @property
    def sample_rate(self) -> int:
        """Samples a second that it takes."""

    @property
    def frame_samples(self) -> int:
        """Samples of one frame of what is searched."""

    @property
    def hop_samples(self) -> int:
        """Samples of one frame of features."""

    @property
    def search(self) -> Search:
        """The model's own."""

    def frames(self) -> Callable[[Samples, bool], States]:
        """A new stream: the next samples (T,), and whether they are the last, to what is searched of new frames."""


class StreamEngine(Protocol):
    """A model in a runtime, as streams by frames need it: an `Engine`, or an `OnnxStreamedModel`."""

    @property
    def labels(self) -> Sequence[str]:
        """The vocabulary."""

    @property
    def calibration(self) -> Calibration | None:
        """Of the confidences of words; None: they are as the model gives them."""

    @property
    def domain(self) -> Domain | None:
        """What it has shown to know, by confidences that are not calibrated; None: that is not known."""

    def new_search(self, options: SearchOptions | None = None) -> Any:
        """A search with these options; None: the model's own.

        Raises:
            UsageError, DataError: it cannot do what is asked for.
        """

    def frame_model(self) -> FrameModel:
        """The model in chunks, of which many streams can be made.

        Raises:
            UsageError: it cannot run so, with the reason.
        """


class Engine(StreamEngine, Protocol):
    """A model in a runtime: `OnnxModel`, or a `TrainedModel` in torch."""

    @property
    def sample_rate(self) -> int:
        """Samples a second that it takes."""

    @property
    def may_invent(self) -> bool:
        """Whether its texts may be doubtful, see `nemo_asr.run.transcribe.doubts`."""

    @property
    def longest_seconds(self) -> float | None:
        """Of a row; None: any number."""

    @property
    def languages(self) -> Sequence[str]:
        """Those that it can be told; none: it takes no language."""

    @property
    def translates(self) -> bool:
        """Whether it can be told to write in English what is said in other languages."""

    def with_prompt(self, prompt: Prompt) -> Engine:
        """An engine of the same weights with this prompt; this one stays as it is, also while both compute.

        Raises:
            UsageError: the model cannot be told it.
        """

    def hypotheses(
        self, rows: Sequence[Recording], faults: dict[int, str], settings: TranscriptionSettings
    ) -> Iterator[Row[Hypotheses]]:
        """What is said in rows, which have their lengths, in any order; on ranks above 0 nothing.

        A search looks where the states are: on the rank that has computed them, greedily in each window, so states of
        long recordings are not kept.

        Args:
            rows: recordings as they are computed, not cut.
            faults: takes why some of them cannot be read, by number. Complete at the end.
            settings: batches and the search.
        """

    def of_one_batch(self, settings: TranscriptionSettings) -> ComputeRows:
        """As `hypotheses` for a program that serves: what can be prepared is, and each call computes one batch."""

    def aligner(self) -> Aligner:
        """Finds known texts in the states of :meth:`states_of`.

        Raises:
            UsageError: the model has none.
        """

    def states_of(
        self, rows: Sequence[Recording], faults: dict[int, str], settings: TranscriptionSettings
    ) -> Iterator[Row[States]]:
        """The states of rows that its :meth:`aligner` reads, likewise."""

    def new_parser(self) -> CharParser:
        """Of texts into labels, as the model was trained on them."""

    def usual_confidence(self) -> tuple[str, float] | None:
        """The first set whose words' mean confidence is known, and that confidence."""

    def on_first(self, function: Callable[[], object]) -> object:
        """Call a function where there are results: on rank 0."""

    def from_first(self, function: Callable[[], T]) -> T:
        """What a function gives there, on all ranks: numbers and texts."""


# Which runtime opens a path. Its module is named here, and imported when the first model of its kind is opened.


class Runtime(Protocol):
    """A module that opens models, by the options of a command that say where and how they run."""

    def refuse_options(self, paths: Sequence[str], args: Namespace) -> None:
        """UsageError for options that have no effect on models in this runtime."""

    def open_engines(self, paths: Sequence[str], args: Namespace) -> Sequence[Engine]:
        """Models that take whole recordings."""

    def open_stream_engine(self, path: str, args: Namespace) -> StreamEngine:
        """A model for streams by frames."""


_RUNTIMES: Mapping[str, str] = {".onnx": "nemo_asr.run.onnx.runtime"}
_TRAINED = "nemo_asr.trained.model"  # of all other paths; it is of the package that trains
_INSTALL = "pip install torch, or give a file of nemo-lite export"
_WHOLE = "install nemo-lite in the place of nemo-lite-run, or give a file of nemo-lite export"


def open_engines(paths: Sequence[str], args: Namespace) -> list[Engine]:
    """Models that take whole recordings.

    Args:
        paths: files of ``nemo-lite export``, or what `load_model` takes.
        args: options of a command, which say where and how they run.

    Raises:
        UsageError: options have no effect with any of these models, or PyTorch is not installed.
        CheckpointError: there is no such model.
    """
    by_runtime: dict[str, list[str]] = {}
    for path in paths:
        by_runtime.setdefault(_runtime_of(path), []).append(path)
    engines: dict[str, Engine] = {}
    for own in by_runtime.values():
        runtime = _runtime(own[0])
        if len(by_runtime) == 1:
            runtime.refuse_options(own, args)
        engines.update(zip(own, runtime.open_engines(own, args), strict=True))
    return [engines[path] for path in paths]


def open_stream_engine(path: str, args: Namespace) -> StreamEngine:
    """A model for streams by frames. Arguments and errors are those of `open_engines`."""
    runtime = _runtime(path)
    runtime.refuse_options([path], args)
    return runtime.open_stream_engine(path, args)


def open_detector(path: str) -> Detector:
    """The voice-activity model in the folder of a trained one.

    Raises:
        UsageError: PyTorch is not installed, or no label is ``speech``.
        CheckpointError: there is no such model.
    """
    detector: Detector = _module(_TRAINED, path).open_detector(path)
    return detector


def _runtime_of(path: str) -> str:
    return next((name for suffix, name in _RUNTIMES.items() if path.endswith(suffix)), _TRAINED)


def _runtime(path: str) -> Runtime:
    return cast(Runtime, _module(_runtime_of(path), path))


def _module(name: str, path: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] == "torch":
            raise UsageError("this model needs PyTorch, which is not installed", place=path, remedy=_INSTALL) from None
        if not f"{name}.".startswith(f"{missing}."):
            raise
        raise UsageError("this model needs all of nemo-lite", place=path, remedy=_WHOLE) from None
