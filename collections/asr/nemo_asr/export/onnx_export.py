"""A trained model as ONNX files, from waveforms to what its search reads, compared with torch. Running: `onnx_model`.

The file holds features, masks and lengths, so its caller needs no speech code: samples and their number go in. Batch
and time have any size. What labels mean, how long a frame is and which wires come out stands in the file's metadata.
That is one file, which ends at log-probabilities, unless the family of the model says otherwise: ``Family.exported``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from nemo_asr.decoding.greedy import post_process_predictions
from nemo_asr.decoding.hypotheses import time_axis
from nemo_asr.features.audio_preprocessor import audio_ports
from nemo_asr.run.audio.files import Samples
from nemo_asr.run.onnx.onnx_model import FORMAT, INPUTS, OUTPUTS, PartFile, open_parts, part_place, states_of
from nemo_asr.run.search.ctc import LOG_PROBS
from nemo_asr.run.search.known_searches import is_known, search_of_family
from nemo_asr.run.search.parts import Parts
from nemo_asr.run.search.search import Search, States
from nemo_asr.run.transcribe.inputs import padded
from nemo_asr.tasks.family import FAMILIES, Exported, StandIn, Wires, connect, family_of, is_lengths, search_of
from nemo_asr.tasks.registry import defaults_of
from nemo_asr.trained.folder import ModelCard
from nemo_asr.trained.model import TrainedModel, trained_modules, versions
from nemo_asr.trained.windows import stride_of
from nemo_lite import Dag, logging
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
class OutputComparison:
    """How near the outputs of a file and of torch are.

    Attributes:
        batches: rows and seconds of each batch that both have computed.
        difference: the largest one between two log-probabilities, or other values, of valid frames.
        texts: how many texts were compared; all are equal. 0 where the search of the file is not known without torch.
        ties: frames in which the two most probable labels are so close that rounding decides, or texts that rounding of
            what the search reads has changed; they count as equal.
        values: what was compared.
    """

    batches: tuple[tuple[int, float], ...]
    difference: float
    texts: int
    ties: int
    values: str = "log-probabilities"

    def __str__(self) -> str:
        sizes, seconds = zip(*self.batches, strict=True)
        of = "frames with two equally probable labels" if self.values == "log-probabilities" else "changed by rounding"
        ties = f" ({self.ties} {of})" if self.ties else ""
        return (
            f"{len(sizes)} batches of {min(sizes)} to {max(sizes)} signals, {min(seconds):.2f} to {max(seconds):.2f} s:"
            f" largest difference of {self.values} {self.difference:.1e}"
            + (f", {self.texts} of {self.texts} texts equal{ties}" if self.texts else "")
        )


def exported_files(model: TrainedModel) -> tuple[Wires, dict[str, Exported]]:
    """The wires of a model from audio, and the files that its family writes of them.

    Raises:
        CheckpointError: the model does not say its labels.
        UsageError: its family has nothing to write.
    """
    if not model.card.labels:
        raise CheckpointError("the model does not say its labels", place=model.place)
    wires = connect(model.modules, StandIn(audio_ports(model.card.sample_rate)))
    if not isinstance(wires, Wires):
        problem, got = "models of this family have no export", model.modules.family
        raise UsageError(problem, place=model.place, got=got, remedy="use the model folder")
    return wires, family_of(model.modules.family).exported(wires, model.modules.modules)


def log_probs_of_frames(model: TrainedModel, program: str) -> tuple[Wires, Exported]:
    """The wires of a model, and its one file, for a layout that holds log-probabilities of frames and nothing else.

    Raises:
        UsageError: its family exports other wires.
    """
    wires, files = exported_files(model)
    file = next(iter(files.values()))
    if not is_of_log_probs(files):
        got = "; ".join(f"{name}: {', '.join(each.outputs)}" for name, each in files.items())
        problem = f"family {model.modules.family} does not give {', '.join(OUTPUTS)}, which {program} takes"
        _, *others = family_of(model.modules.family).heads or [""]
        other_head = f"give --head {' or '.join(others)}, " if others else ""
        remedy = f"{other_head}write --format onnx, or use the model folder"
        raise UsageError(problem, place=model.place, got=got, remedy=remedy)
    return wires, file


def is_of_log_probs(files: Mapping[str, Exported]) -> bool:
    """Whether the files of a model are one, of log-probabilities of frames."""
    return [list(file.outputs) for file in files.values()] == [list(OUTPUTS)]


def export_onnx(model: TrainedModel, path: str | Path, recordings: Sequence[Samples] = ()) -> OutputComparison:
    """Write one ONNX file from waveforms (B, T) and lengths (B,) to log-probabilities (B, U, classes) and lengths (B,).

    Of a family that says otherwise it ends at other wires, and further parts of the model are files beside it, named
    after theirs: ``model.onnx`` and ``model.joint.onnx``.

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
    wires, files = exported_files(model)
    file = next(iter(files.values()))
    batches = compared_batches(model.card.sample_rate, recordings)
    example = batches[len(_CHECKED_SECONDS) - 1]
    comparisons: list[OutputComparison] = []
    with parts_beside(model, files, path) as (said, parts):
        axes, searches = time_axes(file), _searches(model, file, parts)

        def check(run: Run, exported: OnnxRun) -> None:
            comparisons.append(compare(run, exported, batches, model.card, str(path), axes, searches))

        metadata = metadata_of(model, wires, file) | said
        export_wires(file.outputs, dict(zip(INPUTS, example, strict=True)), path, check, metadata)
    if search := _other_search(model, file):
        logging.warning(
            f"{path} ends at {next(iter(file.outputs))}: {search} of the configuration, with which the model's error "
            "rates were measured, is not in it; give its options to nemo-lite transcribe"
        )
    return comparisons[0]


