"""Training on one GPU: levels of precision, compiled, a step that is not finite, batches on a stream, host reads."""

import math

import numpy as np
import pytest
import torch
from toys.gpus import factory_on, on_cpu_and
from toys.nets import Mse, Net, Points, Record, build, train

import nemo_asr
import nemo_lite as nemo
from nemo_lite.base.errors import UsageError
from nemo_lite.core.run_options import Optimization

pytestmark = on_cpu_and(num_gpus=1)
LEVELS = [level.short for level in Optimization]
TOLERANCE = {"O0": 1e-4, "O1": 0.1, "O2": 0.1, "O3": 0.2}  # of losses, relative to float32 on the CPU
MANY = {"num_epochs": 8}


def losses_of(device, level="O0", params=MANY, **settings):
    """Losses of a training of the toy, and its net."""
    try:
        factory = factory_on(device, optimization_level=level)
    except UsageError as error:
        pytest.skip(f"{device}: {error}")
    net, loss = build(net=Net(norm=True))
    record = Record()
    train(factory, [loss], record, lr=0.05, params=dict(params), **settings)
    return record.losses, net


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_trains_the_toy_to_the_losses_of_float32(device, level):
    losses, net = losses_of(device, level)
    expected, _ = losses_of("cpu")
    assert losses == pytest.approx(expected, rel=TOLERANCE[level], abs=0.02 if level != "O0" else 1e-5)
    assert {parameter.device.type for parameter in net.parameters()} == {device}


