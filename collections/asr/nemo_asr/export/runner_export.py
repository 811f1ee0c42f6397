"""What exports for other programs share: the model in parts, symbols, and folders of files that were compared.

Each program has a layout of its own: names of files, inputs and outputs, metadata, and features. A model whose features
are others is refused, or takes the waveform where the program can give it: `sherpa_export`, `onnx_asr_export`. Our own
ONNX file: `onnx_export`.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nemo_asr.decoding.attention import AttentionSearch
from nemo_asr.export.onnx_export import TOLERANCE, exported_files, log_probs_of_frames, time_axes
from nemo_asr.features.audio_preprocessor import audio_ports
from nemo_asr.models.attention.decoder import AttentionDecoder
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.onnx.onnx_model import states_of
from nemo_asr.run.search.attention import ENCODED
from nemo_asr.run.search.known_searches import search_of_family
from nemo_asr.run.text.labels import WORD_MARK, text_of
from nemo_asr.tasks.family import Exported, StandIn, Wires, connect, search_of
from nemo_asr.trained.model import TrainedModel
from nemo_asr.trained.windows import stride_of
from nemo_lite import NmTensor
from nemo_lite.backends.pytorch.engine.module_state import evaluating
from nemo_lite.backends.pytorch.export import Argument, OnnxRun, evaluated_part, write_onnx
from nemo_lite.base.errors import UsageError
from nemo_lite.base.files import make_writable_folder, refuse_existing, temporary_name
from nemo_lite.core import Reference

# Any: packages that may be missing have no types.

BLANK, MODEL = "<blk>", "model.onnx"
ATTENTION, NUM_FRAMES = "attention", "num_frames"
_FEATURE_FRAMES = (57, 131)  # of the two rows of an example
SEED = 11
"""Of examples."""


@dataclass(frozen=True)
class Written:
    """A folder for another program.

    Attributes:
        folder: of the files.
        difference: the largest one between a value of the file, in ONNX Runtime, and of torch.
        package: the program, as pip calls it.
        loader: what loads the model, in its Python package.
        arguments: of the loader.
        before, behind: zero samples that its user has to put before and behind the audio.
        advice: what its user has to know.
        values: what was compared.
        options: of each call that recognises something, for onnx-asr.
    """

    folder: Path
    difference: float
    package: str
    loader: str
    arguments: Mapping[str, Any]
    before: int = 0
    behind: int = 0
    advice: Sequence[str] = ()
    values: str = "log-probabilities"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The program's Python package."""
        return self.package.replace("-", "_")

    def __str__(self) -> str:
        """How the program loads it."""
        return (
            f"{self.module}.{self.loader}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"
        )

    def hear(self, recordings: Sequence[Samples], sample_rate: int) -> list[str] | None:
        """The texts that the program itself gives; None: it is not installed.

        sherpa-onnx ends the process where it finds a mistake in a file.
        """
        if find_spec(self.module) is None:
            return None
        model = attrgetter(self.loader)(import_module(self.module))(**self.arguments)
        ends = np.zeros(self.before, np.float32), np.zeros(self.behind, np.float32)
        texts = [self._text(model, np.concatenate([ends[0], samples, ends[1]]), sample_rate) for samples in recordings]
        return [" ".join(text.split()) for text in texts]

    def _text(self, model: Any, samples: Samples, sample_rate: int) -> str:
        if self.module == "onnx_asr":
            return str(model.recognize(samples, sample_rate=sample_rate, **self.options))
        stream = model.create_stream()
        stream.accept_waveform(sample_rate, samples)
        if "Online" not in self.loader:
            model.decode_stream(stream)
            return str(stream.result.text)
        while model.is_ready(stream):
            model.decode_stream(stream)
        return str(model.get_result(stream))


class Stretched(nn.Module):
    """From features (B, D, T) to log-probabilities (B, T, classes): as many frames out as in.

    Programs compute the number of frames from a factor, each rounding in its own way, and lose the last one. A frame
    that is repeated means the same to CTC, so none is lost and times are right with the factor 1.

    Args:
        rest: from the features that come, and their lengths, to log-probabilities and theirs.
    """

    def __init__(self, rest: nn.Module) -> None:
        super().__init__()
        self.rest = rest

    def forward(self, audio_signal: Tensor, length: Tensor) -> Tensor:
        """Log-probabilities of frames behind an utterance have no meaning."""
        log_probs, frames = self.rest(audio_signal, length)
        positions = torch.arange(audio_signal.shape[2], device=length.device)
        sources = positions * frames.unsqueeze(1) // length.clamp(min=1).unsqueeze(1)
        sources = torch.minimum(sources, (frames - 1).clamp(min=0).unsqueeze(1))
        stretched: Tensor = log_probs.gather(1, sources.unsqueeze(2).expand(-1, -1, log_probs.shape[2]))
        return stretched