@contextmanager
def parts_beside(
    model: TrainedModel, files: Mapping[str, Exported], path: Path
) -> Iterator[tuple[dict[str, str], Parts]]:
    """Write the further parts of a model, which are taken away again if the first file is not written within.

    Args:
        model: the model.
        files: by name, the first one first.
        path: the first file. The others are beside it, named after theirs.

    Yields:
        What the metadata of the first file say of them; and what its search has of them.

    Raises:
        FileInTheWayError: there is a file of such a name.
        UsageError: as of `export_onnx`.
    """
    (main, file), *others = files.items()
    names = {name: part_place(path, name) for name, _ in others}
    for place in names.values():
        refuse_existing(place)
    with ExitStack() as written:  # the first file last: where it is, all of them are
        for name, part in others:
            said = {"format": FORMAT, "name": model.card.name, "family": file.search, "part": name}
            _export_part(part, names[name], {**said, "wires": _described(part)})
            written.callback(names[name].unlink)
        listed = {name: PartFile.of(place) for name, place in names.items()}
        yield (
            {"parts": msgspec.json.encode(listed).decode()} if listed else {},
            Parts(open_parts(path, listed), file.settings),
        )
        written.pop_all()
    if names:
        logging.info("%s is the %s of family %s; beside it: %s", path, main, model.modules.family, ", ".join(names))


def _searches(model: TrainedModel, file: Exported, parts: Parts) -> tuple[Search, Search] | None:
    """The search of the model and that of its file; None where log-probabilities tell the texts, or nothing does."""
    if LOG_PROBS in file.outputs or _other_search(model, file) or not is_known(file.search):
        return None
    search: Any = search_of(model.modules, model.card.labels)
    return search, search_of_family(file.search, model.card.labels, None, parts)


