"""Compiler: regions of a DAG under ``torch.compile``: same losses, same keys, few graphs, and what fails is named."""

import logging
import re
import threading
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toys.names import forget_names
from toys.nets import Mse, Net, Points, Record
from toys.rank_training import rank_factory, train_net
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.compiling import CompileLog, Compiler, Region
from nemo_lite.backends.pytorch.distributed import group
from nemo_lite.backends.pytorch.distributed.process import ActivityReader
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import ChannelType, LengthsType, NeuralType
from nemo_lite.core.run_options import CompileOptions

EAGER = {"backend": "eager"}  # dynamo's graphs, run as they are: the same numbers to the last bit


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)


@pytest.fixture
def lines():
    """What the run says."""
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("nemo_lite")
    logger.addHandler(handler)
    yield heard
    logger.removeHandler(handler)


class Tail(Net):
    """One channel in."""

    def __init__(self, name=None):
        super().__init__(name=name)
        self.norm, self.fc = nn.BatchNorm1d(1), nn.Linear(1, 1)


class Prints(Net):
    def forward(self, x):
        x = torch.tanh(x)
        print("a graph ends here")
        return self.fc(x)


class StaysOut(Net):
    keep_uncompiled = True


def refuses_tanh(graph, inputs):
    """A backend that cannot do everything."""
    if any("tanh" in str(node.target) for node in graph.graph.nodes):
        raise RuntimeError("no tanh here\nsecond line")
    return graph.forward


@pytest.fixture
def picky():
    backends = torch._dynamo.backends.registry
    if "picky" not in backends.list_backends():
        backends.register_backend(refuses_tanh, name="picky")
    return {"backend": "picky"}


def trained(factory, net, how=None, num_items=14):
    """Two epochs with an evaluation after each second step; the losses. Each epoch ends with a smaller batch."""
    tail, record = Tail(name="tail"), Record()
    forget_names()  # each training stands for a program of its own
    x, y = Points(n=num_items)()
    seen, _ = Points(n=6)()
    evaluator = nemo.EvaluatorCallback([net(x=seen)], lambda values, _: None, lambda _: None, eval_step=2)
    params = {"lr": 0.05, "momentum": 0.0, "num_epochs": 2}
    factory.train(
        [Mse()(out=tail(x=net(x=x)), target=y)],
        optimizer="sgd",
        callbacks=[record, evaluator],
        optimization_params=params,
        compile=how,
    )
    return record.losses


def lowered(net):
    """The net and a tail behind it, lowered with regions; its regions; the log."""
    x, y = Points()()
    compiler = Compiler(CompileOptions.of(EAGER))
    forget_names()
    module = compiler.lower(Dag([Mse()(out=Tail(name="tail")(x=net(x=x)), target=y)]).slice(), "TrainingDag")
    return module, [part for part in module.children() if isinstance(part, Region)], compiler.log


# Regions


def test_a_region_is_a_run_of_nodes_that_can_be_compiled_and_the_loss_stays_out():
    module, regions, _ = lowered(Net(name="net"))
    assert [[type(part).__name__ for part in region.body.children()] for region in regions] == [["Net", "Tail"]]
    assert "mse = self.mse(out = getitem, target = y)" in module.code
    forget_names()
    module, regions, _ = lowered(StaysOut(name="net"))
    assert [[type(part).__name__ for part in region.body.children()] for region in regions] == [["Tail"]]


@pytest.mark.slow
def test_a_lowered_module_holds_each_weight_once_and_modules_keep_the_keys_of_their_states():
    net = Net(norm=True, name="net")
    keys = list(net.state_dict())
    module, _, _ = lowered(net)
    module(torch.rand(4, 3), torch.rand(4, 1))
    assert list(net.state_dict()) == keys
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    assert sorted(names) == sorted(f"net_region.body.{name}" for name in NAMES)


NAMES = [
    *(f"net.{name}" for name in ("norm.weight", "norm.bias", "fc.weight", "fc.bias")),
    *(f"tail.{name}" for name in ("norm.weight", "norm.bias", "fc.weight", "fc.bias")),
]


@pytest.mark.slow
def test_losses_and_running_statistics_are_those_of_a_run_that_is_not_compiled(factory, lines):
    plain, compiled = Net(norm=True), Net(norm=True)
    assert trained(factory, compiled, EAGER) == trained(factory, plain)
    assert torch.equal(compiled.norm.running_var, plain.norm.running_var)
    assert compiled.norm.num_batches_tracked == plain.norm.num_batches_tracked == 8
    # One graph for training, one for evaluation, although batches have 4 and 2 items: the ports say what varies.
    (told,) = [line for line in lines if line.startswith("Compiled")]
    assert told.startswith("Compiled 2 graphs in ")
    assert told.endswith(" s, no recompilations, no graph breaks")


class AppliesAverage(nemo.NeMoCallback):
    def on_action_end(self, state):
        with state.averaging.applied():
            pass


