"""Int8 files: which layers, the same texts, and no file where the error rate grows."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import soundfile
from onnx import TensorProto, helper, numpy_helper
from toys.onnx_toy import LABELS, METADATA, write_toy
from toys.random_models import noise
from toys.random_transducers import config_of, random_transducer

from nemo_asr.commands.cli.models import export
from nemo_asr.export import int8
from nemo_asr.export.int8 import _layers, _pointwise_as_products, export_int8, quantize
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.scoring.intervals import Interval
from nemo_lite.base.errors import DataError, FileInTheWayError, UsageError

RATE, WIDTH = 1000, 256


def network(path, outlier=0.0):
    """The toy, whose scores go through five layers and come back as they were.

    Args:
        path: the file.
        outlier: what one channel has more than the others; int8 then has no steps left for them.
    """
    metadata = METADATA | {"sample_rate": str(RATE), "frame_seconds": str(1 / RATE), "rates": "[]"}
    model = onnx.load(write_toy(path, metadata))
    graph, classes = model.graph, len(LABELS) + 1
    into = np.random.default_rng(0).normal(0.0, 1.0, (classes, WIDTH)).astype(np.float32)
    square = np.eye(WIDTH, dtype=np.float32)
    bias = np.zeros(WIDTH, np.float32)
    bias[0] = outlier
    weights = {
        "into": into,
        "kernel": square[:, :, None],
        "bias": bias,
        "left": square[None],
        "less": -bias[:, None],
        "square": square,
        "out_of": np.linalg.pinv(into).astype(np.float32),
    }
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    softmax = graph.node[4]
    softmax.input[0] = "last"
    layers = [
        helper.make_node("MatMul", ["scores", "into"], ["frames"], "first"),
        helper.make_node("MatMul", ["frames", "square"], ["more"], "second"),
        helper.make_node("Transpose", ["more"], ["channels"], "turn", perm=(0, 2, 1)),
        helper.make_node("Conv", ["channels", "kernel", "bias"], ["moved"], "conv", kernel_shape=[1]),
        helper.make_node("MatMul", ["left", "moved"], ["mixed"], "left"),
        helper.make_node("Add", ["mixed", "less"], ["back"], "back"),
        helper.make_node("Transpose", ["back"], ["turned"], "turn_back", perm=(0, 2, 1)),
        helper.make_node("MatMul", ["turned", "out_of"], ["last"], "labels"),
    ]
    nodes = [*graph.node[:4], *layers, *graph.node[4:]]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)
    return path


@pytest.fixture
def manifest(tmp_path):
    lines = []
    for number, (text, ids) in enumerate({"ab c": (1, 2, 0, 3), "cab": (3, 1, 2), "ba": (2, 1)}.items()):
        soundfile.write(tmp_path / f"{number}.wav", np.array(ids, np.float32), RATE, subtype="FLOAT")
        line = {"audio_filepath": f"{number}.wav", "duration": len(ids) / RATE, "text": text}
        lines.append(json.dumps(line))
    (tmp_path / "dev.json").write_text("\n".join(lines))
    return str(tmp_path / "dev.json")


@pytest.mark.slow
def test_an_int8_file_is_smaller_has_the_same_texts_and_says_what_was_measured(tmp_path, manifest):
    source = network(tmp_path / "float.onnx")
    report = export_int8(source, tmp_path / "int8.onnx", [manifest])
    assert (report.layers, report.of) == (2, 5)
    (rates,) = report.sets
    assert (rates.set, rates.metric, rates.utterances) == ("dev", "wer", 3)
    assert (rates.float32, rates.int8, rates.loss) == (0.0, 0.0, 0.0)
    assert report.bytes[0] == source.stat().st_size
    assert report.bytes[1] < 0.7 * report.bytes[0]
    model = OnnxModel(tmp_path / "int8.onnx")
    (heard,) = model.transcribe([np.array([3, 1, 2], np.float32)], audio_rate=RATE, cutting=None).transcripts
    assert heard.text == "cab"
    assert json.loads(model.metadata["rates"]) == [{"set": "dev", "wer": 0.0, "utterances": 3}]
    assert json.loads(model.metadata["int8"])["layers"] == 2
    assert model.metadata["labels"] == OnnxModel(source).metadata["labels"]
    names = {node.op_type for node in onnx.load(tmp_path / "int8.onnx").graph.node}
    assert "MatMulInteger" in names


@pytest.mark.slow
def test_a_layer_that_makes_more_errors_stays_float_and_is_named(tmp_path, manifest):
    source = network(tmp_path / "float.onnx", outlier=1e5)
    report = export_int8(source, tmp_path / "int8.onnx", [manifest])
    assert (report.layers, report.of) == (1, 5)
    assert report.kept == ("left_MatMul",)
    assert report.sets[0].int8 == 0.0
    assert "float because they cost accuracy: left_MatMul" in str(report)
    assert json.loads(OnnxModel(tmp_path / "int8.onnx").metadata["int8"])["kept"] == ["left_MatMul"]
    assert export_int8(source, tmp_path / "all.onnx", [manifest], float("inf")).sets[0].int8 > 0.5


@pytest.mark.slow
def test_a_file_that_makes_more_errors_is_not_written(tmp_path, manifest):
    source = network(tmp_path / "float.onnx", outlier=1e5)
    told = (
        r"int8\.onnx: int8 makes more errors on dev .*: got WER .*% where float32 has 0\.00%, \+\d.* points, "
        r"wanted at most -50\.00 points; give larger sets"
    )
    with pytest.raises(UsageError, match=told):
        export_int8(source, tmp_path / "int8.onnx", [manifest], -0.5)
    assert not list(tmp_path.glob("*int8*"))


def test_what_is_lost_is_counted_in_points_and_two_words_of_a_thousand_are_not_more_than_0_2():
    interval = Interval(0.0, 0.1)
    rates = int8.SetRates("dev", "wer", 300, 0.029, 0.031, interval, interval)
    assert rates.loss == int8.MOST_LOSS
    more = int8.SetRates("dev", "wer", 300, 0.029, 0.032, interval, interval)
    assert more.loss > int8.MOST_LOSS
    report = int8.Int8Report(2, 5, (rates, more), (4, 2), (0.1, 0.1))
    assert report.worst is more
    assert [line.split("  ")[-1].strip() for line in str(report).splitlines()[2:4]] == ["+0.20 points", "+0.30 points"]


@pytest.mark.parametrize(("needed", "kept"), [(1, 1), (2, 2), (3, 3), (5, 5), (6, 6), (8, 8), (10, 10), (11, None)])
def test_as_few_layers_as_needed_stay_float_and_at_most_half(needed, kept):
    layers = [int8.Layer("", f"node_{number}", str(number)) for number in range(20)]

    class Model:
        def by_change(self, recordings, place):
            return layers

    def report(chosen):
        rates = SimpleNamespace(loss=0.5 if len(chosen) < needed else 0.0)
        return SimpleNamespace(worst=rates, kept=list(chosen))

    found: Any = int8._with_float_layers(Model(), [], None, report, 0.02)
    assert (found and len(found.kept)) == kept
    assert found is None or found.kept == layers[:kept]


@pytest.mark.slow
def test_a_transducer_has_int8_layers_in_all_its_files(tmp_path):
    text = config_of().replace("joint_hidden: 24", "joint_hidden: 96").replace("pred_hidden: 20", "pred_hidden: 64")
    model = random_transducer(tmp_path, text)
    export_onnx(model, tmp_path / "float.onnx")
    lines = []
    for number in range(3):
        soundfile.write(tmp_path / f"{number}.wav", noise(0.5, number), 16_000, subtype="FLOAT")
        line = {"audio_filepath": f"{number}.wav", "duration": 0.5, "text": "ab c"}
        lines.append(json.dumps(line))
    (tmp_path / "dev.json").write_text("\n".join(lines))
    manifest = str(tmp_path / "dev.json")
    report = export_int8(tmp_path / "float.onnx", tmp_path / "int8.onnx", [manifest], float("inf"))
    written = OnnxModel(tmp_path / "int8.onnx")
    names = {name: path.name for name, path in written.part_files.items()}
    assert names == {"prediction": "int8.prediction.onnx", "joint": "int8.joint.onnx"}
    size = sum(path.stat().st_size for path in tmp_path.glob("int8*.onnx"))
    assert report.bytes[0] > report.bytes[1] == pytest.approx(size, abs=2000)  # what it says of itself is not counted
    assert report.layers == 2  # those of the LSTM: the others are the first ones, the last one, or too small
    assert "DynamicQuantizeLSTM" in {node.op_type for node in onnx.load(written.part_files["prediction"]).graph.node}
    assert written.transcribe([noise(0.5)], audio_rate=16_000, cutting=None).transcripts[0].text


@pytest.mark.slow
def test_log_probabilities_of_int8_do_not_depend_on_neighbours(tmp_path, manifest):
    export_int8(network(tmp_path / "float.onnx"), tmp_path / "int8.onnx", [manifest])
    model = OnnxModel(tmp_path / "int8.onnx")
    one, loud = np.array([1, 2, 0.3], np.float32), np.array([40, 1, 2, 3], np.float32)
    (alone,) = model.states([one])
    np.testing.assert_array_equal(model.states([one, loud])[0]["log_probs"], alone["log_probs"])


def test_layers_as_products_compute_the_same(tmp_path):
    """Also a ``Gemm``, and a convolution that is none of them."""
    random = np.random.default_rng(1)
    kernel, bias, wide = (random.normal(size=shape).astype(np.float32) for shape in ((40, 30, 1), (40,), (40, 40, 3)))
    left, gemm = (random.normal(size=shape).astype(np.float32) for shape in ((1, 30, 40), (50, 30)))
    weights = {"kernel": kernel, "bias": bias, "wide": wide, "left": left, "gemm": gemm, "rows": np.array([-1, 30])}
    nodes = [
        helper.make_node("Conv", ["x", "kernel", "bias"], ["a"], kernel_shape=[1]),
        helper.make_node("Conv", ["a", "wide"], ["b"], kernel_shape=[3], pads=[1, 1]),
        helper.make_node("MatMul", ["left", "b"], ["c"]),
        helper.make_node("Transpose", ["c"], ["d"], perm=(0, 2, 1)),
        helper.make_node("Reshape", ["d", "rows"], ["e"]),
        helper.make_node("Gemm", ["e", "gemm"], ["y"], transB=1),
    ]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 30, "t"])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 50])]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "layers", ports, results, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    signal = {"x": random.normal(size=(2, 30, 7)).astype(np.float32)}
    outputs = []
    for is_changed in (False, True):
        if is_changed:
            _pointwise_as_products(model.graph)
        outputs += onnxruntime.InferenceSession(model.SerializeToString()).run(None, signal)
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)
    assert len(_layers(model.graph)) == 3
    assert [node.op_type for node in model.graph.node].count("Conv") == 1


def test_matrices_that_stay_float_are_stored_in_16_bits(tmp_path):
    source = network(tmp_path / "float.onnx")
    quantize(source, tmp_path / "some.onnx")
    file = onnx.load(tmp_path / "some.onnx")
    kept = {value.name: value for value in file.graph.initializer}
    assert {"into_int16", "out_of_int16"} <= kept.keys()
    assert not [value for value in kept.values() if value.data_type == TensorProto.FLOAT and np.prod(value.dims) > 1024]
    numbers = {value.name: numpy_helper.to_array(value) for value in onnx.load(source).graph.initializer}
    for name in ("into", "out_of"):
        stored = numpy_helper.to_array(kept[f"{name}_int16"]) * numpy_helper.to_array(kept[f"{name}_scale"])
        np.testing.assert_allclose(stored, numbers[name], rtol=0, atol=np.abs(numbers[name]).max() / 65_000)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    onnxruntime.InferenceSession(str(tmp_path / "some.onnx"), options, providers=["CPUExecutionProvider"])
    loaded = onnx.load(tmp_path / "loaded.onnx").graph.initializer  # they are multiplied once
    assert not [value.name for value in loaded if value.data_type == TensorProto.INT16]


def test_a_model_without_layers_and_a_file_in_the_way_are_refused(tmp_path, manifest):
    toy = write_toy(tmp_path / "toy.onnx")
    with pytest.raises(UsageError, match=r"no layers are worth int8: .*: got 0, wanted more than 3"):
        export_int8(toy, tmp_path / "int8.onnx", [manifest])
    with pytest.raises(FileInTheWayError, match=r"toy\.onnx: the file exists already"):
        export_int8(toy, toy, [manifest])


@pytest.mark.slow
def test_the_command_prints_a_table(tmp_path, manifest, capsys):
    source = network(tmp_path / "float.onnx")
    words = [str(source), str(tmp_path / "int8.onnx"), "--int8", "--eval_datasets", manifest, "--max_wer_loss", "0.5"]
    export(words)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].split()[:5] == ["dev", "3", "0.00%", "0.00", "to"]
    assert lines[-2] == "2 of 5 layers with matrices are int8"
    assert lines[-1].startswith("size 0.")
    assert "times as fast" in lines[-1]
    (tmp_path / "0.wav").unlink()
    with pytest.raises(DataError, match=r"dev: .*0\.wav"):
        export([words[0], str(tmp_path / "b.onnx"), *words[2:]])


def test_int8_and_its_sets_are_given_together(tmp_path, capsys):
    for words in (["--int8"], ["--eval_datasets", "dev.json"], ["--max_wer_loss", "3"]):
        with pytest.raises(SystemExit):
            export(["model", str(tmp_path / "a.onnx"), *words])
        assert "--int8 needs --eval_datasets" in capsys.readouterr().err
