"""The verdict on a step: the form of accelerators gives what the form of a CPU gives, and reads nothing in between.

Steps that are skipped and updates that the device guards are tested here too.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toys.device_verdict import use_device_verdict
from toys.host_reads import BetweenLoggingSteps
from toys.nets import Net, Points, Record, build, train
from toys.rank_training import rank_factory
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch import actions
from nemo_lite.backends.pytorch.engine.verdict import GuardedStep
from nemo_lite.backends.pytorch.foreach_optimizers import Novograd
from nemo_lite.backends.pytorch.optimizers import create_optimizer
from nemo_lite.backends.pytorch.precision import LossScale, Precision, own_part
from nemo_lite.base.errors import NonFiniteLossError
from nemo_lite.utils.optimizers import OPTIMIZERS

NAMES = tuple(OPTIMIZERS)
OF_TORCH = {
    **{name: {} for name in ("Adam", "NAdam", "RAdam", "Adadelta", "ASGD", "Rprop", "SGD", "Adafactor")},
    "SGD with momentum": {"momentum": 0.9},
    "SGD with momentum, fused": {"momentum": 0.9, "fused": True},
    "SGD with momentum, over lists": {"momentum": 0.9, "foreach": True},
    "Adam, fused": {"fused": True},
    "Adagrad, fused": {"fused": True},
    "AdamW with amsgrad, over lists": {"amsgrad": True, "foreach": True},
}
OURS = ("novograd", "adam_w", "lamb")


class BadItems(Points):
    """24 points in batches of 4, some of which have no finite target."""

    def __init__(self, *bad):
        super().__init__(n=24, batch_size=4)
        self.y[list(bad)] = math.nan


class BadGradient(torch.autograd.Function):
    """Hands values through; the gradient is NaN where ``bad`` is 1."""

    @staticmethod
    def forward(ctx, values, bad):
        ctx.save_for_backward(bad)
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + ctx.saved_tensors[0] * math.nan if ctx.saved_tensors[0].any() else gradient, None


class Tainted(Net):
    """A net with a finite loss and a gradient that is not, where an item's first coordinate is above 2."""

    def forward(self, x):
        return BadGradient.apply(super().forward(x), (x[:, :1] > 2).float())


class FiniteButTainted(Points):
    """24 points in batches of 4; the gradients of some are not finite."""

    def __init__(self, *bad):
        super().__init__(n=24, batch_size=4)
        self.x[list(bad), 0] = 3.0


def trained(optimizer, data, made_net=Net, **kwargs):
    """What two epochs leave: weights and statistics, losses, and the optimizer's state."""
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    net, loss = build(data, made_net(norm=True))
    record = Record()
    made = optimizer if isinstance(optimizer, str) else optimizer(net.parameters())
    params = {"lr": 0.01, "num_epochs": 2, "grad_norm_clip": kwargs.pop("clip", None)}
    factory.train([loss], optimizer=made, callbacks=[record], optimization_params=params, **kwargs)
    (left,) = factory.get_trainer().optimizers
    return net.state_dict(), record.losses, left.state_dict()


def on_both(monkeypatch, *arguments, **kwargs):
    host = trained(*arguments, **kwargs)
    with monkeypatch.context() as patched:
        use_device_verdict(patched)
        return host, trained(*arguments, **kwargs)


def assert_alike(host, device):
    (weights, losses, state), (others, their_losses, their_state) = host, device
    assert all(torch.equal(value, others[name]) for name, value in weights.items())
    assert str(losses) == str(their_losses)  # as text, in which NaN equals NaN
    assert repr(state) == repr(their_state)