@pytest.mark.slow
def test_statistics_of_averaged_weights_are_estimated_without_a_graph_for_each_batch(factory, lines):
    net = Net(norm=True)
    x, y = Points(n=40)()
    params = {"lr": 0.05, "momentum": 0.0, "num_epochs": 2, "ema_decay": 0.9}
    factory.train([Mse()(out=net(x=x), target=y)], "sgd", params, [AppliesAverage()], compile=EAGER)
    factory.train([Mse()(out=net(x=x), target=y)], "sgd", params, [AppliesAverage()], compile=EAGER)
    told = [line.partition(" in ")[0] + line.partition(" s,")[2] for line in lines if line.startswith("Compiled")]
    assert told == ["Compiled 1 graph no recompilations, no graph breaks"], "the second training goes on with it"


@pytest.mark.long
@pytest.mark.slow
def test_aot_autograd_makes_the_backward_and_the_losses_stay(factory):
    plain = trained(factory, Net(norm=True))
    assert trained(factory, Net(norm=True), {"backend": "aot_eager"}) == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
def test_the_factory_s_option_is_that_of_its_training_evaluation_and_inference(lines):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, compile=EAGER)
    net = Net()
    trained(factory, net)
    (out,) = factory.infer([net(x=Points(n=4)()[0])])  # the module of the evaluation, called as it was: nothing new
    torch.testing.assert_close(torch.cat(out), net(x=Points(n=4).x).detach())
    factory.infer([Net()(x=Points(n=4)()[0])])
    factory.infer([Net()(x=Points(n=4)()[0])], compile=False)
    assert [line[:17] for line in lines if line.startswith("Compiled")] == ["Compiled 2 graphs", "Compiled 1 graph "]


class Lengths(nemo.TrainableNM):
    input_ports = {"x": NeuralType("B D T", ChannelType()), "length": NeuralType("B", LengthsType())}
    output_ports = {"out": NeuralType("B D T", ChannelType())}

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(3, 3, 3, padding=1)

    def forward(self, x, length):
        return self.convolution(torch.where(torch.arange(x.shape[2]) < length[:, None, None], x, 0.0))


class Sounds(Points):
    output_ports = {"x": Lengths.input_ports["x"], "length": Lengths.input_ports["length"]}


@pytest.mark.slow
@pytest.mark.parametrize(("dynamic", "most"), [(None, 1), pytest.param(True, 1, marks=pytest.mark.long), (False, 4)])
def test_many_lengths_and_batch_sizes_share_one_graph_unless_that_is_forbidden(dynamic, most):
    net = Lengths()
    x, length = Sounds()()
    compiler = Compiler(CompileOptions("eager", dynamic=dynamic))
    module = compiler.lower(Dag([net(x=x, length=length)]).slice(), "EvaluationDag")
    for num_frames in (5, 13) if dynamic is False else range(5, 29, 3):
        for num_items in (4, 3):
            batch = torch.rand(num_items, 3, num_frames), torch.arange(num_items) + 2
            (out,) = module(*batch)
            assert torch.equal(out, net(*batch))
    assert (compiler.log.graphs, compiler.log.recompilations) == (most, most - 1)


def test_where_graphs_let_the_next_call_write_over_outputs_these_are_copies(monkeypatch):
    class Once(Region):
        """As CUDA graphs do: all calls write into the same memory."""

        memory = torch.zeros(4, 1)

        def __init__(self, *args):
            super().__init__(*args)
            self._run = lambda x: (self.memory.copy_(self.body(x)[0].detach()),)

    monkeypatch.setattr("nemo_lite.backends.pytorch.compiling.Region", Once)
    net = Net()
    compiler = Compiler(CompileOptions(mode="reduce-overhead"))
    module = compiler.lower(Dag([net(x=Points()()[0])]).slice(), "EvaluationDag")
    batches = torch.rand(4, 3), torch.rand(4, 3)
    first, second = (module(batch, None)[0] for batch in batches)
    assert torch.equal(first, net(x=batches[0]))
    assert torch.equal(second, net(x=batches[1]))


def test_cuda_graphs_for_many_lengths_are_told_once(monkeypatch, lines):
    monkeypatch.setattr("nemo_lite.backends.pytorch.compiling._on_gpu", lambda values: True)
    compiler = Compiler(CompileOptions(mode="reduce-overhead"))
    module = compiler.lower(Dag([Net(name="net")(x=Points()()[0])]).slice(), "EvaluationDag")
    (region,) = module.children()
    region._run = region.body.forward
    for size in (*range(1, 8), 3, 3):
        module(torch.rand(size, 3), None)
    assert not any("CUDA graph" in line for line in lines)
    for size in range(8, 20):
        module(torch.rand(size, 3), None)
    (told,) = [line for line in lines if "CUDA graph" in line]
    assert "for each shape of its inputs" in told
    assert "net has got 8 shapes so far; pad batches to few lengths, or take mode default" in told


def test_a_report_about_a_rank_that_hangs_says_that_it_compiles(monkeypatch):
    seen = []

    def watched(compiler, graph, inputs):
        seen.append(ActivityReader(threading.get_ident()).now().text)
        return graph.forward

    monkeypatch.setattr(Compiler, "compile_graph", watched)
    module, _, _ = lowered(Net(name="net"))
    module(torch.rand(4, 3), torch.rand(4, 1))
    assert seen == ["compiling"]


