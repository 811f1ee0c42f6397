"""OnnxModel: an exported model in ONNX Runtime, from recordings to transcripts. No torch in this file.

What the file's metadata must say is written by `onnx_export`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
import numpy as np

from nemo_asr.run.audio.files import Samples
from nemo_asr.run.audio.segments import DEFAULT_CUTTING, Cutting, Detector
from nemo_asr.run.calibration import Calibration, usual_confidence
from nemo_asr.run.engines import BATCH_SECONDS, BATCH_SIZE, ComputeRows, FrameModel, Prompt, Row, TranscriptionSettings
from nemo_asr.run.onnx.onnx_session import ONNX_FILE, open_session
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.ctc import LOG_PROBS, PathAligner
from nemo_asr.run.search.known_searches import search_of_family
from nemo_asr.run.search.parts import Network, Parts
from nemo_asr.run.search.search import Aligner, Hypotheses, Search, States, num_frames_of
from nemo_asr.run.text.labels import is_piece
from nemo_asr.run.transcribe.domain import Domain, moments_of
from nemo_asr.run.transcribe.driver import in_batches, segment_stream, transcribe
from nemo_asr.run.transcribe.inputs import Recording, one_channel, padded, read_rows, recordings_in
from nemo_asr.run.transcribe.transcript import Transcribed
from nemo_lite.base.errors import CheckpointError, UsageError, printable
from nemo_lite.base.files import digest_of_file, parse_json
from nemo_lite.base.nemo_logging import logging

if TYPE_CHECKING:
    from nemo_asr.run.text.parser import CharParser
    from nemo_asr.run.transcribe.alignment import Aligned, SentenceCutting
    from nemo_asr.run.transcribe.stream import Stream

T = TypeVar("T")
# Any: onnxruntime has no types.

FORMAT, STREAM_FORMAT = "nemo_lite waveform model 1", "nemo_lite stream model 1"
SUFFIX = ".onnx"
INT8 = "int8"
"""Metadata of files whose layers are int8: what that changed."""
INPUTS = ("audio_signal", "length")
OUTPUTS = ("log_probs", "log_probs_length")
_MOST_LABELS, _MOST_LABEL_CHARACTERS, _MOST_RATE = 65_536, 128, 655_350


class PartFile(msgspec.Struct, frozen=True):
    """A further part of a model, in a file beside the first one.

    Args:
        file: its name.
        bytes, sha256: of its content.
    """

    file: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> PartFile:
        """Of a file that is written."""
        return cls(path.name, path.stat().st_size, digest_of_file(path))


_REMEDIES = {FORMAT: "stream in segments: --stream segments", STREAM_FORMAT: "give --stream: it takes audio in chunks"}


class _StoredRate(msgspec.Struct):
    """What is needed of a rate in the file's metadata."""

    set: str = ""
    confidence: float | None = None


