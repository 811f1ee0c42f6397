"""A trained model as one ONNX file, from waveforms to log-probabilities, compared with torch. Running it: `onnx_model`.

The file holds features, masks and lengths, so its caller needs no speech code: samples and their number go in. Batch
and time have any size. What labels mean and how long a frame is stands in the file's metadata.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from nemo_asr.data.utterances import audio_ports
from nemo_asr.decoding.greedy import GreedyCTCDecoder, post_process_predictions
from nemo_asr.run.audio.reading import Samples
from nemo_asr.run.onnx.onnx_model import FORMAT, INPUTS, OUTPUTS
from nemo_asr.run.transcribe.inputs import padded
from nemo_asr.tasks.families import connect
from nemo_asr.trained.engine import StandIn, stride_of
from nemo_asr.trained.folder import ModelCard
from nemo_asr.trained.model import TrainedModel, trained_modules, versions
from nemo_lite import NmTensor, logging
from nemo_lite.backends.pytorch.export import OnnxRun, export_wires
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.files import refuse_existing

TOLERANCE = 1e-3
"""How far a log-probability x of the file and of torch may be apart: by ``TOLERANCE * (1 + |x|)``. Rounding in another
order gives about a tenth of that."""

# Seconds of the signals of each batch that a file is compared on; the shortest is one hop.
_CHECKED_SECONDS = ((0.01,), (1.37,), (0.4, 2.0), (3.1, 0.25, 1.0), (0.6, 5.2, 0.9, 2.7))
_SEED = 10

Batch = tuple[Tensor, Tensor]
Run = Callable[..., "tuple[Tensor, ...]"]


@dataclass(frozen=True)
class Comparison:
    """How near the outputs of a file and of torch are.

    Attributes:
        batches: rows and seconds of each batch that both have computed.
        difference: the largest one between two log-probabilities of valid frames.
        texts: how many texts were compared; all are equal.
        ties: frames in which the two most probable labels are so close that rounding decides; they count as equal.
    """

    batches: tuple[tuple[int, float], ...]
    difference: float
    texts: int
    ties: int

    def __str__(self) -> str:
        sizes, seconds = zip(*self.batches, strict=True)
        ties = f" ({self.ties} frames with two equally probable labels)" if self.ties else ""
        return (
            f"{len(sizes)} batches of {min(sizes)} to {max(sizes)} signals, {min(seconds):.2f} to {max(seconds):.2f} s:"
            f" largest difference of log-probabilities {self.difference:.1e},"
            f" {self.texts} of {self.texts} texts equal{ties}"
        )


def export_onnx(model: TrainedModel, path: str | Path, recordings: Sequence[Samples] = ()) -> Comparison:
    """Write one ONNX file from waveforms (B, T) and lengths (B,) to log-probabilities (B, U, classes) and lengths (B,).

    It is run with ONNX Runtime at once, on signals of several lengths in batches of several sizes, and compared with
    the modules in torch. If it differs, there is no file.

    Args:
        model: it is left as it was.
        path: the file; there must be none yet.
        recordings: samples at the model's rate, on which the file is compared as well.

    Returns:
        how near the file is to torch.

    Raises:
        FileInTheWayError: there is such a file.
        UsageError: a package is missing, a module cannot be expressed in ONNX, or the file and
            torch differ.
        CheckpointError: the model does not say its labels.
    """
    path = Path(path).expanduser()
    refuse_existing(path)
    if not model.card.labels:
        raise CheckpointError("the model does not say its labels", place=model.place)
    wires = connect(model.modules, StandIn(audio_ports(model.card.sample_rate)))
    if wires.log_probs is None or wires.log_probs_lengths is None or wires.features is None:
        problem = "an ONNX file ends at log-probabilities of labels in each frame, which this family of models has not"
        remedy = "transcribe with the model folder"
        raise UsageError(problem, place=model.place, got=model.modules.family, remedy=remedy)
    outputs = dict(zip(OUTPUTS, (wires.log_probs, wires.log_probs_lengths), strict=True))
    batches = compared_batches(model.card.sample_rate, recordings)
    example = batches[len(_CHECKED_SECONDS) - 1]
    comparisons: list[Comparison] = []
    export_wires(
        outputs,
        dict(zip(INPUTS, example, strict=True)),
        path,
        lambda run, exported: comparisons.append(compare(run, exported, batches, model.card, str(path))),
        metadata_of(model, wires.features, wires.log_probs),
    )
    if search := _other_search(model):
        logging.warning(
            f"{path} ends at log-probabilities: {search} of the configuration, with which the model's error rates were "
            "measured, is not in it; give its options to nemo-lite transcribe"
        )
    return comparisons[0]


def _other_search(model: TrainedModel) -> str:
    """The class of the model's search; "" where it is greedy decoding, which needs no options."""
    greedy = model.modules.greedy
    return "" if isinstance(greedy, GreedyCTCDecoder) else type(greedy).__name__