@pytest.fixture
def new_memory_is_nan(monkeypatch):
    """As the memory of a GPU may be."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def of_torch(name):
    return lambda params: getattr(torch.optim, name.split()[0].strip(","))(params, lr=0.01, **OF_TORCH[name])


@pytest.mark.usefixtures("new_memory_is_nan")
@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.long) for name in OF_TORCH)])
def test_skipped_steps_leave_weights_and_states_as_they_were_for_every_optimizer(monkeypatch, name):
    optimizer = name if name in NAMES else of_torch(name)
    for bad in ((), (0, 9, 10)):  # the first step of all too, before there is a state
        assert_alike(*on_both(monkeypatch, optimizer, BadItems(*bad)))


OPTIONS = [
    *(("novograd", {"amsgrad": True}), ("novograd", {"luc": True}), ("novograd", {"weight_decay": 0.1})),
    *(("adam_w", {"amsgrad": True}), ("adam_w", {"weight_decay": 0.1}), ("lamb", {"weight_decay": 0.1})),
    *((name, {"larc": True}) for name in OURS),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_the_options_of_our_optimizers_are_guarded_too(monkeypatch, name, options):
    def made(params):
        return create_optimizer(name, list(params), {"lr": 0.01, **options})

    assert_alike(*on_both(monkeypatch, made, BadItems(0, 9, 10)))


def skipped_on_shards(names):
    """Weights and states after trainings with skipped steps over two ranks, by both forms of the verdict."""
    factory = rank_factory(shard_weights=True)

    def run(name):
        net, loss = build(BadItems(0, 9, 10), Net())
        factory.train([loss], name, {"lr": 0.01, "num_epochs": 3})
        (optimizer,) = factory.get_trainer().optimizers
        weights = {key: own_part(value).tolist() for key, value in net.state_dict().items()}
        kept = [each for values in optimizer.state.values() for each in values.items()]
        return repr((weights, [(key, own_part(value)) for key, value in kept]))

    by_host = [run(name) for name in names]
    with pytest.MonkeyPatch.context() as patched:
        use_device_verdict(patched)
        return by_host, [run(name) for name in names]


@pytest.mark.long
def test_skipped_steps_leave_divided_weights_and_states_as_they_were_too():
    for by_host, by_device in results_of(2, skipped_on_shards, [*OURS, "sgd"]):
        assert "nan" not in repr(by_host)
        assert by_host == by_device


def test_a_momentum_that_a_skipped_step_began_is_none_again():
    for flags in ({}, {"fused": True}):
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, **flags)
        optimizer.state[weight]["momentum_buffer"] = None  # as in a checkpoint of SGD without momentum
        guarded = GuardedStep(optimizer)
        weight.grad = torch.full((2,), math.nan)
        guarded.step(torch.ones(()))
        guarded.take_back()
        assert (weight.tolist(), optimizer.state[weight]) == ([1.0, 1.0], {"momentum_buffer": None})


class Operations(TorchDispatchMode):
    """Counts operations but views."""

    VIEWS = ("view", "detach", "unbind", "alias", "split")

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func.overloadpacket.__name__.strip("_") not in self.VIEWS
        return func(*args, **(kwargs or {}))


def operations_of(step):
    with Operations() as operations:
        step()
    return operations.number


def operations_of_a_step(name, num_tensors):
    """Of a step as it is, and of a guarded one."""
    weights = [torch.nn.Parameter(torch.rand(3 + number)) for number in range(num_tensors)]
    is_ours = name in NAMES
    optimizer = create_optimizer(name, weights, {"lr": 0.01}) if is_ours else of_torch(name)(weights)
    guarded, skip = GuardedStep(optimizer), torch.zeros(())
    for weight in weights:
        weight.grad = torch.rand_like(weight)
    for _ in range(3):  # the first ones make states and copies
        guarded.step(skip)
    return operations_of(optimizer.step), operations_of(lambda: guarded.step(skip))


@pytest.mark.parametrize(
    ("name", "more"), [("novograd", 21), ("adam_w", 21), ("lamb", 21), ("AdamW with amsgrad, over lists", 8)]
)
def test_the_operations_of_a_guard_do_not_grow_with_the_tensors(name, more):
    for num_tensors in (20, 60):
        plain, guarded = operations_of_a_step(name, num_tensors)
        assert guarded <= plain + more


def test_an_update_that_overrides_one_of_ours_is_guarded_by_copies():
    class Own(Novograd):
        def _update(self, params, grads, group):
            torch._foreach_sub_(params, grads)

    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = Own([weight])
    assert (Novograd([weight]).can_skip, optimizer.can_skip) == (True, False)
    GuardedStep(optimizer).step(torch.ones(()))
    assert weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kwargs", [{"clip": 0.01}, {"batches_per_step": 2}, {"clip": 0.5, "batches_per_step": 4}])
def test_clipping_and_accumulating_change_nothing_in_that(monkeypatch, kwargs):
    assert_alike(*on_both(monkeypatch, "novograd", BadItems(9, 10), **kwargs))


@pytest.mark.parametrize("name", ["sgd", "novograd"])
def test_a_gradient_that_is_not_finite_skips_the_step_too(monkeypatch, name):
    clean, _, _ = trained(name, Points(n=24, batch_size=4), Tainted)
    host, device = on_both(monkeypatch, name, FiniteButTainted(5), Tainted)
    assert_alike(host, device)
    assert all(value.isfinite().all() for value in host[0].values())
    assert not torch.equal(clean["fc.weight"], host[0]["fc.weight"])
    assert [math.isfinite(loss) for loss in host[1]] == [True] * 12


def test_of_steps_in_a_row_the_first_is_told_and_the_others_are_counted(factory, capsys):
    train(factory, [build(BadItems(5, 9, 13), Net())[1]], params={"num_epochs": 1})
    told = capsys.readouterr().err
    assert told.count("the step is skipped") == 1
    assert "the loss of step 1 is not finite" in told
    assert "2 more steps were skipped after it" in told
    assert "3 of 6 steps were skipped" in told


@pytest.mark.parametrize("on_device", [False, True])
def test_the_message_says_whether_loss_or_gradient_is_not_finite(factory, monkeypatch, capsys, on_device):
    if on_device:
        use_device_verdict(monkeypatch)
    train(factory, [build(BadItems(5), Net())[1]], params={"num_epochs": 1})
    train(factory, [build(FiniteButTainted(5), Tainted())[1]], params={"num_epochs": 1})
    told = [line for line in capsys.readouterr().err.splitlines() if "not finite" in line]
    assert [line.partition(": ")[0][-30:] + line.partition("the ")[2] for line in told] != []
    text = "\n".join(told)
    assert (
        "the loss of step 1 is not finite; in the batch: points[4], points[5], points[6], points[7]; the step" in text
    )
    assert "the gradient of step 1 is not finite; the step is skipped" in text
    assert text.count("1 of 6 steps were skipped: their loss or gradient was not finite") == 2


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(
    ("bad", "kwargs", "told"),
    [
        ((5, 9), {"max_nonfinite_steps": 2}, r"the loss of step 2 is not finite; .*; it was step 2 in a row"),
        ((9,), {"stop_on_nan_loss": True}, r"the loss of step 2 is not finite"),
    ],
)
def test_too_many_such_steps_end_the_run_with_the_weights_before_them(
    factory, monkeypatch, on_device, bad, kwargs, told
):
    steps_that_count = 1 if len(bad) == 2 else 2
    expected, loss = build(BadItems(), Net(norm=True))
    train(factory, [loss], params={"max_steps": steps_that_count})
    if on_device:
        use_device_verdict(monkeypatch)
    net, loss = build(BadItems(*bad), Net(norm=True))
    with pytest.raises(NonFiniteLossError, match=told):
        train(factory, [loss], **kwargs)
    for name, value in expected.state_dict().items():
        assert torch.equal(value, net.state_dict()[name]), name


class Breaks(torch.optim.SGD):
    """Gives a weight a value that is not finite, in one step."""

    def __init__(self, weights, at, value):
        super().__init__(weights, lr=0.01)
        self.at, self.value, self.num_steps = at, value, 0

    def step(self, closure=None):
        super().step(closure)
        self.num_steps += 1
        if self.num_steps == self.at:
            own_part(self.param_groups[0]["params"][-2]).data[0, 1:] = self.value


REMEDY = "go on from a checkpoint saved before, with a lower learning rate"


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{}, {"stop_on_nan_loss": True}, {"max_nonfinite_steps": 1}])
def test_weights_that_are_not_finite_end_the_run_at_the_next_step(factory, monkeypatch, on_device, value, options):
    if on_device:
        use_device_verdict(monkeypatch)
    net, loss = build(BadItems(), Net(norm=True))
    optimizer = Breaks(net.parameters(), 3, value)
    told = (
        "the loss of step 3 is not finite; in the batch: .*; the weights are not finite: "
        rf"got NaN or infinity in {net.label}\.fc\.weight; {REMEDY}"
    )
    with pytest.raises(NonFiniteLossError, match=told):
        factory.train([loss], optimizer=optimizer, optimization_params={"num_epochs": 2}, **options)


def test_weights_that_are_not_finite_after_the_last_step_end_the_run_with_an_error(factory):
    net, loss = build()
    told = rf"the run ended after 3 steps; the weights are not finite: got NaN or infinity in {net.label}\.fc\.weight"
    with pytest.raises(NonFiniteLossError, match=told):
        factory.train([loss], optimizer=Breaks(net.parameters(), 3, math.nan), optimization_params={"max_steps": 3})


def broken_on_rank_one():
    factory = rank_factory(shard_weights=True)
    net = Net()
    net.fc = torch.nn.Linear(3, 2)  # each rank has a row
    net, loss = build(Points(n=24, batch_size=2), net)
    factory.create_optimizer("sgd", [net], {"lr": 0.1})  # divides the weights
    made = Breaks(net.parameters(), 2 if factory.global_rank else 99, math.nan)
    with pytest.raises(NonFiniteLossError) as told:
        factory.train([loss], optimizer=made, optimization_params={"num_epochs": 1})
    return str(told.value)


def test_where_the_weights_of_one_rank_are_not_finite_all_ranks_end_alike():
    first, second = results_of(2, broken_on_rank_one)
    assert first == second
    assert "the loss of step 2 is not finite" in first
    assert "the weights are not finite: got NaN or infinity in net.fc.weight;" in first


def test_what_reads_weights_waits_for_the_verdict_first(factory, monkeypatch, tmp_path):
    use_device_verdict(monkeypatch)
    _, loss = build(BadItems(20))  # the last step of the epoch
    checkpoints = nemo.CheckpointCallback(tmp_path, step_freq=1, checkpoints_to_keep=9)
    with pytest.raises(NonFiniteLossError, match="the loss of step 5"):
        train(factory, [loss], checkpoints, stop_on_nan_loss=True)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        f"checkpoint-STEP-{done}" for done in range(1, 6)
    ]


class Scaled(Precision):
    """Scales the loss, as with float16, which a CPU does not compute."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._scale = LossScale(self.device)


