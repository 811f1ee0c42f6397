"""An exported model with int8 weights, written only if its error rates are those of the float file. No torch here.

ONNX Runtime quantises: products with a matrix of weights get a scale for each column, and their other factor one for
each call. Pointwise convolutions become such products first, for ONNX Runtime has no fast int8 convolution without
calibration. What is sensitive and small stays float: filter banks, other convolutions, the first and the last layer.
"""

from __future__ import annotations

import logging as standard_logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nemo_asr.run.arguments import paths_in
from nemo_asr.run.engines import BATCH_SIZE
from nemo_asr.run.manifest import Manifest
from nemo_asr.run.onnx.onnx_model import INT8, OnnxModel
from nemo_asr.run.options import unique_tags
from nemo_asr.run.text.labels import main_metric
from nemo_asr.run.transcribe.inputs import recording_of_utterance
from nemo_asr.scoring.intervals import Interval, UtteranceErrors, bootstrap_interval, clusters_of, utterance_errors
from nemo_asr.scoring.report.set_scores import aligned, range_text
from nemo_lite.base.errors import DataError, UsageError
from nemo_lite.base.files import refuse_existing, write_atomically
from nemo_lite.utils import logging

# Any: what the packages onnx and onnxruntime give has no types.

MOST_LOSS = 0.02
"""How much the error rate of a set may grow, as a share of it, unless something else is given."""
_FEWEST_WEIGHTS = 1024  # of a layer that is worth it
_FIRST, _LAST = 2, 1  # layers that stay float: the filter bank and the first one, and the one that gives the labels
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
        """How much larger the rate of the int8 file is, as a share of the other's; below 0, it is smaller."""
        if self.int8 == self.float32:
            return 0.0
        return (self.int8 - self.float32) / self.float32 if self.float32 else math.inf


@dataclass(frozen=True)
class Int8Report:
    """What quantising a file has changed.

    Attributes:
        layers, of: how many layers are int8, of how many with a matrix of weights.
        sets: error rates.
        bytes: sizes of the float file and the int8 file.
        real_time_factors: seconds of computing for a second of audio, of both.
    """

    layers: int
    of: int
    sets: tuple[SetRates, ...]
    bytes: tuple[int, int]
    real_time_factors: tuple[float, float]

    def __str__(self) -> str:
        name = {"wer": "WER", "cer": "CER"}[self.sets[0].metric]
        rows = [("set", "utterances", f"{name} float32", "95 %", f"{name} int8", "95 %", "change")]
        rows += [
            (
                each.set,
                str(each.utterances),
                *(f"{each.float32:.2%}", range_text(each.float32_interval.low, each.float32_interval.high)),
                *(f"{each.int8:.2%}", range_text(each.int8_interval.low, each.int8_interval.high)),
                f"{each.loss:+.1%}",
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
                f"size {sizes} MiB; real-time factor {factors} ({faster:.2f} times as fast)",
            ]
        )


def export_int8(source: Path, path: Path, manifests: Sequence[str], most_loss: float = MOST_LOSS) -> Int8Report:
    """Write a file with int8 weights of a file of ``nemo-lite export``, if its error rates are nearly the same.

    Args:
        source: the float file.
        path: the file to write; there must be none yet.
        manifests: sets of utterances with texts; each has to hold.
        most_loss: how much an error rate may grow, as a share of it.

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
    reports: list[Int8Report] = []

    def write(temporary: Path) -> None:
        layers, of = quantize(float_model.path, temporary)
        models = (float_model, OnnxModel(temporary))
        sets, factors = _measured(models, manifests)
        sizes = (float_model.path.stat().st_size, temporary.stat().st_size)
        report = Int8Report(layers, of, tuple(sets), sizes, factors)
        worst = max(sets, key=lambda each: each.loss)
        if worst.loss > most_loss:
            logging.info("%s", report)
            problem = f"int8 makes more errors on {worst.set} than is allowed, so no file is written"
            got = f"{worst.metric.upper()} {worst.int8:.2%} where float32 has {worst.float32:.2%}, {worst.loss:+.1%}"
            remedy = "give larger sets, allow more with --max_wer_loss, or stay with float32"
            raise UsageError(problem, place=str(path), got=got, wanted=f"at most {most_loss:+.1%}", remedy=remedy)
        _store(temporary, report)
        reports.append(report)

    write_atomically(path, write)
    return reports[0]


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


def quantize(source: Path, path: Path) -> tuple[int, int]:
    """Write a model whose layers have int8 weights.

    Returns:
        how many layers are int8, and how many there are with a matrix of weights.

    Raises:
        UsageError: there are no such layers, or a package is missing.
    """
    try:
        import onnx
        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        remedy = "pip install onnx onnxruntime"
        raise UsageError(f"the package {error.name} is not installed", place=str(source), remedy=remedy) from None
    # What depends on weights alone becomes weights.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    model = onnx.load(path)
    _pointwise_as_products(model.graph)
    layers = _layers(model.graph)
    if len(layers) <= _FIRST + _LAST:
        problem = "no layers are worth int8: they are matrices of weights and pointwise convolutions"
        raise UsageError(problem, place=str(source), got=f"{len(layers)}", wanted=f"more than {_FIRST + _LAST}")
    metadata = onnx.load(source, load_external_data=False).metadata_props
    with _quiet():
        # Unsigned, because two products of signed weights overflow on processors without VNNI: text would depend on it.
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=layers[_FIRST:-_LAST],
            per_channel=True,
            weight_type=QuantType.QUInt8,
        )
    quantized = onnx.load(path)
    del quantized.metadata_props[:]
    quantized.metadata_props.extend(metadata)
    quantized.metadata_props.add(key=INT8)
    quantized.producer_name = "nemo_lite"
    onnx.save(quantized, path)
    return len(layers) - _FIRST - _LAST, len(layers)


def _layers(graph: Any) -> list[str]:
    """The products with a matrix of weights, in the order of computing."""
    large = {
        value.name for value in graph.initializer if len(value.dims) == 2 and np.prod(value.dims) > _FEWEST_WEIGHTS
    }
    return [node.name for node in graph.node if node.op_type == "MatMul" and node.input[1] in large]


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
