"""A model file as ``nemo-lite export`` writes it, without a network: each sample says which label its frame has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LABELS = [" ", "a", "b", "c"]
RATE = 10
METADATA = {
    "format": "nemo_lite waveform model 1",
    "name": "Toy",
    "family": "ctc",
    "wires": json.dumps({"log_probs": "B T D=5 Logprobs", "log_probs_length": "B Lengths"}),
    "labels": json.dumps(LABELS),
    "sample_rate": str(RATE),
    "frame_seconds": "0.1",
}


def write_toy(path: Path, metadata: Mapping[str, str] = METADATA) -> Path:
    """A sample k is a frame whose best class is k: p of class j is proportional to exp(-2 |k - j|); 4 is the blank."""
    classes = numpy_helper.from_array(np.arange(len(LABELS) + 1, dtype=np.float32), "classes")
    axis = numpy_helper.from_array(np.array([2]), "axis")
    factor = numpy_helper.from_array(np.array(-2.0, np.float32), "factor")
    nodes = [
        helper.make_node("Unsqueeze", ["audio_signal", "axis"], ["samples"]),
        helper.make_node("Sub", ["samples", "classes"], ["apart"]),
        helper.make_node("Abs", ["apart"], ["distance"]),
        helper.make_node("Mul", ["distance", "factor"], ["scores"]),
        helper.make_node("LogSoftmax", ["scores"], ["log_probs"], axis=-1),
        helper.make_node("Identity", ["length"], ["log_probs_length"]),
    ]
    inputs = [
        helper.make_tensor_value_info("audio_signal", TensorProto.FLOAT, ["batch", "time"]),
        helper.make_tensor_value_info("length", TensorProto.INT64, ["batch"]),
    ]
    outputs = [
        helper.make_tensor_value_info("log_probs", TensorProto.FLOAT, ["batch", "time", len(LABELS) + 1]),
        helper.make_tensor_value_info("log_probs_length", TensorProto.INT64, ["batch"]),
    ]
    graph = helper.make_graph(nodes, "toy", inputs, outputs, [classes, axis, factor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)
    return path