def test_a_scaled_loss_gives_the_same_weights_and_an_overflow_lowers_the_scale(factory, monkeypatch, capsys):
    use_device_verdict(monkeypatch)
    expected, loss = build(BadItems(9), Net(norm=True))
    train(factory, [loss])
    with monkeypatch.context() as patched:
        patched.setattr(actions, "choose_precision", lambda level, device, *unused: Scaled(level, device))
        net, loss = build(BadItems(9), Net(norm=True))
        train(factory, [loss])
        weights = net.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in expected.state_dict().items())
        capsys.readouterr()
        train(factory, [build(FiniteButTainted(5), Tainted())[1]], params={"num_epochs": 1}, stop_on_nan_loss=True)
        assert factory.get_trainer()._checkpoints.state_dict()["precision"]["scale"] == 2.0**15
    told = capsys.readouterr()
    assert "the gradient of step 1 is not finite; the step is skipped, and the loss scale lowered" in told.out
    assert "were skipped" not in told.err  # nothing is wrong with the data


def test_an_optimizer_that_counts_in_its_groups_is_put_back_too():
    class Counting(torch.optim.SGD):  # as those of apex do
        def step(self, closure=None):
            for group in self.param_groups:
                group["count"] = group.get("count", 0) + 1
                group.setdefault("sizes", [torch.zeros(()), torch.zeros(())])[0].add_(1)
            super().step(closure)

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Counting([weight], lr=0.1, momentum=0.9)

    def step(gradient, skip):
        weight.grad = torch.full((2,), gradient)
        guarded = GuardedStep(optimizer)
        guarded.step(torch.tensor(skip))
        if skip:
            guarded.take_back()

    step(math.nan, skip=1.0)
    assert (weight.tolist(), optimizer.param_groups[0].get("count"), dict(optimizer.state)) == ([1.0, 1.0], None, {})
    step(1.0, skip=0.0)
    after = weight.tolist()
    step(math.nan, skip=1.0)
    (group,) = optimizer.param_groups
    assert (weight.tolist(), group["count"], group["sizes"][0].item()) == (after, 1, 1.0)
    assert optimizer.state[weight]["momentum_buffer"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("made", "loaded"), [(True, None), (None, True)])