def _export_part(part: Exported, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a part that does not take audio, and compare it on its example."""
    ports = Dag(list(part.outputs.values())).data_layer.output_ports
    assert part.examples is not None
    values = list(part.examples)

    def check(run: Run, exported: OnnxRun) -> None:
        for name, wanted, got in zip(part.outputs, run(*values), exported(*values), strict=True):
            apart = (got - wanted).abs().float() if got.shape == wanted.shape else torch.tensor(torch.inf)
            if not (apart <= TOLERANCE * (1 + wanted.abs())).all():
                problem = f"the exported {name} is not torch's, so no file is written"
                raise UsageError(problem, place=str(path), got=f"{apart.max().item():.1e} apart")

    export_wires(part.outputs, dict(zip(ports, values, strict=True)), path, check, metadata)


def _other_search(model: TrainedModel, file: Exported) -> str:
    """The class of the model's search; "" where it is the one that reads the file without options."""
    search = type(model.modules.search)
    default = defaults_of(file.search)["search"] if file.search in FAMILIES else None
    return "" if default is not None and issubclass(search, default) else search.__name__


def compare(
    run: Run,
    exported: OnnxRun | Run,
    batches: Iterable[Batch],
    card: ModelCard,
    place: str,
    outputs: Mapping[str, int | None] = MappingProxyType({"log_probs": 1, "log_probs_length": None}),
    searches: tuple[Search, Search] | None = None,
) -> OutputComparison:
    """Run both on the same batches.

    Args:
        run: the model in torch.
        exported: the file.
        batches: waveforms and lengths.
        card: labels and sample rate.
        place: the file's name, for the message.
        outputs: the axis of time of each by its name; None: it is the lengths of the others.
        searches: of the model in torch and of the file, where these decide about texts.

    Raises:
        UsageError: lengths or texts differ, or a value by more than :data:`TOLERANCE`.
    """
    sizes: list[tuple[int, float]] = []
    difference, texts, ties = 0.0, 0, 0
    for signal, length in batches:
        size = (len(signal), signal.shape[1] / card.sample_rate)
        pairs = dict(zip(outputs, zip(run(signal, length), exported(signal, length), strict=True), strict=True))
        ends, got_ends = next(pairs[name] for name, axis in outputs.items() if axis is None)
        if not torch.equal(ends.cpu().long(), got_ends.long()):
            raise _differs("lengths", place, size, str(got_ends.tolist()), str(ends.tolist()))
        for name, axis in outputs.items():
            if axis is None:
                continue
            of_torch, got = (values.movedim(axis, 1) for values in pairs[name])
            valid = torch.arange(of_torch.shape[1]) < got_ends[:, None]
            apart = (got[:, : of_torch.shape[1]] - of_torch).abs()[valid]
            if not (apart <= TOLERANCE * (1 + of_torch.abs()[valid])).all():  # NaN is not
                what, symbol = ("log-probabilities", "log p") if name == LOG_PROBS else (name, name)
                wanted = f"at most {TOLERANCE:g} * (1 + |{symbol}|)"
                raise _differs(what, place, size, f"{apart.max().item():.1e} apart", wanted)
            difference = max(difference, apart.max().item() if apart.numel() else 0.0)
            if name == LOG_PROBS:
                best, rounded = _settled(of_torch, got)
                both = (post_process_predictions([ids], card.labels, [got_ends]) for ids in (best, of_torch.argmax(-1)))
                of_file, of_modules = both
                if of_file != of_modules:
                    raise _differs("texts", place, size, str(of_file), str(of_modules))
                texts, ties = texts + len(signal), ties + int((rounded & valid).sum())
        if searches:
            search, search_of_file = searches
            states, own_states = (states_of(_arrays(outputs, each)) for each in zip(*pairs.values(), strict=True))
            for frames, own_frames in zip(states, own_states, strict=True):
                wanted_labels, labels = _timed(search, frames), _timed(search_of_file, own_frames)
                if labels == wanted_labels:
                    continue
                # Frames are those of torch but for rounding: do the networks behind them choose alike?
                if labels != _timed(search, own_frames):
                    raise _differs("texts or times", place, size, str(labels), str(wanted_labels))
                ties += 1
            texts += len(signal)
        sizes.append(size)
    values = "log-probabilities" if LOG_PROBS in outputs else "values"
    return OutputComparison(tuple(sizes), difference, texts, ties, values)


def _timed(search: Search, states: States) -> list[list[int]]:
    """Label ids with their starts and ends."""
    return [list(each) for each in search.recognise(states).best[:3]]


def _arrays(outputs: Mapping[str, int | None], values: Iterable[Tensor]) -> dict[tuple[str, int | None], Any]:
    return {output: value.cpu().numpy() for output, value in zip(outputs.items(), values, strict=True)}


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


def time_axes(file: Exported) -> dict[str, int | None]:
    """Of each output of a file the axis of time; None of lengths."""
    return {name: None if is_lengths(wire.ntype) else time_axis(wire.ntype) for name, wire in file.outputs.items()}


def _described(file: Exported) -> str:
    return json.dumps({name: wire.ntype.brief for name, wire in file.outputs.items()})


def metadata_of(model: TrainedModel, wires: Wires, file: Exported) -> dict[str, str]:
    """What an ONNX file says about its model, as texts by name: see the page about export."""
    card = model.card
    hop, stride = wires.features and stride_of(wires.features), stride_of(wires.frames)
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
        "family": file.search,
        "wires": _described(file),
        "labels": json.dumps(card.labels, ensure_ascii=False),
        "texts": msgspec.json.encode(model.recipe.text_reading).decode(),
        "rates": json.dumps(msgspec.to_builtins(card.rates), ensure_ascii=False),
        "weights_sha256": weights_digest(trained_modules(model.modules)),
        "versions": json.dumps(versions()),
        "licence": card.licence,
    }
    if search := _other_search(model, file):
        texts |= {"search": search, "rates": "[]"}  # the rates are those of the search, which the file has not
    reading = model.recipe.reading
    texts |= {name: "true" for name in ("trim_silence", "int_values") if getattr(reading, name)}
    if card.calibration is not None:
        texts["calibration"] = msgspec.json.encode(card.calibration).decode()
    if card.domain is not None:
        texts["domain"] = msgspec.json.encode(card.domain).decode()
    if model.recipe.tokenizer is not None:
        texts["tokenizer_sha256"] = model.recipe.tokenizer.sha256
        texts["tokenizer"] = base64.b64encode(model.recipe.tokenizer.model).decode()
    if file.settings:
        texts["settings"] = json.dumps(file.settings)
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
