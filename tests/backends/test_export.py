"""Modules and parts of DAGs as files for other programs, compared with torch."""

import json
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import nemo_asr
import nemo_lite as nemo
from nemo_lite.backends.pytorch import export as deployment
from nemo_lite.backends.pytorch import export as onnx_files
from nemo_lite.backends.pytorch.export import (
    Argument,
    _compare,
    _ExportedPart,
    _resized,
    _widened,
    dynamic_axes,
    export_module,
    export_wires,
    write_onnx,
)
from nemo_lite.base.errors import FileInTheWayError, UsageError
from nemo_lite.compat.tutorials import RealFunctionDataLayer, TaylorNet
from nemo_lite.core import DeploymentFormat
from nemo_lite.core.neural_types import ChannelType, NeuralType

# One module or a part of a DAG as one ONNX file, which is compared before it gets its name.


class Sums(nn.Module):
    """Sums over time up to each length; a branch on a value where ``looks`` is set."""

    def __init__(self, looks=False):
        super().__init__()
        self.looks, self.scale = looks, nn.Parameter(torch.tensor(2.0))

    def forward(self, values, length):
        if self.looks and values.sum() > 0:
            return values, length
        valid = torch.arange(values.shape[1]) < length[:, None]
        return torch.where(valid, values, 0.0).sum(1) * self.scale, length + 1


ARGUMENTS = [
    Argument("values", torch.randn(3, 7), {0: "batch", 1: "time"}),
    Argument("length", torch.tensor([7, 2, 3]), {0: "batch"}),
]


@pytest.mark.slow
def test_one_file_holds_weights_names_and_metadata_and_takes_any_size(tmp_path):
    module, seen = Sums().eval(), []
    check = lambda run: seen.append(run(torch.ones(1, 4), torch.tensor([3])))  # noqa: E731
    write_onnx(module, ARGUMENTS, ["sums", "more"], tmp_path / "m.onnx", check, {"unit": "none"})
    assert [each.tolist() for each in seen[0]] == [[6.0], [4]]
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    assert [(each.name, each.shape) for each in session.get_inputs()] == [
        ("values", ["batch", "time"]),
        ("length", ["batch"]),
    ]
    assert [(each.name, each.shape) for each in session.get_outputs()] == [("sums", ["batch"]), ("more", ["batch"])]
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.custom_metadata_map["unit"]) == ("nemo_lite", "none")
    file = onnx.load(tmp_path / "m.onnx")  # ONNX Runtime 1.17 reads versions up to 9
    assert (file.ir_version, [each.version for each in file.opset_import if not each.domain]) == (9, [20])
    assert str(Path(__file__).parent).encode() not in (tmp_path / "m.onnx").read_bytes()  # no lines of this code
    assert not any(node.metadata_props for node in file.graph.node)


class Masks(nn.Module):
    """Masks its input, what it makes of it, within and beyond the lengths, and a constant."""

    def forward(self, values, length):
        valid = torch.arange(values.shape[1]) < length[:, None]
        values = torch.where(valid, values, 0.0)
        infinite = torch.where(valid, 0.0, torch.inf)
        return torch.where(valid, values - 3.0, 0.0), (values - 3.0).masked_fill(valid, 0.0), infinite


@pytest.mark.slow
def test_masks_become_factors_but_for_those_of_inputs_and_constants_which_may_give_nan(tmp_path):
    seen = []
    values = torch.tensor([[1.0, 2.0, torch.nan, 4.0]])
    check = lambda run: seen.extend(run(values, torch.tensor([2])))  # noqa: E731
    write_onnx(Masks().eval(), ARGUMENTS, ["within", "beyond", "infinite"], tmp_path / "m.onnx", check)
    assert [each.tolist()[0] for each in seen] == [[-2, -1, 0, 0], [0, 0, -3, -3], [0, 0, torch.inf, torch.inf]]
    operators = [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node]
    assert (operators.count("Where"), operators.count("Mul")) == (2, 2)


def test_an_example_of_one_row_is_refused_because_its_size_would_become_a_constant(tmp_path):
    arguments = [ARGUMENTS[0]._replace(example=torch.randn(1, 7)), ARGUMENTS[1]]
    with pytest.raises(ValueError, match=r"free axes of values must have at least 2 entries, got \(1, 7\)"):
        write_onnx(Sums(), arguments, ["sums", "more"], tmp_path / "m.onnx", lambda run: None)