def test_an_optimizer_whose_groups_are_not_as_it_was_made_is_guarded_by_its_groups(made, loaded):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=made)
    optimizer.load_state_dict(torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], lr=0.1, fused=loaded).state_dict())
    for skip, expected in ((1.0, 1.0), (0.0, 0.9), (1.0, 0.9)):
        weight.grad = torch.ones(2)
        guarded = GuardedStep(optimizer)
        guarded.step(torch.tensor(skip))
        if skip:
            guarded.take_back()
        assert weight.tolist() == pytest.approx([expected] * 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", ["O0", "O1", "scaled"])
def test_no_step_reads_anything_back_between_logging_steps(monkeypatch, name, level):
    use_device_verdict(monkeypatch)
    if level == "scaled":
        monkeypatch.setattr(actions, "Precision", Scaled)
    factory = nemo.NeuralModuleFactory(
        placement=nemo.DeviceType.CPU, optimization_level="O0" if level == "scaled" else level
    )
    for kwargs in ({}, {"batches_per_step": 2, "clip": 1.0}):
        watch = BetweenLoggingSteps(last=2)
        params = {"lr": 0.01, "max_steps": 3, "grad_norm_clip": kwargs.pop("clip", None)}
        _, loss = build(BadItems(9), Net(norm=True))
        factory.train([loss], optimizer=name, callbacks=[watch], optimization_params=params, **kwargs)
        assert watch.reads.found == []


def reads_of_ranks(shard_weights):
    factory = rank_factory(shard_weights=shard_weights)
    params = {"lr": 0.01, "max_steps": 4, "grad_norm_clip": 1.0, "ema_decay": None if shard_weights else 0.9}

    def reads(per_step):
        watch = BetweenLoggingSteps(last=3)
        _, loss = build(Points(n=32, batch_size=2))
        factory.train([loss], "adam_w", params, callbacks=[watch], batches_per_step=per_step)
        return watch.reads.found

    with pytest.MonkeyPatch.context() as patched:
        use_device_verdict(patched)
        on_device = reads(1) + reads(2)
    return on_device, reads(1)


@pytest.mark.parametrize("shard_weights", [False, True])
def test_with_several_ranks_and_divided_weights_nothing_is_read_back_either(shard_weights):
    for on_device, on_host in results_of(2, reads_of_ranks, shard_weights):
        assert on_device == []
        assert on_host  # the form of the CPU reads, and that is noticed


def test_a_read_in_a_step_would_be_noticed(factory):
    watch = BetweenLoggingSteps(last=2)
    train(factory, [build(BadItems())[1]], watch, params={"max_steps": 3})  # the form of the CPU reads
    assert watch.reads.found == ["aten._local_scalar_dense.default"] * 4