class DescribedFile:
    """A file that ``nemo-lite export`` wrote, and what it says about itself.

    Args:
        path: the file.
        providers, threads: what computes it; see `open_session`.

    Attributes:
        path: the file.
        metadata: what it says about itself, as texts by name.
        labels: the vocabulary, without the blank, which is the class behind them.
        family: whose search reads what it gives, see `known_searches`.
        time_axes: the axis of time of each output by its name; None of lengths.
        sample_rate: samples a second that it takes.
        frame_seconds: how much audio a frame of what it gives stands for; 0 where it is not known.
        parts: of a model in several files the others, and what the search has to know.
        part_files: of a model in several files the others, by name.
        calibration: of the confidences of words; None: they are as the model gives them.
        domain: what the model has shown to know; None: that is not known.
        trim_silence, int_values: how recordings are read; see ``Recipe.reading``.

    Raises:
        CheckpointError: there is no such file, or it is not one that ``nemo-lite export`` wrote; or the file of a part
            is not beside it, or is another one.
        UsageError: onnxruntime is not installed, or has no such provider here.
    """

    format: ClassVar[str] = FORMAT
    longest_seconds: float | None = None
    languages: Sequence[str] = ()
    may_invent = translates = False

    def __init__(self, path: str | Path, providers: Sequence[str] = (), threads: int | None = None) -> None:
        self.path = Path(path).expanduser()
        self._session = open_session(self.path, providers, threads)
        self.metadata: Mapping[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        try:
            if self.metadata["format"] != self.format:
                raise ValueError(f'format "{self.metadata["format"]}"')
            self.labels = _labels(self.metadata["labels"], str(path))
            self.family = self.metadata["family"]
            self.time_axes = _time_axes(self.metadata["wires"])
            self.sample_rate = int(self.metadata["sample_rate"])
            self.frame_seconds = float(self.metadata.get("frame_seconds", 0.0))
            if not (1 <= self.sample_rate <= _MOST_RATE and 0.0 <= self.frame_seconds <= 1.0):
                raise ValueError(f"{self.sample_rate} samples a second, {self.frame_seconds} s a frame")
            self.trim_silence, self.int_values = (_flag(self.metadata, name) for name in ("trim_silence", "int_values"))
            calibration = self.metadata.get("calibration")
            self.calibration = msgspec.json.decode(calibration, type=Calibration) if calibration else None
            domain = self.metadata.get("domain")
            self.domain = msgspec.json.decode(domain, type=Domain) if domain else None
            self._rates = msgspec.json.decode(self.metadata.get("rates", "[]"), type=list[_StoredRate])
            part_files = msgspec.json.decode(self.metadata.get("parts", "{}"), type=dict[str, PartFile])
            settings = msgspec.json.decode(self.metadata.get("settings", "{}"), type=dict[str, Any])
            self._read()
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            problem = "this ONNX file does not say how to use it"
            remedy = "write it with nemo-lite export"
            if self.metadata.get("format", "") in _REMEDIES.keys() - {self.format}:
                problem, remedy = "this ONNX file is used otherwise", _REMEDIES[self.metadata["format"]]
            got = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(problem, place=str(path), got=got, remedy=remedy) from None
        self.parts = Parts(open_parts(self.path, part_files, providers), settings)
        self.part_files = {name: self.path.with_name(part.file) for name, part in part_files.items()}

    def new_search(self, options: SearchOptions | None = None) -> Search:
        """The search of this model.

        Raises:
            UsageError: there is none for its family without torch, or it cannot do what is asked for.
            CheckpointError: the file says nothing of the parts that its family has.
        """
        try:
            return search_of_family(self.family, self.labels, options, self.parts)
        except (KeyError, msgspec.ValidationError) as error:
            problem, remedy = f"the file does not say what a {self.family} has", "export the model again"
            raise CheckpointError(problem, place=str(self.path), got=str(error), remedy=remedy) from None

    def _read(self) -> None:
        """Read what only files of this format say; KeyError or ValueError where it is missing or wrong."""

    def __str__(self) -> str:
        return f"{self.path}: {self.metadata.get('name', '')}, step {self.metadata.get('step', 'not said')}"


class OnnxModel(DescribedFile):
    """A model that takes whole recordings. Arguments, attributes and errors are those of `DescribedFile`."""

    def states(self, signals: Sequence[Samples]) -> list[States]:
        """What the search reads of each of some signals (T,)."""
        # One by one, a CPU takes two thirds of the time of batches of 16: no padding, and more stays in its cache.
        # Int8 layers scale all rows of a batch together; texts would depend on their neighbours.
        is_batched = self._session.get_providers()[0] != "CPUExecutionProvider" and INT8 not in self.metadata
        batches = [signals] if is_batched else [[signal] for signal in signals]
        found: list[States] = []
        for batch in batches:
            outputs = self._session.run(list(self.time_axes), dict(zip(INPUTS, padded(batch), strict=True)))
            found += states_of(dict(zip(self.time_axes.items(), outputs, strict=True)))
        return found

    def with_prompt(self, prompt: Prompt) -> OnnxModel:
        """See `Engine`."""
        remedy = "export it with --language or --target_language"
        raise UsageError("a file is told languages when it is written", place=str(self.path), remedy=remedy)

    def usual_confidence(self) -> tuple[str, float] | None:
        """As that of the model's card."""
        return usual_confidence(((rate.set, rate.confidence) for rate in self._rates), self.calibration)

    def transcribe(
        self,
        recordings: Sequence[Any],
        batch_size: int = BATCH_SIZE,
        batch_seconds: float = BATCH_SECONDS,
        search: Search | None = None,
        nbest: int = 1,
        cutting: Cutting | None = DEFAULT_CUTTING,
        detector: Detector | None = None,
        audio_rate: int | None = None,
        channel: int | str | None = None,
    ) -> Transcribed:
        """Transcribe recordings, in batches of similar length; the result is in the order given.

        Recordings are cut at pauses into segments, and each segment is transcribed alone. A segment is one piece to the
        model, so memory grows with the longest one.

        Args:
            recordings: paths, content of audio files, arrays or `Recording` objects, see `recordings_in`.
            batch_size, batch_seconds, search, nbest, cutting, detector: see `TranscriptionSettings`.
            audio_rate: samples a second of the arrays.
            channel: one from 0, ``mix`` or None for the average of all, or ``each`` for a transcript of each, one after
                the other; then faults count these. A channel of a `Recording` comes before.

        Raises:
            UsageError: an array is no audio or has no rate, or a channel that can be none.
        """
        settings = TranscriptionSettings(
            batch_size=batch_size,
            batch_seconds=batch_seconds,
            search=search,
            nbest=nbest,
            cutting=cutting,
            detector=detector,
            calibration=self.calibration,
        )
        return transcribe(self, recordings_in(recordings, audio_rate, channel), settings)

    def stream(self, sample_rate: int | None = None, search: Search | None = None, **of_stream: Any) -> Stream:
        """Transcribe audio while it arrives: ``accept(samples)`` and ``finish()`` give partial and final texts.

        Args:
            sample_rate: of the samples; by default the model's.
            search: as of :meth:`transcribe`.
            of_stream: ``cutting``, ``partial_seconds`` and ``name`` of `SegmentStream`.
        """
        settings = TranscriptionSettings(search=search, calibration=self.calibration)
        return segment_stream(self, settings, sample_rate, **of_stream)

    def align(
        self,
        recordings: Sequence[Any],
        texts: Sequence[str],
        batch_size: int = BATCH_SIZE,
        batch_seconds: float = BATCH_SECONDS,
        cutting: Cutting | None = DEFAULT_CUTTING,
        detector: Detector | None = None,
        audio_rate: int | None = None,
        channel: int | str | None = None,
        sentences: SentenceCutting | None = None,
        delay: float | None = None,
    ) -> Aligned:
        """When the words of known texts are said in recordings, in the order given.

        Args:
            recordings, batch_size, batch_seconds, cutting, detector, audio_rate, channel: as of :meth:`transcribe`; a
                text is of one channel.
            texts: what is said in each recording.
            sentences, delay: as of `align_texts`.

        Raises:
            CheckpointError: the labels are subwords, and the file has no tokenizer.
            UsageError: not as many texts as recordings, and as of :meth:`transcribe`.
        """
        from nemo_asr.run.transcribe.alignment import align_texts

        chosen = recordings_in(recordings, audio_rate, one_channel(channel))
        settings = TranscriptionSettings(batch_size, batch_seconds, cutting=cutting, detector=detector)
        return align_texts(self, chosen, texts, settings, sentences, delay)

    def hypotheses(
        self, rows: Sequence[Recording], faults: dict[int, str], settings: TranscriptionSettings
    ) -> Iterator[Row[Hypotheses]]:
        """See `Engine`."""
        return in_batches(rows, faults, settings, self.of_one_batch(settings))

    def of_one_batch(self, settings: TranscriptionSettings) -> ComputeRows:
        """See `Engine`."""
        search: Any = settings.search or self.new_search()
        is_measured = self.domain is not None and settings.cutting is not None
        return partial(self._computed, lambda states: search.recognise(states, settings.nbest), is_measured)

    def aligner(self) -> Aligner:
        """See `Engine`."""
        if LOG_PROBS in self.time_axes:
            return PathAligner(len(self.labels))
        own: Callable[[], Aligner] | None = getattr(self.new_search(), "aligner", None)
        if own is None:
            problem = f"family {self.family} gives no log-probabilities of frames, so texts cannot be aligned"
            raise UsageError(problem, place=str(self.path), got=", ".join(self.time_axes))
        return own()

    def states_of(
        self, rows: Sequence[Recording], faults: dict[int, str], settings: TranscriptionSettings
    ) -> Iterator[Row[States]]:
        """See `Engine`."""
        return in_batches(rows, faults, settings, partial(self._computed, lambda states: states, False))

    def frame_model(self) -> FrameModel:
        """See `Engine`: a file that takes whole recordings is none."""
        raise UsageError("this file takes whole recordings", place=str(self.path), remedy=_REMEDIES[FORMAT])

    def on_first(self, function: Callable[[], object]) -> object:
        """See `Engine`: there is one process."""
        return function()

    def from_first(self, function: Callable[[], T]) -> T:
        """See `Engine`."""
        return function()

    def new_parser(self) -> CharParser:
        """Of texts into labels, as the model's data layer reads them."""
        from nemo_asr.run.text.parser import TextReading
        from nemo_asr.run.text.subwords import Subwords

        place = str(self.path)
        try:
            reading = msgspec.json.decode(self.metadata.get("texts", "{}"), type=TextReading)
            content = base64.b64decode(self.metadata.get("tokenizer", ""), validate=True)
            tokenizer = Subwords(content, place) if content else None
        except ValueError as error:  # also msgspec's errors and DataError
            raise CheckpointError("what it says of texts is damaged", place=place, got=str(error)) from None
        if tokenizer is None and any(map(is_piece, self.labels)):
            problem = "this ONNX file does not say how texts are cut into its subwords"
            raise CheckpointError(problem, place=place, remedy="export the model again, or give its folder")
        if tokenizer is not None and list(tokenizer) != self.labels:
            raise CheckpointError("the tokenizer in it is not that of its labels", place=place)
        return reading.new_parser(tokenizer or self.labels)

    def _computed(
        self, value_of: Callable[[States], T], is_measured: bool, rows: Sequence[Recording], faults: dict[int, str]
    ) -> Iterator[Row[T]]:
        """The rows of one batch, perhaps with the moments of what the search reads."""
        audios, unreadable = read_rows(
            rows, self.sample_rate, trim_silence=self.trim_silence, int_values=self.int_values
        )
        faults.update(unreadable)
        outputs = self.states([audio.samples for audio in audios.values()]) if audios else []
        for (number, audio), states in zip(audios.items(), outputs, strict=True):
            # A model that does not say how its frames lie in time: evenly.
            seconds = self.frame_seconds or len(audio.samples) / self.sample_rate / max(num_frames_of(states), 1)
            moments = moments_of(next(iter(states.values()))) if is_measured else None
            yield Row(number, value_of(states), audio.start / self.sample_rate, seconds, moments)


def part_place(first: Path, name: str) -> Path:
    """Where a further part of a model is written: beside the file that takes audio, named after both."""
    return first.with_name(f"{first.stem}.{name}{first.suffix}")


def open_parts(first: Path, files: Mapping[str, PartFile], providers: Sequence[str] = ()) -> dict[str, Network]:
    """The further parts of a model.

    Args:
        first: the file that takes audio.
        files: what it says of those beside it, by name.
        providers: what computes them; see `open_session`.

    Raises:
        CheckpointError: a file is missing, or has not the size and the digest that the first one says.
    """
    return {name: _network(first, name, file, providers) for name, file in files.items()}


def _network(first: Path, name: str, file: PartFile, providers: Sequence[str]) -> Network:
    place = first.with_name(file.file)
    if place.parent != first.parent or not place.is_file():
        problem, remedy = f"the {name} of {first.name} is missing", "copy all files of the model into one folder"
        raise CheckpointError(problem, place=str(place), remedy=remedy)
    if (found := PartFile.of(place)) != file:
        problem, remedy = f"this is not the {name} of {first.name}", "export the model again"
        got, wanted = (f"{each.bytes} bytes, SHA-256 {each.sha256[:16]}..." for each in (found, file))
        raise CheckpointError(problem, place=str(place), got=got, wanted=wanted, remedy=remedy)
    # One thread: for a step of a few rows, more would cost more than they compute.
    session = open_session(place, providers, 1)
    inputs = [each.name for each in session.get_inputs()]

    def network(*values: Any) -> Sequence[Any]:
        outputs: Sequence[Any] = session.run(None, dict(zip(inputs, values, strict=True)))
        return outputs

    return network


def load_onnx_model(path: str | Path, providers: Sequence[str] = (), threads: int | None = None) -> OnnxModel:
    """An exported model; the log says which. Arguments and errors are those of :class:`OnnxModel`."""
    model = OnnxModel(path, providers, threads)
    logging.info("Loaded %s", model)
    return model


def _time_axes(text: str) -> dict[str, int | None]:
    """The axis of time of each output by its name, None of lengths, from texts such as ``B T D=29 Logprobs``."""
    kinds = {name: wire.split() for name, wire in msgspec.json.decode(text, type=dict[str, str]).items()}
    axes = {name: kind.index("T") if "T" in kind else None for name, kind in kinds.items()}
    if not any(axis is None for axis in axes.values()) or all(axis is None for axis in axes.values()):
        raise ValueError(f"wires {text[:100]!r}")
    return axes


def states_of(outputs: Mapping[tuple[str, int | None], Any]) -> list[States]:
    """The states of each row of a batch: the valid frames, frames first. Of the lengths the first ones count."""
    numbers = next(values for (_, axis), values in outputs.items() if axis is None)
    values = {name: np.moveaxis(array, axis, 1) for (name, axis), array in outputs.items() if axis is not None}
    return [{name: array[row, :number] for name, array in values.items()} for row, number in enumerate(numbers)]


def _flag(metadata: Mapping[str, str], name: str) -> bool:
    """Whether the file says so; where it says nothing, no."""
    value = metadata.get(name, "false")
    if value not in ("true", "false"):
        raise ValueError(f"{name} {value[:20]!r}")
    return value == "true"


def _labels(text: str, place: str) -> list[str]:
    labels = parse_json(text, place, ONNX_FILE)
    if not isinstance(labels, list):
        raise ValueError("labels are no list")
    texts = [label for label in labels if isinstance(label, str) and printable(label) == label]
    short_texts = [label for label in texts if 0 < len(label) <= _MOST_LABEL_CHARACTERS]
    if not 0 < len(labels) == len(short_texts) <= _MOST_LABELS:
        raise ValueError("labels are too many, or no short texts without control characters")
    return short_texts