def compare(run: Run, exported: OnnxRun | Run, batches: Iterable[Batch], card: ModelCard, place: str) -> Comparison:
    """Run both on the same batches.

    Args:
        run: the model in torch.
        exported: the file.
        batches: waveforms and lengths.
        card: labels and sample rate.
        place: the file's name, for the message.

    Raises:
        UsageError: lengths or texts differ, or a log-probability by more than :data:`TOLERANCE`.
    """
    sizes: list[tuple[int, float]] = []
    difference, texts, ties = 0.0, 0, 0
    for signal, length in batches:
        size = (len(signal), signal.shape[1] / card.sample_rate)
        (of_torch, wanted_lengths), (got, got_lengths) = run(signal, length), exported(signal, length)
        if not torch.equal(wanted_lengths.cpu().long(), got_lengths.long()):
            raise _differs("lengths", place, size, str(got_lengths.tolist()), str(wanted_lengths.tolist()))
        valid = torch.arange(of_torch.shape[1]) < got_lengths[:, None]
        apart, allowed = (got[:, : of_torch.shape[1]] - of_torch).abs()[valid], TOLERANCE * (1 + of_torch.abs()[valid])
        if not (apart <= allowed).all():  # NaN is not
            wanted_text = f"at most {TOLERANCE:g} * (1 + |log p|)"
            raise _differs("log-probabilities", place, size, f"{apart.max().item():.1e} apart", wanted_text)
        best, rounded = _settled(of_torch, got)
        pair = [post_process_predictions([ids], card.labels, [got_lengths]) for ids in (best, of_torch.argmax(-1))]
        if pair[0] != pair[1]:
            raise _differs("texts", place, size, *map(str, pair))
        difference, texts, ties = (
            max(difference, apart.max().item() if apart.numel() else 0.0),
            texts + len(signal),
            ties + int((rounded & valid).sum()),
        )
        sizes.append(size)
    return Comparison(tuple(sizes), difference, texts, ties)


def _settled(of_torch: Tensor, got: Tensor) -> tuple[Tensor, Tensor]:
    """The best labels of the file (B, U); torch's in frames where both are as good within the tolerance: (B, U)."""
    torchs, files = of_torch.argmax(-1), got[:, : of_torch.shape[1]].argmax(-1)
    lost = of_torch.amax(-1) - of_torch.gather(-1, files.unsqueeze(-1)).squeeze(-1)
    rounded = (files != torchs) & (lost <= TOLERANCE)
    return torch.where(rounded, torchs, files), rounded


def _differs(what: str, place: str, size: tuple[int, float], got: str, wanted: str) -> UsageError:
    problem = f"the exported {what} are not torch's, so no file is written"
    return UsageError(f"{problem} (batch of {size[0]}, {size[1]:.2f} s)", place=place, got=got, wanted=wanted)


def example_signals(sample_rate: int) -> list[list[Samples]]:
    """Batches of gliding tones that come and go, in noise: all frequencies, loud and quiet."""
    random = np.random.default_rng(_SEED)
    return [[_glides(random, sample_rate, seconds) for seconds in batch] for batch in _CHECKED_SECONDS]


def compared_batches(sample_rate: int, recordings: Sequence[Samples]) -> list[Batch]:
    """Those signals; then each recording alone, and all in one batch."""
    batches = [*example_signals(sample_rate), *([samples] for samples in recordings)]
    return [_padded(batch) for batch in [*batches, *([recordings] if len(recordings) > 1 else [])]]


def _glides(random: np.random.Generator, sample_rate: int, seconds: float) -> Samples:
    time = np.arange(max(1, int(seconds * sample_rate))) / sample_rate
    signal = random.normal(0.0, 1e-2, len(time))
    for start, end in random.uniform(80.0, 0.4 * sample_rate, (4, 2)):
        loudness = np.maximum(0.0, np.sin(2 * np.pi * random.uniform(0.5, 4.0) * time))
        signal += 0.1 * loudness * np.sin(2 * np.pi * (start + (end - start) * time / (2 * seconds)) * time)
    return signal.astype(np.float32)


def _padded(signals: Sequence[Samples]) -> Batch:
    batch, lengths = padded(signals)
    return torch.from_numpy(batch), torch.from_numpy(lengths)


def metadata_of(model: TrainedModel, features: NmTensor, log_probs: NmTensor) -> dict[str, str]:
    """What an ONNX file says about its model, as texts by name: see the page about export."""
    card = model.card
    hop, stride = stride_of(features), stride_of(log_probs)
    numbers = {
        "sample_rate": card.sample_rate,
        "blank_id": len(card.labels),
        "vocab_size": len(card.labels),
        "feature_stride_samples": hop,
        "frame_stride_samples": stride,
        "subsampling_factor": stride // hop if hop and stride else None,
        "frame_seconds": stride / card.sample_rate if stride else None,
        "step": card.step,
        "epoch": card.epoch,
    }
    texts = {
        "format": FORMAT,
        "name": card.name,
        "labels": json.dumps(card.labels, ensure_ascii=False),
        "texts": msgspec.json.encode(model.recipe.text_reading).decode(),
        "rates": json.dumps(msgspec.to_builtins(card.rates), ensure_ascii=False),
        "weights_sha256": weights_digest(trained_modules(model.modules)),
        "versions": json.dumps(versions()),
        "licence": card.licence,
    }
    if search := _other_search(model):
        texts |= {"search": search, "rates": "[]"}  # the rates are those of the search, which the file has not
    reading = model.recipe.reading
    texts |= {name: "true" for name in ("trim_silence", "int_values") if getattr(reading, name)}
    if card.calibration is not None:
        texts["calibration"] = msgspec.json.encode(card.calibration).decode()
    if model.recipe.tokenizer is not None:
        texts["tokenizer_sha256"] = model.recipe.tokenizer.sha256
        texts["tokenizer"] = base64.b64encode(model.recipe.tokenizer.model).decode()
    return texts | {name: str(number) for name, number in numbers.items() if number is not None}


def weights_digest(modules: Mapping[str, nn.Module]) -> str:
    """The SHA-256 of the names, types, shapes and values of all weights: equal for two files of one model."""
    digest = hashlib.sha256()
    for name, module in sorted(modules.items()):
        for key, tensor in sorted(module.state_dict().items()):
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name}.{key} {values.dtype} {tuple(values.shape)}\n".encode())
            digest.update(values.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
