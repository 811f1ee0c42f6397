"""An exported model with int8 weights, written only if its error rates are those of the float file. No torch here.

Where int8 weights cost accuracy, layers are tried one by one, and those that change most stay float.

ONNX Runtime quantises: products with a matrix of weights get a scale for each column, and their other factor one for
each call. Pointwise convolutions become such products first, for ONNX Runtime has no fast int8 convolution without
calibration. What is sensitive and small is computed in float: filter banks, other convolutions, the first and the last
layer. Its matrices are stored in 16 bits. The layers of a model in several files are those of all of them.
"""

from __future__ import annotations

import logging as standard_logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy as np

from nemo_asr.run.arguments import paths_in
from nemo_asr.run.engines import BATCH_SIZE, TranscriptionSettings
from nemo_asr.run.manifest import Manifest
from nemo_asr.run.onnx.onnx_model import INT8, OnnxModel, PartFile, part_place
from nemo_asr.run.options import unique_tags
from nemo_asr.run.text.labels import main_metric
from nemo_asr.run.transcribe.inputs import Recording, recording_of_utterance
from nemo_asr.scoring.intervals import Interval, UtteranceErrors, bootstrap_interval, clusters_of, utterance_errors
from nemo_asr.scoring.report.set_scores import aligned, range_text
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import refuse_existing, write_atomically
from nemo_lite.utils import logging

# Any: what the packages onnx and onnxruntime give has no types.

MOST_LOSS = 0.002
"""How much the error rate of a set, a fraction, may grow, unless something else is given: 0.2 points."""
_FEWEST_WEIGHTS = 1024  # of a layer, or a matrix, that is worth it
_MOST_INT16 = 32_767
_FIRST, _LAST = 2, 1  # layers that stay float: the filter bank and the first one, and the one that gives the labels
_TRIED_RECORDINGS = 8  # on which each layer is tried alone
_BATCHES_AT_ONCE = 4  # that a file computes before it is the other one's turn


@dataclass(frozen=True)
class SetRates:
    """The error rates of both files on one set.

    Attributes:
        set: its name.
        metric: ``wer``, or ``cer`` where texts have no words.
        utterances: how many.
        float32, int8: error rates, as fractions.
        float32_interval, int8_interval: of 95 %.
    """

    set: str
    metric: str
    utterances: int
    float32: float
    int8: float
    float32_interval: Interval
    int8_interval: Interval

    @property
    def loss(self) -> float:
        """How much larger the rate of the int8 file is, as a fraction; below 0, it is smaller."""
        return round(self.int8 - self.float32, 9)  # 2 words of 1,000 are 0.2 points, and not a little more


@dataclass(frozen=True)
class Int8Report:
    """What quantising a file has changed.

    Attributes:
        layers, of: how many layers are int8, of how many with a matrix of weights.
        sets: error rates.
        bytes: sizes of the float model and the int8 model, all files together.
        real_time_factors: seconds of computing for a second of audio, of both.
        kept: layers that are float because they cost accuracy.
    """

    layers: int
    of: int
    sets: tuple[SetRates, ...]
    bytes: tuple[int, int]
    real_time_factors: tuple[float, float]
    kept: tuple[str, ...] = ()

    @property
    def worst(self) -> SetRates:
        """The set whose error rate grows most."""
        return max(self.sets, key=lambda each: each.loss)

    def __str__(self) -> str:
        name = {"wer": "WER", "cer": "CER"}[self.sets[0].metric]
        rows = [("set", "utterances", f"{name} float32", "95 %", f"{name} int8", "95 %", "change")]
        rows += [
            (
                each.set,
                str(each.utterances),
                *(f"{each.float32:.2%}", range_text(each.float32_interval.low, each.float32_interval.high)),
                *(f"{each.int8:.2%}", range_text(each.int8_interval.low, each.int8_interval.high)),
                _points(each.loss),
            )
            for each in self.sets
        ]
        sizes = " -> ".join(f"{size / 2**20:.2f}" for size in self.bytes)
        factors = " -> ".join(f"{factor:.2g}" for factor in self.real_time_factors)
        faster = self.real_time_factors[0] / self.real_time_factors[1]
        return "\n".join(
            [
                *aligned(rows, 1, rule=True),
                f"{self.layers} of {self.of} layers with matrices are int8",
                *([f"float because they cost accuracy: {', '.join(self.kept)}"] if self.kept else []),
                f"size {sizes} MiB; real-time factor {factors} ({faster:.2f} times as fast)",
            ]
        )