def test_float16_with_a_loss_scale_trains_the_toy(device):
    if device == "cpu":
        pytest.skip("float16 is not computed on a CPU")
    net, loss = build(net=Net(norm=True))
    record = Record()
    factory = factory_on(device, optimization_level="O1", amp_dtype="float16")
    train(factory, [loss], record, lr=0.05, params=MANY)
    expected, _ = losses_of("cpu")
    # The first steps may be left out until the scale fits.
    assert record.losses[-1] == pytest.approx(expected[-1], abs=0.1)
    assert all(torch.isfinite(parameter).all() for parameter in net.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_compiled_training_has_the_losses_of_one_that_is_not(device, level):
    backend = "inductor" if device == "cuda" else "eager"
    plain, _ = losses_of(device, level)
    compiled, _ = losses_of(device, level, compile={"backend": backend})
    # Fused code rounds less often than the layers one by one.
    assert compiled == pytest.approx(plain, rel=TOLERANCE[level], abs=1e-4 if level == "O0" else 0.02)


@pytest.mark.parametrize("params", [{}, {"ema_decay": 0.9}], ids=["", "moving_averages"])
def test_compiled_with_cuda_graphs_it_has_them_too(device, params):
    if device == "cpu":
        pytest.skip("CUDA graphs need CUDA")
    plain, _ = losses_of(device, params=MANY | params)
    compiled, _ = losses_of(device, params=MANY | params, compile={"mode": "reduce-overhead"})
    assert compiled == pytest.approx(plain, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("bad_item", [0, 5])  # 0: in the first step of all
@pytest.mark.parametrize("name", ["sgd", "adam", "novograd", "adam_w", "lamb", "SGD", "RAdam"])
def test_a_step_that_is_not_finite_is_skipped_and_leaves_no_trace(device, name, bad_item):
    factory = factory_on(device)
    net, loss = build(data=Points(n=12, bad_item=bad_item), net=Net(norm=True))
    record = Record()
    net.to(device)
    own = {
        "SGD": lambda: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True),
        "RAdam": lambda: torch.optim.RAdam(net.parameters(), lr=0.1),
    }
    params = {"num_epochs": 2} | ({} if name in own else {"lr": 0.1})
    optimizer = own[name]() if name in own else name
    factory.train([loss], optimizer=optimizer, callbacks=[record], optimization_params=params)
    assert [math.isfinite(each) for each in record.losses] == [step % 3 != bad_item // 4 for step in range(6)]
    assert all(torch.isfinite(value).all() for value in net.state_dict().values())
    assert net.norm.num_batches_tracked == 4


class Sums(nemo.NeMoCallback):
    """What each step was given, summed on the device; read at the end."""

    def __init__(self):
        super().__init__()
        self.sums = []

    def on_step_end(self, state):
        self.sums.append(state.tensors.get_tensor("seen").double().sum())


class Large(Points):
    """Items large enough for a copy to take longer than a step, in pinned memory, from two processes."""

    num_workers, pin_memory = 2, torch.cuda.is_available()

    def __init__(self, n=24, size=3):
        super().__init__(n=n, batch_size=2)
        self.x = torch.rand(n, size, generator=torch.Generator().manual_seed(4))


def test_batches_that_are_copied_ahead_arrive_whole_and_in_order(device):
    size = 3 if device == "cpu" else 4_000_000
    data = Large(size=size)
    net = Net()
    net.fc = torch.nn.Linear(size, 1)
    x, y = data()
    x.rename("seen")
    record = Sums()
    train(factory_on(device), [Mse()(out=net(x=x), target=y)], record, lr=1e-9, params={"num_epochs": 2})
    expected = [float(batch.double().sum()) for batch in data.x.split(2)] * 2
    assert [float(each) for each in record.sums] == pytest.approx(expected, rel=1e-9)


def test_an_evaluation_that_looks_ahead_reads_what_an_inference_computes(device):
    data, net = Points(n=64, batch_size=4), Net(norm=True)
    out = net(x=data()[0])
    factory, seen = factory_on(device), []
    evaluator = nemo.EvaluatorCallback(
        [out], lambda values, _: seen.append(values[out.unique_name][0].cpu()), lambda _: None
    )
    factory.eval([evaluator])
    (expected,) = factory.infer([out])
    assert len(seen) == 16
    assert all(torch.equal(mine, theirs.cpu()) for mine, theirs in zip(seen, expected, strict=True))


class NoReads(nemo.NeMoCallback):
    """From the end of one step to that of another, torch raises an error where the host waits for the device."""

    def __init__(self, first, last):
        super().__init__()
        self.first, self.last, self.watched = first, last, 0

    def on_step_end(self, state):
        self.watched += self.first < state.step <= self.last
        if state.step in (self.first, self.last) and torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("error" if state.step == self.first else "default")


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_the_host_never_waits_for_the_device_between_logging_steps(device, level):
    try:
        factory = factory_on(device, optimization_level=level)
    except UsageError as error:
        pytest.skip(f"{device}: {error}")
    _, loss = build(net=Net(norm=True))
    guard = NoReads(first=2, last=5)
    try:
        train(factory, [loss], guard, lr=0.05, params={"num_epochs": 4, "grad_norm_clip": 1.0})
    finally:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
    assert guard.watched == 3


def test_features_are_those_of_the_cpu(device):
    preprocessor = nemo_asr.AudioToMelSpectrogramPreprocessor(dither=0.0).eval()
    audio = torch.from_numpy(np.random.default_rng(0).normal(0, 0.1, (3, 16000)).astype(np.float32))
    length = torch.tensor([16000, 9000, 4000])
    expected, expected_lengths = preprocessor(input_signal=audio, length=length)
    features, lengths = preprocessor.to(device)(input_signal=audio.to(device), length=length.to(device))
    assert features.device.type == device
    assert torch.equal(lengths.cpu(), expected_lengths)
    torch.testing.assert_close(features.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_ctc_and_its_gradient_are_those_of_the_cpu(device):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 20, 6, generator=generator)
    targets = torch.randint(0, 5, (3, 4), generator=generator)
    lengths = torch.tensor([20, 15, 12]), torch.tensor([4, 3, 2])
    results = []
    for place in ("cpu", device):
        log_probs = scores.clone().to(place).requires_grad_()
        ctc = nemo_asr.CTCLossNM(num_classes=5).to(place)
        input_length, target_length = (each.to(place) for each in lengths)
        loss = ctc(
            log_probs=log_probs.log_softmax(-1),
            targets=targets.to(place),
            input_length=input_length,
            target_length=target_length,
        )
        loss.backward()
        results.append((loss.detach().cpu(), log_probs.grad.cpu()))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