# The model and its parts.


@dataclass(frozen=True)
class RunnerParts:
    """The wires of a model, the file that is written of it, further parts, and what programs have to know of it."""

    model: TrainedModel
    wires: Wires
    file: Exported
    others: Mapping[str, Exported] = field(default_factory=dict)

    @classmethod
    def of(cls, model: TrainedModel, program: str, search: str = "") -> RunnerParts:
        """The parts of a model.

        Args:
            model: the model.
            program: that is to run it.
            search: a family whose files the program has a layout for, beside those of log-probabilities.

        Raises:
            UsageError: the program has no layout for the files of the model.
        """
        wires, files = exported_files(model)
        (_, file), *others = files.items()
        if search and file.search == search:
            return cls(model, wires, file, dict(others))
        return cls(model, *log_probs_of_frames(model, program))

    @classmethod
    def attended(cls, model: TrainedModel) -> RunnerParts:
        """Of a model with an :func:`attention_decoder`: encoded frames and their number, which that one reads."""
        wires = connect(model.modules, StandIn(audio_ports(model.card.sample_rate)))
        assert isinstance(wires, Wires)
        read = wires.predictions.call.inputs
        return cls(model, wires, Exported({name: read[name] for name in (ENCODED, NUM_FRAMES)}, search=ATTENTION))

    @property
    def outputs(self) -> list[NmTensor]:
        """Log-probabilities, or what else the search reads, and their lengths."""
        return list(self.file.outputs.values())

    def whole(self) -> AbstractContextManager[nn.Module]:
        """(B, samples) and (B,) to :attr:`outputs`, in evaluation mode."""
        return evaluated_part(self.outputs)

    def rest(self) -> AbstractContextManager[nn.Module]:
        """The same from features and their lengths."""
        wires = self.wires
        assert wires.features is not None
        assert wires.feature_lengths is not None
        return evaluated_part(self.outputs, [wires.features, wires.feature_lengths])

    @property
    def frame_seconds(self) -> float:
        """Of a frame of the outputs; 0 where it is not known."""
        return (stride_of(self.wires.frames) or 0) / self.model.card.sample_rate

    @property
    def subsampling(self) -> int:
        """Frames of 0.01 s in a frame of the outputs."""
        return max(round(100 * self.frame_seconds), 1)


def attention_decoder(model: TrainedModel) -> AttentionDecoder | None:
    """The decoder of a model whose search takes label after label from it; None where it is another search."""
    decoder = model.modules.modules.get(ATTENTION)
    is_read = isinstance(model.modules.search, AttentionSearch)
    return decoder if is_read and isinstance(decoder, AttentionDecoder) else None


def greedy_texts(model: TrainedModel, recordings: Sequence[Samples]) -> list[str]:
    """The text of each recording for itself, by greedy decoding, which is what other programs do too."""
    if decoder := attention_decoder(model):
        return _attended_texts(model, decoder, recordings)
    _, files = exported_files(model)
    (file, *others), labels, texts = files.values(), model.card.labels, []
    # What needs networks, a file's search gets from further files: in torch, the model's own search has them.
    search: Any = search_of(model.modules, labels) if others else search_of_family(file.search, labels)
    with evaluated_part(list(file.outputs.values())) as whole:
        for samples in recordings:
            outputs = whole(torch.from_numpy(samples)[None], torch.tensor([len(samples)]))
            arrays = (output.numpy() for output in outputs)
            (states,) = states_of(dict(zip(time_axes(file).items(), arrays, strict=True)))
            texts.append(" ".join(text_of(list(search.recognise(states).best.ids), labels).split()))
    return texts


def _attended_texts(model: TrainedModel, decoder: AttentionDecoder, recordings: Sequence[Samples]) -> list[str]:
    search, labels, texts = AttentionSearch(Reference(decoder), beam_size=1), model.card.labels, []
    with RunnerParts.attended(model).whole() as whole, evaluating([decoder]):
        for samples in recordings:
            encoded, num_frames = whole(torch.from_numpy(samples)[None], torch.tensor([len(samples)]))
            ids = search.forward(encoded, num_frames)[0].flatten().tolist()
            texts.append(" ".join(text_of([label for label in ids if label >= 0], labels).split()))
    return texts


