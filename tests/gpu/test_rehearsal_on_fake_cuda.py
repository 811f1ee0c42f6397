"""Forward passes of the shipped models' DAGs on fake CUDA tensors, on any machine: devices, dtypes, no host read."""

import json

import numpy as np
import pytest
import soundfile
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from toys.fake_cuda import DEVICE, IS_BUILT_WITH_CUDA, fake_cuda, on_cuda
from toys.shipped_configs import SAME_MODULES, config_cases

import nemo_asr
from nemo_asr.decoding.hypotheses import SearchOfStates
from nemo_asr.tasks.families import connect_classifier
from nemo_lite.backends.pytorch.engine.verdict import GuardedStep
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.optimizers import create_optimizer
from nemo_lite.backends.pytorch.placement import to_device
from nemo_lite.core.dag import Dag
from nemo_lite.utils.optimizers import OPTIMIZERS


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """A second of silence."""
    path = tmp_path_factory.mktemp("noise") / "noise.wav"
    soundfile.write(path, np.zeros(16000), 16000)
    return path


def rehearsed(config, noise, training, autocast=None):
    """The loss of a batch of three recordings, and what else is scored."""
    text = config.read_text()
    classifies = "AudioToSpeechLabelDataLayer" in text
    changes = ["labels=[a, b]"] if classifies or "\nlabels: auto" in text else []
    changes += ["ConformerEncoder.n_layers=2"] if "ConformerEncoder:" in text else []  # all layers are alike
    # Seeds of dropout in the joint, and draws of omega, are numbers on the host: values that are not there.
    changes += ["RNNTJoint.jointnet.dropout=0"] if "RNNTJoint:" in text else []
    changes += ["RNNTLoss.omega=0"] if "RNNTLoss:" in text else []
    recipe = nemo_asr.load_recipe(config, changes)
    with torch.device("meta"):
        model = recipe.classifier() if classifies else recipe.model()
    label = next(label for label in recipe.labels if label.strip())
    manifest = noise.with_suffix(".json")
    line = {"audio_filepath": noise.name, "duration": 1.0, "label" if classifies else "text": label}
    manifest.write_text(json.dumps(line) + "\n")
    data = recipe.data_layer(str(manifest), training=training, batch_size=3, num_workers=0)
    connect = connect_classifier if classifies else nemo_asr.connect
    scored = connect(model, data, training=training).scored
    # The searches of transducers and attention decoders run on the host.
    wires = [wire for wire in scored if not isinstance(wire.producer, SearchOfStates)]
    part = Dag(wires).slice()
    module = lower(part, "Rehearsed")
    for number, other in enumerate(other for node in part.nodes for other in node.module.referenced):
        module.add_module(f"referenced_{number}", other)
    # torch looks at the GPU to choose another kernel of attention.
    with fake_cuda(autocast), sdpa_kernel(SDPBackend.MATH):
        on_cuda(module).train(training)
        targets = torch.zeros(3, dtype=torch.int64) if classifies else torch.zeros(3, 4, dtype=torch.int32)
        batch = torch.rand(3, 24000), torch.full((3,), 24000), targets, torch.full((3,), 1 if classifies else 4)
        return module(*to_device(batch, DEVICE))


@pytest.fixture(autouse=True)
def _loss_without_kernel(monkeypatch):
    """CTC's kernel has no form without values."""

    def stand_in(log_probs, targets, input_lengths, target_lengths, blank):
        assert log_probs.shape[1] == targets.shape[0] == input_lengths.shape[0] == target_lengths.shape[0]
        return log_probs.sum((0, 2)) + targets.sum(1)

    monkeypatch.setattr("nemo_asr.models.losses.ctc_losses", stand_in)


@pytest.mark.slow
@pytest.mark.parametrize("config", config_cases(left_out=SAME_MODULES))
def test_what_a_model_gives_stays_on_the_gpu_in_float32_or_under_autocast(config, noise):
    for training, autocast in ((True, torch.bfloat16), (False, None)):
        loss, *others = rehearsed(config, noise, training, autocast)
        assert {value.device for value in (loss, *others)} == {DEVICE}
        assert (loss.shape, loss.dtype) == ((), torch.float32)
        assert loss.requires_grad == IS_BUILT_WITH_CUDA


@pytest.mark.parametrize("name", [*OPTIMIZERS, "RAdam"])
def test_a_guarded_step_reads_nothing_and_stays_on_the_gpu(name):
    with fake_cuda():
        shapes = ((3, 4), (2, 2**20), ())
        weights = [torch.nn.Parameter(torch.empty(shape, device=DEVICE), requires_grad=False) for shape in shapes]
        optimizer = torch.optim.RAdam(weights) if name == "RAdam" else create_optimizer(name, weights, {"lr": 0.1})
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        guarded = GuardedStep(optimizer)
        for _ in range(2):
            guarded.step(torch.empty((), device=DEVICE))
        kept = [
            value for state in optimizer.state.values() for value in state.values() if isinstance(value, FakeTensor)
        ]
        assert {value.device for value in kept if value.numel() > 1} == {DEVICE}


def test_the_rehearsal_sees_a_tensor_that_was_left_on_the_cpu():
    with (
        fake_cuda(),
        pytest.raises(RuntimeError, match=r"found (at least )?two (different )?devices,? cuda:0,?( and)? cpu"),
    ):
        torch.ones(3, device=DEVICE) + torch.ones(3)


@pytest.mark.parametrize("read", [bool, lambda x: x.item(), lambda x: x.tolist()])
def test_the_rehearsal_sees_the_host_read_a_value(read):
    with fake_cuda(), pytest.raises(DataDependentOutputException):
        read(torch.ones((), device=DEVICE))


def test_autocast_reaches_fake_tensors():
    with fake_cuda(torch.bfloat16):
        assert (torch.ones(2, 2, device=DEVICE) @ torch.ones(2, 2, device=DEVICE)).dtype == torch.bfloat16


def test_nothing_is_left_behind():
    with fake_cuda(torch.bfloat16):
        pass
    assert not torch.is_autocast_enabled("cuda")
    assert "__getitem__" not in vars(FakeTensor)


@pytest.mark.parametrize("name", ["novograd", "lamb", "adam", "adam_w", "sgd"])
def test_an_update_of_weights_on_the_gpu_reads_nothing(name):
    with fake_cuda():
        module = on_cuda(torch.nn.Linear(3, 2))
        for parameter in module.parameters():
            parameter.requires_grad_().grad = torch.ones_like(parameter)
        optimizer = create_optimizer(name, list(module.parameters()), {"lr": 0.1})
        for _ in range(2):
            optimizer.step()
        state = [value for values in optimizer.state.values() for value in values.values()]
        assert {value.device for value in state if isinstance(value, torch.Tensor) and value.dim()} <= {DEVICE}


@pytest.mark.skipif(
    not IS_BUILT_WITH_CUDA,
    reason="a backward node on a fake CUDA tensor ends a process whose torch has no CUDA (InputMetadata asks for its "
    "device guard); the meta device rehearses backward passes",
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs backward passes")
def test_backward_on_fake_cuda_asks_the_driver():
    with fake_cuda(), pytest.raises(RuntimeError, match="hasPrimaryContext"):
        torch.ones(3, device=DEVICE, requires_grad=True).sum().backward()
