"""What an optimizer minimises: losses and weights that fit each other, on one rank and on several."""

import shutil
import weakref

import pytest
import torch
from torch import nn
from toys.nets import Mse, Net, Points, Record, build, train
from toys.rank_training import rank_factory, train_net
from toys.ranks import on_ranks, results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.engine.arguments import check_cuda_graphs
from nemo_lite.backends.pytorch.engine.objectives import LoweredObjective
from nemo_lite.base.errors import UsageError
from nemo_lite.core import UnfreezeCallback
from nemo_lite.core.app_state import AppState
from nemo_lite.core.dag import Dag
from nemo_lite.core.run_options import CompileOptions


def test_several_losses_are_summed(factory):
    data, net, record = Points(), Net(), Record()
    x, y = data()
    out = net(x=x)
    losses = [Mse()(out=out, target=y), Mse()(out=out, target=y)]
    train(factory, losses, record, params={"max_steps": 1})
    expected = 2 * nn.functional.mse_loss(Net()(x=data.x[:4]), data.y[:4])
    assert record.losses == [pytest.approx(expected.item())]


def test_optimizer_and_loss_tuples_are_taken_in_turn(factory):
    data, first, second, record = Points(), Net(name="first"), Net(name="second"), Record()
    x, y = data()
    losses = [Mse()(out=net(x=x), target=y) for net in (first, second)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (first, second)]
    before = [net.fc.weight.clone() for net in (first, second)]
    train(factory, [(o, [loss]) for o, loss in zip(optimizers, losses, strict=True)], record, params={"max_steps": 1})
    assert not torch.equal(first.fc.weight, before[0])
    assert torch.equal(second.fc.weight, before[1])


class One(nemo.LossNM):
    """A loss of shape (1,)."""

    input_ports = Mse.input_ports
    output_ports = Mse.output_ports

    def _loss_function(self, out, target):
        return nn.functional.mse_loss(out, target).reshape(1)


@pytest.mark.parametrize("kinds", [[One], [One, Mse], [Mse, One], [One, One]])
def test_losses_of_one_number_are_summed_whatever_their_shapes(factory, kinds):
    data, net, record = Points(), Net(), Record()
    x, y = data()
    out = net(x=x)
    train(factory, [kind()(out=out, target=y) for kind in kinds], record, params={"max_steps": 2})
    expected = len(kinds) * nn.functional.mse_loss(Net()(x=data.x[:4]), data.y[:4])
    assert record.losses[0] == pytest.approx(expected.item())


def lowered(net, out, y):
    """An objective of a net, as far as the check of CUDA graphs looks at it."""
    loss = Mse()(out=out, target=y)
    calls = {node.call for node in Dag([loss]).nodes}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return LoweredObjective(net, 1, [], calls, optimizer, list(net.parameters()), [0.1], net)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_are_refused_where_gradients_are_added_up(mode):
    (x, y), net, critic = Points()(), Net(), Net(name="critic")
    critic.fc = nn.Linear(1, 1)
    out = net(x=x)
    alone, through, of_critic = lowered(net, out, y), lowered(net, critic(x=out), y), lowered(critic, critic(x=out), y)
    gpu, options = torch.device("cuda", 0), CompileOptions(mode=mode)
    told = (
        rf"compile mode {mode} cannot add gradients up on a GPU: .* got batches_per_step 2; take mode .max-autotune-no"
    )
    with pytest.raises(UsageError, match=told):
        check_cuda_graphs(options, gpu, 2, [alone])
    with pytest.raises(UsageError, match="got objectives whose losses depend on weights that others of them train"):
        check_cuda_graphs(options, gpu, 1, [through, of_critic])
    check_cuda_graphs(options, gpu, 1, [alone])
    check_cuda_graphs(options, torch.device("cpu"), 2, [through, of_critic])
    for kept in ("max-autotune-no-cudagraphs", "default", None):
        check_cuda_graphs(CompileOptions(mode=kept), gpu, 2, [through, of_critic])


@pytest.mark.slow  # it imports torch's compiler
def test_a_training_is_refused_before_its_first_step_where_cuda_graphs_would_spoil_its_gradients(monkeypatch, factory):
    _, loss = build()
    monkeypatch.setattr(factory.get_trainer(), "_device", torch.device("meta"))
    with pytest.raises(UsageError, match="compile mode reduce-overhead cannot add gradients up"):
        train(factory, [loss], compile={"mode": "reduce-overhead"}, batches_per_step=2)


def test_a_loss_of_several_numbers_is_refused(factory):
    prediction = next(iter(build()[1].call.inputs.values()))
    with pytest.raises(UsageError, match=r"a loss must be a single number: got shape \(4, 1\)"):
        train(factory, [prediction])
    with pytest.raises(UsageError, match=r"a loss must be a single number: got shape \(4, 1\)"):
        train(factory, [prediction, prediction])


def test_a_loss_whose_modules_are_all_frozen_is_refused(factory):
    net, loss = build()
    net.freeze()
    with pytest.raises(UsageError, match="no weight that the loss depends on is trained; unfreeze a module"):
        train(factory, [loss])