# What does not compile


@pytest.mark.slow
def test_a_node_that_fails_to_compile_is_named_and_the_others_are_compiled(factory, picky, lines):
    class Tanh(Net):
        def forward(self, x):
            return self.fc(torch.tanh(x))

    assert trained(factory, Tanh(name="net"), picky) == trained(factory, Tanh())
    assert "net is not compiled and runs as it is: picky: no tanh here" in lines
    (told,) = [line for line in lines if line.startswith("Compiled")]
    assert told.endswith(", 1 node not compiled (net: picky: no tanh here)")
    assert not any("tail is not" in line for line in lines)


def test_with_fullgraph_a_backend_that_fails_ends_the_run_with_one_line(factory, picky):
    class Tanh(Net):
        def forward(self, x):
            return self.fc(torch.tanh(x))

    with pytest.raises(UsageError) as refused:
        trained(factory, Tanh(name="net"), {**picky, "fullgraph": True})
    assert str(refused.value) == (
        "net: does not compile as one graph with picky: got no tanh here; leave fullgraph out, or compile out"
    )


@pytest.mark.slow
def test_a_graph_break_is_counted_once_with_its_node_and_reason_and_the_losses_stay(factory, lines):
    assert trained(factory, Prints(name="net"), EAGER) == trained(factory, Prints())
    (told,) = [line for line in lines if line.startswith("Compiled")]
    assert re.search(r", 1 graph break \(test_compiling\.py:\d+: net, Failed to trace builtin operator\)$", told)


def test_with_fullgraph_a_graph_break_ends_the_run_and_names_the_node(factory):
    with pytest.raises(UsageError, match=r"^net: does not compile as one graph with eager: got Failed to trace"):
        trained(factory, Prints(name="net"), {**EAGER, "fullgraph": True})


def test_an_error_of_the_user_s_module_stays_that_error(factory):
    class Wrong(Net):
        def forward(self, x):
            raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        trained(factory, Wrong(), EAGER)


def test_an_unknown_backend_is_answered_with_the_nearest(factory):
    with pytest.raises(UnknownNameError, match=r'compile: backend "indutor" is not known; .*did you mean inductor'):
        trained(factory, Net(), {"backend": "indutor"})


def test_the_report_counts_in_words():
    log = CompileLog(3, 1, {"net.py:3": "net, print"}, {}, 2.04)
    assert str(log) == "Compiled 3 graphs in 2.0 s, 1 recompilation, 1 graph break (net.py:3: net, print)"


# Ranks


def on_a_rank():
    """Weights of trainings that are compiled or not, with statistics of both ranks or of each; what was said."""
    said, weights, made = [], {}, rank_factory()
    nemo.logging.warning = nemo.logging.info = lambda text, *args: said.append(text % args)
    # A bucket for each weight, so that graphs end where DDP begins to exchange gradients.
    torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 1
    vars(group)["DistributedDataParallel"] = partial(DistributedDataParallel, bucket_cap_mb=1e-6)
    for synced in (False, True):
        for how in (None, EAGER):
            settings = {"compile": how, "synced_batchnorm": synced, "max_steps": 3}
            forget_names()
            weights[synced, how is None] = train_net(made, Net(norm=True, name="net"), Points(), **settings)
    return weights, [re.sub(r"in \S+ s", "in N s", line) for line in said if "ompiled" in line]


@pytest.mark.slow
def test_two_ranks_train_the_same_weights_and_what_exchanges_statistics_stays_out_and_that_is_said():
    left_out = "it exchanges values with other ranks"
    for weights, said in results_of(2, on_a_rank, timeout=120.0):
        assert weights[False, False] == weights[False, True]
        assert weights[True, False] == weights[True, True] != weights[False, True]
        assert said == [
            "Compiled 2 graphs in N s, no recompilations, no graph breaks",
            f"net is not compiled and runs as it is: {left_out}",
            f"Compiled no graphs in N s, no recompilations, no graph breaks, 1 node not compiled (net: {left_out})",
        ]


# Inductor


@pytest.mark.slow
@pytest.mark.long  # torch's own translation to C++; what we hand it over is tested with its graphs run as they are
def test_inductor_trains_to_the_same_losses(factory):
    def losses(how):
        net, record = Net(norm=True), Record()
        x, y = Points(n=14)()
        params = {"lr": 0.05, "momentum": 0.0, "max_steps": 6}
        loss = Mse()(out=net(x=x), target=y)
        factory.train([loss], "sgd", params, [record], compile=how)
        return record.losses

    assert losses(True) == pytest.approx(losses(False), rel=1e-4)


@pytest.mark.slow
def test_a_later_action_runs_what_was_compiled_before_and_copies_of_a_module_have_none(factory, lines):
    net = Net(norm=True, name="net")
    x, _ = Points()()
    for _ in range(2):
        factory.infer([net(x=x)], compile=EAGER, verbose=False)
    assert sum("Compiled 1 graph" in line for line in lines) == 1
    (region,) = vars(net)["_compiled_regions"].values()
    assert isinstance(region, Region)
    assert vars(deepcopy(net))["_compiled_regions"] == {}
