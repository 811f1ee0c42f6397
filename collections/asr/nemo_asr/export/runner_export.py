"""What exports for other programs share: the model in parts, symbols, and folders of files that were compared.

Each program has a layout of its own: names of files, inputs and outputs, metadata, and features. A model whose features
are others is refused, or takes the waveform where the program can give it: `sherpa_export`, `onnx_asr_export`. Our own
ONNX file: `onnx_export`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nemo_asr.decoding.greedy import post_process_predictions
from nemo_asr.export.onnx_export import TOLERANCE, log_probs_of_frames
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.text.labels import WORD_MARK
from nemo_asr.tasks.family import Exported, Wires
from nemo_asr.trained.model import TrainedModel
from nemo_asr.trained.windows import stride_of
from nemo_lite import NmTensor
from nemo_lite.backends.pytorch.export import Argument, OnnxRun, evaluated_part, write_onnx
from nemo_lite.base.errors import FileInTheWayError, UsageError
from nemo_lite.base.files import make_writable_folder, temporary_name

# Any: packages that may be missing have no types.

BLANK, MODEL = "<blk>", "model.onnx"
_FEATURE_FRAMES = (57, 131)  # of the two rows of an example
SEED = 11
"""Of examples."""


@dataclass(frozen=True)
class Written:
    """A folder for another program.

    Attributes:
        folder: of the files.
        difference: the largest one between a log-probability of the file, in ONNX Runtime, and of torch.
        package: the program, as pip calls it.
        loader: what loads the model, in its Python package.
        arguments: of the loader.
        before, behind: zero samples that its user has to put before and behind the audio.
        advice: what its user has to know.
    """

    folder: Path
    difference: float
    package: str
    loader: str
    arguments: Mapping[str, Any]
    before: int = 0
    behind: int = 0
    advice: Sequence[str] = ()

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
            return str(model.recognize(samples, sample_rate=sample_rate))
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
    """The wires of a model, the file that is written of it, and what programs have to know of it."""

    model: TrainedModel
    wires: Wires
    file: Exported

    @classmethod
    def of(cls, model: TrainedModel, program: str) -> RunnerParts:
        """UsageError for a model of a family that exports other wires than the layout of a program has."""
        return cls(model, *log_probs_of_frames(model, program))

    @property
    def outputs(self) -> list[NmTensor]:
        """Log-probabilities and their lengths."""
        return list(self.file.outputs.values())

    def whole(self) -> AbstractContextManager[nn.Module]:
        """(B, samples) and (B,) to log-probabilities and their lengths, in evaluation mode."""
        return evaluated_part(self.outputs)

    def rest(self) -> AbstractContextManager[nn.Module]:
        """The same from features and their lengths."""
        wires = self.wires
        assert wires.features is not None
        assert wires.feature_lengths is not None
        return evaluated_part(self.outputs, [wires.features, wires.feature_lengths])

    @property
    def frame_seconds(self) -> float:
        """Of a frame of log-probabilities; 0 where it is not known."""
        return (stride_of(self.wires.frames) or 0) / self.model.card.sample_rate


def greedy_texts(model: TrainedModel, recordings: Sequence[Samples]) -> list[str]:
    """The text of each recording for itself, by greedy decoding, which is what other programs do too."""
    texts = []
    with RunnerParts.of(model, "other programs").whole() as whole:
        for samples in recordings:
            log_probs, frames = whole(torch.from_numpy(samples)[None], torch.tensor([len(samples)]))
            (text,) = post_process_predictions([log_probs.argmax(2)], model.card.labels, [frames])
            texts.append(" ".join(text.split()))
    return texts


def symbols_of(labels: Sequence[str], place: str) -> str:
    """``tokens.txt`` and ``vocab.txt``: a symbol and its number a line, the blank last.

    Raises:
        UsageError: a label that such a line cannot hold.
    """
    symbols = [label.replace(" ", WORD_MARK) for label in labels]
    for label, symbol in zip(labels, symbols, strict=True):
        if symbol == BLANK or not symbol or symbol.split() != [symbol] or symbols.count(symbol) > 1:
            raise UsageError("a label cannot be a symbol of other programs", place=place, got=repr(label))
    return "".join(f"{symbol} {number}\n" for number, symbol in enumerate([*symbols, BLANK]))


# Writing, for all of them.


def write_features(module: nn.Module, num_features: int, output: str, path: Path, metadata: Mapping[str, str]) -> float:
    """Write the ONNX file of a module from features (B, D, T) and lengths; as `write_checked`."""
    shortest, longest = _FEATURE_FRAMES
    generator = torch.Generator().manual_seed(SEED)
    features = torch.randn(2, num_features, longest, generator=generator)
    length = torch.tensor([longest, shortest])
    arguments = [
        Argument("audio_signal", features, {0: "batch", 2: "time"}),
        Argument("length", length, {0: "batch"}),
    ]
    compared = [(features, length), (features[:1, :, :shortest], length[1:])]
    return write_checked(module.eval(), arguments, [output], path, metadata, compared)


def write_checked(
    module: nn.Module,
    arguments: Sequence[Argument],
    outputs: Sequence[str],
    path: Path,
    metadata: Mapping[str, str],
    compared: Sequence[tuple[Tensor, ...]],
) -> float:
    """Write an ONNX file; the largest difference to torch on some inputs, whose valid frames are those of length."""
    differences: list[float] = []

    def check(run: OnnxRun) -> None:
        for inputs in compared:
            (got,), wanted = run(*inputs), module(*inputs)
            if len(inputs) > 1:
                is_valid = torch.arange(wanted.shape[1]) < inputs[1].unsqueeze(1)
                got, wanted = got[is_valid], wanted[is_valid]
            differences.append(difference_of(got, wanted, path.name))

    write_onnx(module, arguments, outputs, path, check, metadata)
    return max(differences)


def difference_of(got: Tensor, wanted: Tensor, place: str) -> float:
    """The largest one. UsageError where it is too large."""
    apart = (got - wanted).abs() if got.shape == wanted.shape else torch.tensor(torch.inf)
    if not (apart <= TOLERANCE * (1 + wanted.abs())).all():
        problem = "the exported log-probabilities are not torch's, so nothing is written"
        raise UsageError(problem, place=place, got=f"{apart.max().item():.1e} apart")
    return apart.max().item()


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
    if place.exists():
        raise FileInTheWayError("it exists already", place=str(place), remedy="give another name, or remove it")
    make_writable_folder(place.parent)
    new = place.with_name(temporary_name(place.name))
    new.mkdir()
    try:
        yield new, place
        os.rename(new, place)
    finally:
        with suppress(FileNotFoundError):
            shutil.rmtree(new)