def test_an_optimizer_of_other_weights_is_refused(factory):
    _, loss = build()
    other = torch.optim.SGD(Net().parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"SGD: the optimizer holds no weight .*: got mse\.loss"):
        train(factory, [loss], optimizer=other)


def test_things_to_optimize_are_modules_or_wires_alone_or_in_a_list(factory):
    net, loss = build()
    made = [factory.create_optimizer("adam", things, {"lr": 0.1}) for things in (net, loss, [net])]
    assert factory.get_trainer().optimizers == made
    for things, got in (([net, "head"], "Net, str"), (net.parameters(), "generator")):
        with pytest.raises(UsageError, match=f"things_to_optimize must be modules or wires: got {got}"):
            factory.create_optimizer("adam", things, {"lr": 0.1})


class Unfreeze(nemo.NeMoCallback):
    def __init__(self, net):
        super().__init__()
        self._net = net

    def on_step_start(self, state):
        if state.step == 2:
            self._net.unfreeze(["fc.weight"])


def unfreezing():
    made, net = rank_factory(), Net()
    net.freeze(["fc.weight"])
    return train_net(made, net, Points(n=16, batch_size=2), [Unfreeze(net)])


def test_weights_that_are_unfrozen_on_the_way_are_averaged_too():
    first, second = results_of(2, unfreezing)
    assert first == second


class LateUnreached(nemo.NeMoCallback):
    def __init__(self, net):
        super().__init__()
        self._net = net

    def on_step_start(self, state):
        if state.step == 2:
            self._net.unfreeze(["spare.weight"])


class Idle(Net):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


def unfreezing_an_idle_weight():
    made, net = rank_factory(), Idle()
    net.freeze(["spare.weight", "spare.bias"])
    train_net(made, net, Points(n=16, batch_size=2), [LateUnreached(net)])


def test_a_weight_that_is_unfrozen_and_not_reached_is_refused_before_a_step_is_made_with_it():
    finished = on_ranks(2, unfreezing_an_idle_weight)
    assert [end.code for end in finished] == [2, 2]
    assert "got idle.spare.weight; freeze them" in finished[0].err


def all_frozen():
    made, net = rank_factory(), Net()
    net.freeze()
    train_net(made, net, Points(n=16, batch_size=2))


def test_a_model_that_is_frozen_altogether_is_refused_in_one_line():
    finished = on_ranks(2, all_frozen)
    assert [end.code for end in finished] == [2, 2]
    assert "no weight that the loss depends on is trained" in finished[0].err


def with_an_idle_weight():
    train_net(rank_factory(), Idle(), Points(n=16, batch_size=2))


def test_a_weight_that_the_loss_does_not_reach_is_refused_by_name():
    finished = on_ranks(2, with_an_idle_weight)
    assert [end.code for end in finished] == [2, 2]
    assert "got idle.spare.weight, idle.spare.bias; freeze them" in finished[1].err


# A learning rate for a module


def two_nets():
    """Two nets, and a loss of both."""
    first, second = Net(name="first"), Net(name="second")
    x, y = Points()()
    return first, second, [Mse()(out=net(x=x), target=y) for net in (first, second)]


def moved(net):
    return net.fc.weight.detach() - Net().fc.weight.detach()


def test_a_module_learns_at_its_own_rate(factory):
    first, second, losses = two_nets()
    train(factory, losses, lr=0.1, params={"max_steps": 1, "module_lr": {"second": 0.01}})
    torch.testing.assert_close(moved(first), 10 * moved(second), rtol=1e-4, atol=1e-7)
    groups = factory.get_trainer().optimizers[0].param_groups
    assert [(group["lr"], len(group["params"])) for group in groups] == [(0.1, 2), (0.01, 2)]


def test_a_policy_acts_on_the_rate_of_each_module(factory):
    *_, losses = two_nets()
    rates = []

    class Note(nemo.NeMoCallback):
        def on_step_end(self, state):
            rates.append([group["lr"] for group in state.optimizers[0].param_groups])

    train(
        factory,
        losses,
        Note(),
        lr=0.1,
        params={"max_steps": 2, "module_lr": {"second": 0.01, "first": 0.02}},
        lr_policy=lambda initial, step, epoch: initial / (step + 1),
    )
    # In the order of the modules, and the rate of the run has nothing to act on.
    assert rates == [[0.02, 0.01], [0.01, 0.005]]


@pytest.mark.parametrize(
    ("module_lr", "told"),
    [
        ({"secnd": 0.1}, r'module_lr: module "secnd" is not known; known: first, second \(did you mean second\?\)'),
        ({"second": -0.1}, "module_lr second is -0.1, wanted float from 0 on"),
        ({"second": "high"}, 'module_lr second is "high", wanted float from 0 on'),
        (["second"], "module_lr is of the wrong type: got list, wanted a dictionary of learning rates by module name"),
    ],
)
def test_rates_that_cannot_be_are_refused(factory, module_lr, told):
    with pytest.raises(nemo.errors.NemoLiteError, match=told):
        train(factory, two_nets()[2], params={"max_steps": 1, "module_lr": module_lr})


