"""One module or a part of a DAG as one ONNX file, which is compared before it gets its name."""

import onnxruntime
import pytest
import torch
from torch import nn

import nemo_lite as nemo
from nemo_lite.backends.pytorch import export as onnx_files
from nemo_lite.backends.pytorch.export import Argument, dynamic_axes, export_wires, write_onnx
from nemo_lite.backends.pytorch.tutorials import RealFunctionDataLayer, TaylorNet
from nemo_lite.core.neural_types import ChannelType, NeuralType
from nemo_lite.errors import UsageError


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
