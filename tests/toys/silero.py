"""A file with the ports of silero-vad that hears speech in all that is loud."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_silero(path: Path) -> Path:
    """The inputs and outputs of silero-vad: speech where the mean amplitude is above 0.01; the state counts chunks."""
    constants = {"level": 0.01, "slope": 1000.0, "one": 1.0}
    nodes = [
        helper.make_node("Abs", ["input"], ["amplitude"]),
        helper.make_node("ReduceMean", ["amplitude", "axis"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["mean", "level"], ["above"]),
        helper.make_node("Mul", ["above", "slope"], ["scaled"]),
        helper.make_node("Sigmoid", ["scaled"], ["output"]),
        helper.make_node("Add", ["state", "one"], ["stateN"]),
    ]
    graph = helper.make_graph(
        nodes,
        "silero",
        [
            helper.make_tensor_value_info("input", TensorProto.FLOAT, [None, 576]),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, None, 128]),
            helper.make_tensor_value_info("sr", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("output", TensorProto.FLOAT, [None, 1]),
            helper.make_tensor_value_info("stateN", TensorProto.FLOAT, [2, None, 128]),
        ],
        [
            numpy_helper.from_array(np.array([1]), "axis"),
            *(numpy_helper.from_array(np.array(value, np.float32), name) for name, value in constants.items()),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path