def test_modules_that_share_a_weight_have_one_rate(factory):
    first, second, losses = two_nets()
    second.tie_weights_with(first, ["fc.weight"])
    told = "share a weight have different learning rates: got that of the run for first, 0.01 for second"
    with pytest.raises(UsageError, match=told):
        train(factory, losses, params={"max_steps": 1, "module_lr": {"second": 0.01}})
    train(factory, losses, params={"max_steps": 1, "module_lr": {"second": 0.01, "first": 0.01}})


def test_an_optimizer_that_is_there_already_takes_no_rates(factory):
    first, second, losses = two_nets()
    made = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with pytest.raises(UsageError, match="SGD: module_lr has no effect on an optimizer that is there already"):
        train(factory, losses, optimizer=made, params={"max_steps": 1, "module_lr": {"second": 0.01}})


def test_rates_of_modules_are_restored_with_their_state(factory, tmp_path):
    def run(steps, module_lr):
        AppState().modules.clear()  # as in a process of its own
        first, second, losses = two_nets()
        saver = nemo.CheckpointCallback(tmp_path, step_freq=3)  # an epoch
        params = {"max_steps": steps, "momentum": 0.9, "module_lr": module_lr}
        train(factory, losses, saver, lr=0.1, params=params, reset=True)
        return torch.cat([first.fc.weight, second.fc.weight])

    run(3, {"second": 0.01, "first": 0.02})
    resumed = run(6, {"first": 0.02, "second": 0.01})
    for checkpoint in tmp_path.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    torch.testing.assert_close(resumed, run(6, {"second": 0.01, "first": 0.02}), rtol=0, atol=0)


# Weight decay of weights alone


@pytest.mark.parametrize("module_lr", [{}, {"second": 0.01}])
def test_biases_and_norms_do_not_decay_where_only_weights_do(factory, module_lr):
    net, second = Net(norm=True, name="first"), Net(name="second")
    x, y = Points()()
    losses = [Mse()(out=each(x=x), target=y) for each in (net, second)]
    decays = {"max_steps": 1, "weight_decay": 0.5, "decay_weights_only": True, "module_lr": module_lr}
    train(factory, losses, lr=0.1, params=decays)
    groups = factory.get_trainer().optimizers[0].param_groups
    decay_of = {parameter: group["weight_decay"] for group in groups for parameter in group["params"]}
    rate_of = {parameter: group["lr"] for group in groups for parameter in group["params"]}
    for name, parameter in (*net.named_parameters(), *second.named_parameters()):
        assert decay_of[parameter] == (0.5 if name == "fc.weight" else 0.0), name
    assert {rate_of[parameter] for parameter in second.parameters()} == {module_lr.get("second", 0.1)}


def test_decay_of_weights_only_is_refused_where_it_would_have_no_effect(factory):
    net, loss = build()
    made = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="SGD: decay_weights_only has no effect on an optimizer that is there already"):
        train(factory, [loss], optimizer=made, params={"max_steps": 1, "decay_weights_only": True})
    with pytest.raises(UsageError, match="decay_weights_only is not a truth value: got 'yes', wanted True or False"):
        train(factory, [loss], params={"max_steps": 1, "decay_weights_only": "yes"})


def unfreezing_with_rates(shard_weights):
    made, net, record = rank_factory(shard_weights=shard_weights), Net(norm=True), Record()
    net.freeze()
    head = Net(name="head")
    x, y = Points(n=16, batch_size=2)()
    losses = [Mse()(out=each(x=x), target=y) for each in (net, head)]
    params = {"lr": 0.1, "momentum": 0.0, "max_steps": 6, "module_lr": {"Net": 0.05}}
    callbacks = [UnfreezeCallback([net], start_step=3), record]
    made.train(losses, callbacks=callbacks, optimizer="sgd", optimization_params=params)
    return record.losses, net.norm.num_batches_tracked.item()


def test_a_frozen_module_with_its_own_rate_is_unfrozen_on_all_ranks_sharded_or_not():
    whole, sharded = (results_of(2, unfreezing_with_rates, shard_weights) for shard_weights in (False, True))
    assert whole == [(pytest.approx(losses, rel=1e-4), count) for losses, count in sharded]
    assert [count for _, count in whole] == [3, 3]


@pytest.mark.parametrize(("level", "is_kept"), [("O2", True), ("O3", False)])
def test_float32_weights_are_kept_beside_half_ones_as_master_weights_alone(level, is_kept):
    net, found = Net(), []
    wide = weakref.ref(net.fc.weight.untyped_storage())
    x, y = Points()()
    hook = net.register_forward_hook(lambda *_: found.append(wide() is not None))
    factory = nemo.NeuralModuleFactory(optimization_level=level, amp_dtype="bfloat16")
    train(factory, [Mse()(out=net(x=x), target=y)], params={"max_steps": 2})
    hook.remove()
    assert found == [is_kept] * 2