def _points(change: float) -> str:
    """The change of an error rate, such as ``+0.20 points``."""
    return f"{100 * change:+.2f} points"


def export_int8(source: Path, path: Path, manifests: Sequence[str], most_loss: float = MOST_LOSS) -> Int8Report:
    """Write a model with int8 weights of a file of ``nemo-lite export``, if its error rates are nearly the same.

    If they are not with all layers, the layers that change most stay float, as few as are needed, at most half.

    Args:
        source: the float file; further parts of the model are beside it.
        path: the file to write; there must be none yet.
        manifests: sets of utterances with texts; each has to hold.
        most_loss: how much an error rate may grow, as a fraction: 0.002 are 0.2 points.

    Returns:
        what was measured, which is also in the file's metadata.

    Raises:
        FileInTheWayError: there is such a file.
        UsageError: an error rate grows by more, or the model has no layers to quantise; then there is no file.
        CheckpointError: the source is no file of ``nemo-lite export``.
        DataError: a set or a recording cannot be read.
    """
    path = path.expanduser()
    refuse_existing(path)
    float_model = OnnxModel(source)
    model = _PreparedModel(float_model)
    for part in model.parts:
        refuse_existing(model.place(path, part))
    with TemporaryDirectory() as folder:
        place = Path(folder) / path.name

        def report(kept: Sequence[Layer]) -> Int8Report:
            sizes = model.write([layer for layer in model.layers if layer not in kept], place)
            sets, factors = _measured((float_model, OnnxModel(place)), manifests)
            names = tuple(map(str, kept))
            return Int8Report(len(model.layers) - len(kept), model.num_matrices, tuple(sets), sizes, factors, names)

        chosen = report(())
        if chosen.worst.loss > most_loss:
            logging.info("%s", chosen)
            chosen = _with_float_layers(model, manifests, place, report, most_loss) or chosen
        if (worst := chosen.worst).loss > most_loss:
            problem = f"int8 makes more errors on {worst.set} than is allowed, so no file is written"
            got = (
                f"{worst.metric.upper()} {worst.int8:.2%} where float32 has {worst.float32:.2%}, {_points(worst.loss)}"
            )
            remedy = "give larger sets, allow more with --max_wer_loss, or stay with float32"
            raise UsageError(problem, place=str(path), got=got, wanted=f"at most {_points(most_loss)}", remedy=remedy)
        _store(place, chosen)
        for name in [*model.parts, ""]:  # the first file last: where it is, all of them are
            written = model.place(place, name)
            write_atomically(model.place(path, name), partial(shutil.copyfile, written))
    return chosen


def quantize(source: Path, path: Path) -> None:
    """Write a model with int8 weights in all layers that may have them, whatever that costs.

    Raises:
        UsageError: there are no such layers, or a package is missing.
        CheckpointError: the source is no file of ``nemo-lite export``.
    """
    model = _PreparedModel(OnnxModel(source))
    model.write(model.layers, path)


def _with_float_layers(
    model: _PreparedModel,
    manifests: Sequence[str],
    place: Path,
    report: Callable[[Sequence[Layer]], Int8Report],
    most_loss: float,
) -> Int8Report | None:
    """The report with the fewest layers in float that holds; None where half of them are too few.

    The last call of ``report`` is that of the result.
    """
    order = model.by_change(_some_recordings(manifests), place)
    reports: dict[int, Int8Report] = {}

    def holds(number: int) -> bool:
        reports[number] = report(order[:number])
        return reports[number].worst.loss <= most_loss

    most = len(order) // 2
    fails, enough = 0, 1
    while enough > most or not holds(enough):
        if enough >= most:
            return None
        fails, enough = enough, min(2 * enough, most)
    while enough - fails > 1:
        middle = (fails + enough) // 2
        fails, enough = (fails, middle) if holds(middle) else (middle, enough)
    return report(order[:enough])