def symbols_of(labels: Sequence[str], place: str, others: Sequence[str] = (BLANK,), several: bool = False) -> str:
    """``tokens.txt`` and ``vocab.txt``: a symbol and its number a line, the blank last.

    Args:
        labels: that texts have.
        place: the model, for messages.
        others: what stands behind them.
        several: labels of one spelling are allowed, as models with a vocabulary for each language have them.

    Raises:
        UsageError: a label that such a line cannot hold.
    """
    symbols = [label.replace(" ", WORD_MARK) for label in labels]
    counts = Counter(symbols)
    for label, symbol in zip(labels, symbols, strict=True):
        is_double = counts[symbol] > 1 and not several
        if symbol in others or not symbol or symbol.split() != [symbol] or is_double:
            raise UsageError("a label cannot be a symbol of other programs", place=place, got=repr(label))
    return "".join(f"{symbol} {number}\n" for number, symbol in enumerate([*symbols, *others]))


# Writing, for all of them.


def write_features(module: nn.Module, num_features: int, output: str, path: Path, metadata: Mapping[str, str]) -> float:
    """Write the ONNX file of a module from features (B, D, T) and lengths to log-probabilities; as `write_compared`."""
    arguments, compared = example_features(num_features)
    return write_compared(module, arguments, [output], path, compared, metadata, are_log_probs=True)


def example_features(num_features: int) -> tuple[list[Argument], list[tuple[Tensor, Tensor]]]:
    """Features and lengths as inputs of a file; and those of the batches on which it is compared."""
    shortest, longest = _FEATURE_FRAMES
    generator = torch.Generator().manual_seed(SEED)
    features = torch.randn(2, num_features, longest, generator=generator)
    length = torch.tensor([longest, shortest])
    arguments = [
        Argument("audio_signal", features, {0: "batch", 2: "time"}),
        Argument("length", length, {0: "batch"}),
    ]
    return arguments, [(features, length), (features[:1, :, :shortest], length[1:])]


def write_compared(
    module: nn.Module,
    arguments: Sequence[Argument],
    outputs: Sequence[str],
    path: Path,
    compared: Sequence[Sequence[Tensor]],
    metadata: Mapping[str, str],
    are_log_probs: bool = False,
) -> float:
    """Write the ONNX file of a network; the largest difference to torch on some inputs.

    All values count; of log-probabilities (B, T, classes) with lengths as the second input the valid frames.
    """
    differences, kind = [0.0], "log-probabilities" if are_log_probs else "values"

    def check(run: OnnxRun) -> None:
        for inputs in compared:
            values = module(*inputs)
            for got, wanted in zip(run(*inputs), values if isinstance(values, tuple) else (values,), strict=True):
                if are_log_probs and len(inputs) > 1:
                    is_valid = torch.arange(wanted.shape[1]) < inputs[1].unsqueeze(1)
                    got, wanted = got[is_valid], wanted[is_valid]
                differences.append(difference_of(got, wanted, path.name, kind))

    write_onnx(module.eval(), arguments, outputs, path, check, metadata)
    return max(differences)


def difference_of(got: Tensor, wanted: Tensor, place: str, values: str = "log-probabilities") -> float:
    """The largest one. UsageError where it is too large."""
    apart = (got - wanted).abs().float() if got.shape == wanted.shape else torch.tensor(torch.inf)
    if not (apart <= TOLERANCE * (1 + wanted.abs())).all():
        problem = f"the exported {values} are not torch's, so nothing is written"
        raise UsageError(problem, place=place, got=f"{apart.max().item():.1e} apart")
    return apart.max().item()


def refuse_other_texts(written: Written, model: TrainedModel, recordings: Sequence[Samples]) -> None:
    """Let the program hear recordings, if it is installed. UsageError where a text is not the model's."""
    texts = written.hear(recordings, model.card.sample_rate) if recordings else None
    if texts is None:
        return
    wanted = greedy_texts(model, recordings)
    others = [number for number, text in enumerate(texts) if text != wanted[number]]
    if others:
        first = others[0]
        problem = (
            f"{written.package} gives other texts for {len(others)} of {len(texts)} recordings, so nothing is written"
        )
        got, own = repr(texts[first]), repr(wanted[first])
        raise UsageError(f"{problem} (number {first + 1})", place=model.place, got=got, wanted=own)


def described(model: TrainedModel, takes: str) -> dict[str, str]:
    """Metadata: which model it is, and what it takes."""
    card = model.card
    texts = {"model_author": "nemo_lite", "version": "1", "comment": f"{card.name}, step {card.step}; takes {takes}"}
    return texts | ({"licence": card.licence} if card.licence else {})


@contextmanager
def new_folder(folder: str | Path) -> Iterator[tuple[Path, Path]]:
    """A folder to write into, and the name that it gets if nothing fails.

    Raises:
        FileInTheWayError: there is one of that name.
    """
    place = Path(folder).expanduser()
    refuse_existing(place)
    make_writable_folder(place.parent)
    new = place.with_name(temporary_name(place.name))
    new.mkdir()
    try:
        yield new, place
        os.rename(new, place)
    finally:
        with suppress(FileNotFoundError):
            shutil.rmtree(new)