@pytest.mark.slow
def test_a_failed_check_leaves_no_file_and_an_older_one_as_it_was(tmp_path, monkeypatch):
    def refuse(run):
        assert run.path.is_file()
        raise UsageError("it differs")

    program = torch.onnx.export(Sums().eval(), tuple(each.example for each in ARGUMENTS), verbose=False)
    monkeypatch.setattr(onnx_files, "_program", lambda *_: program)
    with pytest.raises(UsageError, match="it differs"):
        write_onnx(Sums(), ARGUMENTS, ["sums", "more"], tmp_path / "m.onnx", refuse)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "m.onnx").write_text("older")
    with pytest.raises(UsageError, match="it differs"):
        write_onnx(Sums(), ARGUMENTS, ["sums", "more"], tmp_path / "m.onnx", refuse)
    assert (tmp_path / "m.onnx").read_text() == "older"


@pytest.mark.slow
def test_what_torch_cannot_export_is_told_in_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"m\.onnx: torch cannot export Sums to ONNX.*branches that depend") as caught:
        write_onnx(Sums(looks=True), ARGUMENTS, ["a", "b"], tmp_path / "m.onnx", lambda run: None)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named_with_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_files, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(
        UsageError, match=r"onnxscript must be installed for ONNX; pip install onnx onnxscript onnxruntime$"
    ):
        write_onnx(Sums(), ARGUMENTS, ["a", "b"], tmp_path / "m.onnx", lambda run: None)


def test_batch_and_time_axes_are_free():
    assert dynamic_axes(NeuralType("B D T", ChannelType())) == {0: "batch", 2: "time"}
    assert dynamic_axes(NeuralType("D", ChannelType())) == {}


@pytest.mark.slow
def test_wires_are_exported_from_the_data_layer_on_and_modules_keep_their_mode(tmp_path):
    layer, net = RealFunctionDataLayer(n=8, batch_size=4), TaylorNet(dim=2)
    x, _ = layer()
    seen = []

    def check(run, exported):
        values = torch.randn(5, 1), torch.randn(5, 1)
        seen.append((net.training, run(*values)[0], exported(*values)[0]))

    examples = {"x": torch.randn(3, 1), "y": torch.randn(3, 1)}
    export_wires({"prediction": net(x=x)}, examples, tmp_path / "net.onnx", check)
    ((training, wanted, got),) = seen
    assert (training, net.training) == (False, True)
    torch.testing.assert_close(got, wanted)
    assert isinstance(net, nemo.TrainableNM)


# deployment_export: formats, examples, what is refused. ONNX and whole scripts: tests/nemo_scripts/deployment.py.


BLOCK = {"repeat": 1, "kernel": [3], "stride": [1], "dilation": [1], "dropout": 0.0, "residual": False}
BLOCKS = [{**BLOCK, "filters": 8, "separable": True, "stride": [2]}, {**BLOCK, "filters": 4}]


@pytest.fixture
def encoder():
    return nemo_asr.JasperEncoder(jasper=BLOCKS, activation="relu", feat_in=6)


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, set_default=False)


def test_a_state_dict_is_torchs_and_its_arguments_are_json(encoder, factory, tmp_path):
    factory.deployment_export(encoder, tmp_path / "encoder.pt", DeploymentFormat.PYTORCH)
    state = torch.load(tmp_path / "encoder.pt", weights_only=True)
    assert {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in encoder.state_dict().items()
    }
    arguments = json.loads((tmp_path / "encoder.pt.json").read_text())
    assert (arguments["feat_in"], arguments["conv_mask"], len(arguments["jasper"])) == (6, True, 2)


def test_a_traced_encoder_takes_features_alone_of_any_size(encoder, factory, tmp_path):
    factory.deployment_export(encoder, str(tmp_path / "encoder.ts"), DeploymentFormat.TORCHSCRIPT)
    script = torch.jit.load(tmp_path / "encoder.ts")
    x = torch.randn(2, 6, 33)
    encoder.eval()
    torch.testing.assert_close(script(x), encoder(audio_signal=x, length=torch.tensor([33, 33]))[0])


def test_an_example_with_lengths_gives_the_same(encoder, tmp_path):
    example = (torch.randn(1, 6, 20), torch.tensor([20]))
    export_module(encoder, tmp_path / "encoder.ts", DeploymentFormat.TORCHSCRIPT, example)
    assert torch.jit.load(tmp_path / "encoder.ts")(torch.randn(3, 6, 7)).shape == (3, 4, 4)


def test_without_an_example_the_source_is_compiled(factory, tmp_path):
    net = TaylorNet(dim=3)
    factory.deployment_export(net, tmp_path / "net.ts", DeploymentFormat.TORCHSCRIPT)
    x = torch.randn(5, 1)
    torch.testing.assert_close(torch.jit.load(tmp_path / "net.ts")(x), net(x=x))