def _some_recordings(manifests: Sequence[str]) -> list[Recording]:
    """The first recordings of the sets, in turn."""
    opened = [Manifest.open(paths_in(paths)) for paths in manifests]
    rows = [(row, manifest) for row in range(_TRIED_RECORDINGS) for manifest in opened if row < len(manifest)]
    return [
        recording_of_utterance(manifest.utterance(row), manifest.reader) for row, manifest in rows[:_TRIED_RECORDINGS]
    ]


def _measured(
    models: tuple[OnnxModel, OnnxModel], manifests: Sequence[str]
) -> tuple[list[SetRates], tuple[float, float]]:
    """The rates on each set, and the real-time factors on all; the models take turns, so that other load hits both."""
    parser, metric = models[0].new_parser(), main_metric(models[0].labels)
    sets: list[SetRates] = []
    seconds, took = 0.0, [0.0, 0.0]
    for name, paths in zip(unique_tags(manifests), manifests, strict=True):
        manifest = Manifest.open(paths_in(paths))
        utterances = [manifest.utterance(row) for row in range(len(manifest))]
        recordings = [recording_of_utterance(utterance, manifest.reader) for utterance in utterances]
        texts: tuple[list[str], list[str]] = ([], [])
        for first in range(0, len(recordings), size := BATCH_SIZE * _BATCHES_AT_ONCE):
            for number, model in enumerate(models):
                start = time.perf_counter()
                result = model.transcribe(recordings[first : first + size], cutting=None)
                took[number] += time.perf_counter() - start
                if result.faults:
                    raise DataError(next(iter(result.faults.values())), place=name)
                texts[number].extend(transcript.text for transcript in result.transcripts)
            seconds += result.seconds
        references = [parser.reference(utterance.text) for utterance in utterances]
        speakers = [None if each.speaker is None else str(each.speaker) for each in utterances]
        clusters = clusters_of(speakers, [each.audio_path for each in utterances])
        before, after = (utterance_errors(heard, references, metric == "cer", clusters) for heard in texts)
        sets.append(_rates(name, metric, before, after))
    return sets, (took[0] / max(seconds, 1e-3), took[1] / max(seconds, 1e-3))


def _rates(name: str, metric: str, before: UtteranceErrors, after: UtteranceErrors) -> SetRates:
    intervals = bootstrap_interval(before), bootstrap_interval(after)
    return SetRates(name, metric, len(before.errors), before.rate, after.rate, *intervals)


class Layer(NamedTuple):
    """A layer with a matrix of weights.

    Attributes:
        part: the part of the model; "" is the file that takes audio.
        node: its name in the graph.
        name: for people.
    """

    part: str
    node: str
    name: str

    def __str__(self) -> str:
        return self.name


class _PreparedModel:
    """The graphs of a model in which all layers are products with matrices, of which some become int8.

    Attributes:
        layers: those that may become int8.
        num_matrices: layers with matrices.
        parts: names of the files beside the first.

    Raises:
        UsageError: there are no such layers, or a package is missing.
    """

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self._files = {"": model.path, **model.part_files}
        self._graphs = {part: _prepared(path) for part, path in self._files.items()}
        self.parts = list(model.part_files)
        found = [layer for part, graph in self._graphs.items() for layer in _named_layers(part, graph)]
        self.num_matrices, self.layers = len(found), found[_FIRST:-_LAST]
        if not self.layers:
            problem = "no layers are worth int8: they are matrices of weights and pointwise convolutions"
            raise UsageError(problem, place=str(model.path), got=f"{len(found)}", wanted=f"more than {_FIRST + _LAST}")

    def place(self, first: Path, part: str) -> Path:
        """The file of a part, beside the first one."""
        return part_place(first, part) if part else first

    def write(self, layers: Collection[Layer], path: Path) -> tuple[int, int]:
        """Write all files with these layers in int8; the bytes of the float files and of these."""
        for part in [*self.parts, ""]:
            metadata = {INT8: ""}
            if not part and self.parts:
                files = {name: PartFile.of(self.place(path, name)) for name in self.parts}
                metadata["parts"] = msgspec.json.encode(files).decode()
            nodes = [layer.node for layer in layers if layer.part == part]
            _quantize(self._graphs[part], nodes, self.place(path, part), self._files[part], metadata)
        written = (self.place(path, part) for part in self._files)
        return _size_of(self._files.values()), _size_of(written)

    def by_change(self, recordings: Sequence[Recording], path: Path) -> list[Layer]:
        """The layers, of which each alone is int8, by how much labels and their probabilities change: most comes first.

        Args:
            recordings: to try them on.
            path: for the files.
        """
        wanted = _scored(self.model, recordings)
        changes: dict[Layer, tuple[int, float]] = {}
        for layer in self.layers:
            self.write([layer], path)
            pairs = [*zip(_scored(OnnxModel(path), recordings), wanted, strict=True)]
            other = sum(got.ids != own.ids for got, own in pairs)
            changes[layer] = other, sum(abs(got.score - own.score) for got, own in pairs)
            logging.info("int8 in %s alone: %d of %d texts differ", layer, other, len(pairs))
        return sorted(self.layers, key=changes.__getitem__, reverse=True)


