"""deployment_export: formats, examples, what is refused. ONNX and whole scripts: tests/nemo_scripts/deployment.py."""

import json

import pytest
import torch

import nemo_asr
import nemo_lite as nemo
from nemo_lite.backends.pytorch import export as deployment
from nemo_lite.backends.pytorch.export import _compare, _Part, _resized, _widened, export_module
from nemo_lite.backends.pytorch.tutorials import TaylorNet
from nemo_lite.core import DeploymentFormat
from nemo_lite.errors import FileInTheWayError, UsageError

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
    part = _Part.of(encoder, torch.randn(1, 6, 20), "here")
    assert _compare(part, part, "here") == 0.0
    with pytest.raises(UsageError, match="here: the exported outputs is not torch's"):
        _compare(part, lambda *values: part(*values) + 0.01, "here")
    with pytest.raises(UsageError, match=r"got \(2, 4, 9\).*wanted \(2, 4, 10\)"):
        _compare(part, lambda *values: part(*values)[..., 1:], "here")