def test_the_module_is_left_as_it_was(encoder, tmp_path):
    x, length = torch.randn(2, 6, 33), torch.tensor([33, 9])
    encoder.train()
    before = encoder(audio_signal=x, length=length)[0]
    export_module(encoder, tmp_path / "encoder.ts", DeploymentFormat.TORCHSCRIPT)
    assert encoder.training
    assert encoder.init_params["feat_in"] == 6
    torch.testing.assert_close(encoder(audio_signal=x, length=length)[0], before)


@pytest.mark.parametrize("name", [each.name for each in DeploymentFormat if each.name not in ("AUTO", "JARVIS")])
def test_a_file_that_is_there_is_never_replaced(name, tmp_path):
    (tmp_path / "net").write_text("older")
    with pytest.raises(FileExistsError, match=r"net: the file exists already; give another name") as caught:
        export_module(TaylorNet(dim=3), tmp_path / "net", DeploymentFormat[name])
    assert isinstance(caught.value, FileInTheWayError)
    assert (tmp_path / "net").read_text() == "older"


def test_arguments_beside_a_file_replace_nothing_either(tmp_path):
    (tmp_path / "net.json").write_text("older")
    with pytest.raises(FileInTheWayError, match=r"net\.json: the file exists already; give another name"):
        export_module(TaylorNet(dim=3), tmp_path / "net", DeploymentFormat.PYTORCH)
    assert [path.name for path in tmp_path.iterdir()] == ["net.json"]


def test_a_module_that_deploys_itself_is_asked_to(tmp_path):
    class Deploying(TaylorNet):
        def deploy_to_jarvis(self, output):
            (tmp_path / "written").write_text(output)

    (tmp_path / "net").mkdir()
    export_module(Deploying(dim=3), tmp_path / "net", DeploymentFormat.JARVIS)
    assert (tmp_path / "written").read_text() == str(tmp_path / "net")
    with pytest.raises(UsageError, match="TaylorNet has no method deploy_to_jarvis; export to ONNX"):
        export_module(TaylorNet(dim=3), tmp_path / "net", DeploymentFormat.JARVIS)


@pytest.mark.parametrize(
    ("d_format", "example", "message"),
    [
        (DeploymentFormat.AUTO, None, "this format cannot be written: got DeploymentFormat.AUTO, wanted PYTORCH, "),
        (DeploymentFormat.ONNX, None, "ONNX needs an example: got none for TaylorNet; give input_example"),
        (DeploymentFormat.TORCHSCRIPT, (), "the example does not fit the ports.*wanted tensors for x"),
        (DeploymentFormat.TORCHSCRIPT, ["a"], "the example does not fit the ports: got str, wanted tensors for x"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_leaves_no_file(d_format, example, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        export_module(TaylorNet(dim=3), tmp_path / "net", d_format, example)
    assert list(tmp_path.iterdir()) == []


class Looking(TaylorNet):
    """Its trace holds the number of rows that it was traced with."""

    def forward(self, x):
        return x * len(x)


def test_a_part_that_differs_for_another_size_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"y_pred is not torch's, so no file is written.*apart, for inputs of"):
        export_module(Looking(dim=3), tmp_path / "net", DeploymentFormat.TORCHSCRIPT, torch.randn(4, 1))
    assert list(tmp_path.iterdir()) == []


def test_examples_are_resized_from_their_own_values():
    value = torch.arange(6).reshape(2, 3)
    axes = {0: "batch", 1: "time"}
    assert _resized(value, axes, 3, 1.7).tolist() == [[0, 1, 2, 0, 1], [3, 4, 5, 3, 4], [0, 1, 2, 0, 1]]
    assert _resized(value, axes, 1, 0.1).tolist() == [[0]]
    assert _widened(torch.zeros(1, 4, 1), {0: "batch", 2: "time"}).shape == (2, 4, 2)


def test_the_comparison_sees_a_small_difference(encoder, monkeypatch):
    monkeypatch.setattr(deployment, "_COMPARED", ((2, 1.0),))
    part = _ExportedPart.of(encoder, torch.randn(1, 6, 20), "here")
    assert _compare(part, part, "here") == 0.0
    with pytest.raises(UsageError, match="here: the exported outputs is not torch's"):
        _compare(part, lambda *values: part(*values) + 0.01, "here")
    with pytest.raises(UsageError, match=r"got \(2, 4, 9\).*wanted \(2, 4, 10\)"):
        _compare(part, lambda *values: part(*values)[..., 1:], "here")