class _Scored(NamedTuple):
    ids: list[int]
    score: float


def _scored(model: OnnxModel, recordings: Sequence[Recording]) -> list[_Scored]:
    """The labels of recordings, and the logarithm of their probabilities."""
    faults: dict[int, str] = {}
    rows = model.hypotheses(recordings, faults, TranscriptionSettings())
    found = {row.number: row.value.best for row in rows}
    return [_Scored(list(best.ids), float(sum(best.log_probs))) for _, best in sorted(found.items())]


def _size_of(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _prepared(source: Path) -> Any:
    """The graph with what depends on weights alone as weights, and layers as products with matrices."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        remedy = "pip install onnx onnxruntime"
        raise UsageError(f"the package {error.name} is not installed", place=str(source), remedy=remedy) from None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = os.path.join(folder, source.name)
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        model = onnx.load(options.optimized_model_filepath)
    _pointwise_as_products(model.graph)
    return model


def _quantize(model: Any, nodes: Sequence[str], path: Path, source: Path, metadata: Mapping[str, str]) -> None:
    """Write a prepared model with some layers in int8; without any, the float file. The rest is stored in 16 bits."""
    import onnx
    from onnx import helper
    from onnxruntime.quantization import QuantType, quantize_dynamic

    said = {each.key: each.value for each in onnx.load(source, load_external_data=False).metadata_props}
    quantized = onnx.load(source)
    if nodes:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        with _quiet():
            # Unsigned, because two products of signed weights overflow on processors without VNNI: texts would depend
            # on it.
            quantize_dynamic(
                copy,
                path,
                op_types_to_quantize=["MatMul", "LSTM"],
                nodes_to_quantize=list(nodes),
                per_channel=True,
                weight_type=QuantType.QUInt8,
            )
        quantized = onnx.load(path)
    _store_in_16_bits(quantized.graph)
    del quantized.graph.value_info[:]  # shapes that ONNX Runtime finds itself
    del quantized.metadata_props[:]
    helper.set_model_props(quantized, {**said, **metadata})
    quantized.producer_name = "nemo_lite"
    onnx.save(quantized, path)


def _store_in_16_bits(graph: Any) -> None:
    """Store matrices of float weights as 16-bit numbers with one scale, which ONNX Runtime multiplies as it loads them.

    The error is at most a 65,534th of the largest number: of a Fourier basis about that of 16-bit audio.
    """
    from onnx import TensorProto, helper, numpy_helper

    steps = []
    for value in list(graph.initializer):
        if value.data_type != TensorProto.FLOAT or np.prod(value.dims) <= _FEWEST_WEIGHTS:
            continue
        weights = numpy_helper.to_array(value)
        scale = np.float32(np.abs(weights).max() / _MOST_INT16)
        if weights.squeeze().ndim < 2 or not np.isfinite(scale) or not scale:
            continue
        name = value.name
        numbers = np.rint(weights / scale).astype(np.int16)
        stored = (numbers, f"{name}_int16"), (scale, f"{name}_scale")
        graph.initializer.extend(numpy_helper.from_array(np.asarray(array), of) for array, of in stored)
        graph.initializer.remove(value)
        steps.append(helper.make_node("Cast", [f"{name}_int16"], [f"{name}_float"], to=TensorProto.FLOAT))
        steps.append(helper.make_node("Mul", [f"{name}_float", f"{name}_scale"], [name]))
    nodes = [*steps, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _named_layers(part: str, model: Any) -> list[Layer]:
    prefix = f"{part}: " if part else ""
    return [Layer(part, node, f"{prefix}{node.removeprefix('node_')}") for node in _layers(model.graph)]


def _layers(graph: Any) -> list[str]:
    """The products with a matrix of weights, and the recurrent layers, in the order of computing."""
    dims = {value.name: len(value.dims) for value in graph.initializer if np.prod(value.dims) > _FEWEST_WEIGHTS}
    return [
        node.name
        for node in graph.node
        if (node.op_type == "MatMul" and dims.get(node.input[1]) == 2)
        or (node.op_type == "LSTM" and dims.get(node.input[1]) == 3)
    ]


def _pointwise_as_products(graph: Any) -> None:
    """Write all layers with a matrix as a product with it from the right, which ONNX Runtime quantises.

    That are convolutions with a kernel of 1, ``W x`` with constant W, which becomes ``(x^T W^T)^T``, and ``Gemm``.
    """
    from onnx import helper, numpy_helper

    weights = {value.name: numpy_helper.to_array(value) for value in graph.initializer}
    nodes = []
    for node in graph.node:
        found = _pointwise(node, weights, helper)
        if found is None:
            nodes.append(node)
            continue
        matrix, data, bias, is_transposed = found
        name = node.name or node.output[0]
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(matrix), f"{name}_weights"))
        if is_transposed:
            nodes.append(helper.make_node("Transpose", [data], [f"{name}_frames"], f"{name}_frames", perm=(0, 2, 1)))
            data = f"{name}_frames"
        steps: list[tuple[str, str | None, dict[str, Any]]] = [("MatMul", f"{name}_weights", {})]
        steps += [("Add", bias, {})] if bias else []
        steps += [("Transpose", None, {"perm": (0, 2, 1)})] if is_transposed else []
        for number, (kind, other, settings) in enumerate(steps):
            output = node.output[0] if number == len(steps) - 1 else f"{name}_{number}"
            inputs = [data] if other is None else [data, other]
            nodes.append(helper.make_node(kind, inputs, [output], f"{name}_{kind}", **settings))
            data = output
    used = {name for node in nodes for name in node.input}
    kept = [value for value in graph.initializer if value.name in used]
    for field, values in ((graph.node, nodes), (graph.initializer, kept)):
        del field[:]
        field.extend(values)


def _pointwise(node: Any, weights: dict[str, Any], helper: Any) -> tuple[Any, str, str, bool] | None:
    """The matrix (in, out), the data, the bias or "", and whether time is behind the channels; None: no such layer."""
    said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    inputs = [*node.input, "", "", ""]
    first, second = weights.get(inputs[0]), weights.get(inputs[1])
    if node.op_type == "Conv" and second is not None and second.ndim == 3 and second.shape[2] == 1:
        is_plain = said.get("group", 1) == 1 and set(said.get("strides", [1])) == {1} and not any(said.get("pads", ()))
        return (second[:, :, 0].T, inputs[0], inputs[2], True) if is_plain else None
    if node.op_type == "MatMul" and first is not None and second is None and first.ndim == 3 and len(first) == 1:
        return first[0].T, inputs[1], "", True
    if node.op_type == "Gemm" and second is not None and not said.get("transA"):
        is_plain = said.get("alpha", 1.0) == 1.0 and said.get("beta", 1.0) == 1.0
        return (second.T if said.get("transB") else second, inputs[0], inputs[2], False) if is_plain else None
    return None


def _store(path: Path, report: Int8Report) -> None:
    """Let the file say what was measured: its rates are those of the int8 weights."""
    import onnx
    from onnx import helper

    model = onnx.load(path)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    rates = [{"set": each.set, each.metric: each.int8, "utterances": each.utterances} for each in report.sets]
    measured = msgspec.json.encode(asdict(report)).decode()
    helper.set_model_props(model, metadata | {"rates": msgspec.json.encode(rates).decode(), INT8: measured})
    onnx.save(model, path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the quantiser's advice to do first what was done."""
    before = standard_logging.root.manager.disable
    standard_logging.disable(standard_logging.WARNING)
    try:
        yield
    finally:
        standard_logging.disable(before)
