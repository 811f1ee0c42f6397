"""Evaluation and inference: every item once, in data order, the same result on any number of ranks."""

import multiprocessing
import weakref
from contextlib import contextmanager

import pytest
import torch
from toys.nets import BD, Mse, Net, Points, made_factory, sharded_net
from toys.ranks import on_ranks, results_of

import nemo_lite as nemo
from nemo_lite.backends.pytorch.data.loaders import Batch, BatchLoader
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess
from nemo_lite.backends.pytorch.engine.evaluation import Evaluation, StopsEarly
from nemo_lite.backends.pytorch.placement import AheadOfUse, ReadBeside
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.neural_types import NeuralType, StringType, VoidType
from nemo_lite.core.run_options import Optimization


def evaluate(num_items, batch_size, num_sets=1):
    """On each rank: what the callbacks got, in order, and the certificates."""
    nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    factory = nemo.NeuralModuleFactory.get_default_factory()
    net = Net(norm=True)
    seen, results, callbacks = [], [], []
    for _ in range(num_sets):
        x, y = Points(n=num_items, batch_size=batch_size)()
        out = net(x=x)
        wires = [x, out, Mse()(out=out, target=y)]

        def note(values, collected, wires=wires):
            rows = [torch.cat(values[wire.unique_name]) for wire in wires[:2]]
            collected.setdefault("out", []).append(rows[1])
            seen.append(rows[0])

        def done(collected):
            results.append(float(torch.cat(collected.get("out", [torch.zeros(0)])).double().sum()))

        callbacks.append(nemo.EvaluatorCallback(wires, note, done))
    factory.eval(callbacks)
    inputs = torch.cat(seen).tolist() if seen else []
    return inputs, results


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_130_items_are_scored_once_each_and_in_order_on_any_number_of_ranks(world_size):
    (inputs, results), *others = results_of(world_size, evaluate, 130, 8)
    assert others == [([], [])] * (world_size - 1)
    assert inputs == Points(n=130).x.tolist()
    (alone, one_result), *_ = results_of(1, evaluate, 130, 8)
    assert alone == inputs
    assert results == pytest.approx(one_result, rel=1e-6)


def test_ranks_without_data_are_fine():
    (inputs, _), *_ = results_of(3, evaluate, 2, 4)
    assert inputs == Points(n=2).x.tolist()


class Words(nemo.NonTrainableNM):
    """A list of texts for a batch, and as many numbers as the first item of the batch says: ragged."""

    input_ports = {"x": NeuralType("B D", VoidType())}
    output_ports = {"words": NeuralType("B", StringType()), "ragged": NeuralType("T", VoidType())}

    def forward(self, x):
        return [f"item {float(row[0]):.6f} ä" for row in x], torch.arange(int(x[0, 0] * 10))


def infer(num_items, batch_size):
    """What ``infer`` gives on each rank, and which items it computed."""
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    x, _ = Points(n=num_items, batch_size=batch_size)()
    words, ragged = Words()(x=x)
    values = factory.infer([words, ragged, x])
    inferred = factory.infer_batches([words, ragged, x])
    streamed = list(inferred)
    if values is None:
        assert streamed == []
        return None
    assert [batch[0] for batch in streamed] == values[0]
    assert all(map(torch.equal, (batch[2] for batch in streamed), values[2]))
    flat = [word for batch in values[0] for word in batch]
    return flat, [len(r) for r in values[1]], torch.cat(values[2]).tolist(), inferred.num_items, inferred.digest


def test_infer_gives_texts_and_ragged_tensors_in_data_order_on_the_first_rank():
    first, *others = results_of(3, infer, 29, 4)
    assert others == [None, None]
    (alone,) = results_of(1, infer, 29, 4)
    assert first[0] == alone[0]
    assert first[2] == Points(n=29).x.tolist()
    assert first[3:] == alone[3:]
    assert first[3] == 29


def test_a_runner_computes_what_infer_does_and_leaves_the_modules_as_they_were():
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    net = Net(norm=True)
    data = Points(n=8, batch_size=4)
    x, _ = data()
    wires = [net(x=x), x]
    expected = factory.infer(wires)
    net.train()
    compute = factory.runner(wires)
    found = [compute([data.x[first : first + 4], data.y[first : first + 4]]) for first in (0, 4)]
    assert all(map(torch.equal, (values[0] for values in found), expected[0]))
    assert all(map(torch.equal, (values[1] for values in found), expected[1]))
    assert net.training
    assert not found[0][0].requires_grad


class Drawn(nemo.NonTrainableNM):
    """Draws a number for each item."""

    input_ports = {"x": NeuralType("B D", VoidType())}
    output_ports = {"y": NeuralType("B", VoidType())}

    def forward(self, x):
        return torch.rand(len(x))


def test_what_a_runner_draws_leaves_the_generators_as_they_were():
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    data = Points(n=4, batch_size=4)
    x, _ = data()
    compute, before = factory.runner([Drawn()(x=x)]), torch.get_rng_state()
    assert compute([data.x, data.y])[0].unique().numel() == 4
    assert torch.equal(torch.get_rng_state(), before)


class Probe(nemo.NonTrainableNM):
    """Hands its input on, and counts the batches that are alive."""

    input_ports = {"x": NeuralType("B D", VoidType())}
    output_ports = {"y": NeuralType("B D", VoidType())}
    alive = most = 0

    def forward(self, x):
        given = x.clone()
        Probe.alive += 1
        Probe.most = max(Probe.most, Probe.alive)
        weakref.finalize(given, Probe.freed)
        return given

    @staticmethod
    def freed():
        Probe.alive -= 1


def test_batch_by_batch_memory_holds_one_batch_and_nothing_runs_before_it_is_asked_for():
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    Probe.alive = Probe.most = 0
    x, _ = Points(n=40, batch_size=4)()
    batches = factory.infer_batches([Probe()(x=x)], offload_to_cpu=False)
    assert Probe.most == 0
    assert sum(len(y) for [y] in batches) == 40
    assert Probe.most <= 2  # the consumer's, and the one that was just computed
    factory.infer([Probe()(x=x)], offload_to_cpu=False)
    assert Probe.most == 10  # the guard itself: a list keeps them all


class StretchesLoader(BatchLoader):
    def __init__(self, layer, shard):
        self.layer, self.shard = layer, shard

    @property
    def num_rounds(self):
        return self.layer.num_batches

    def epoch(self, epoch):
        for number in range(self.shard.rank, self.layer.num_batches, self.shard.world_size):
            if number not in self.layer.unusable:
                ids = [2 * number, 2 * number + 1]
                yield Batch((torch.tensor(ids).view(2, 1).expand(2, 3) * 1.0,), ids, 2.0, number)

    def settle(self, comm):
        self.layer.settled.append(comm.sum([1.0]))


class Stretches(nemo.DataLayerNM):
    """Batches of two items; nothing of those with the numbers ``unusable`` can be used."""

    output_ports = {"x": BD}

    def __init__(self, num_batches, unusable):
        super().__init__(name="stretches")
        self.num_batches, self.unusable, self.settled = num_batches, unusable, []

    def __len__(self):
        return 2 * self.num_batches

    def loader(self, *, training, shard):
        return StretchesLoader(self, shard)


def evaluate_stretches(num_batches, unusable, shard_weights=False):
    """On each rank: the items in the order of the callback, how many were certified, and what was settled."""
    factory = made_factory(shard_weights)
    net = sharded_net(factory) if shard_weights else Net()
    layer = Stretches(num_batches, unusable)
    x = layer()
    out, seen = net(x=x), []

    def note(values, collected):
        seen.extend(int(row[0]) for batch in values[x.unique_name] for row in batch)

    factory.eval([nemo.EvaluatorCallback([x, out], note, lambda collected: None)])
    return seen, layer.settled


def items_of(num_batches, unusable):
    return [item for number in range(num_batches) if number not in unusable for item in (2 * number, 2 * number + 1)]


@pytest.mark.parametrize("unusable", [{0, 2, 4}, {3, 7, 8}, set(range(9))])
def test_rounds_are_in_data_order_also_where_a_rank_lacks_batches_and_all_loaders_settle_once(unusable):
    (first, settled), (second, also_settled) = results_of(2, evaluate_stretches, 9, unusable)
    assert first == items_of(9, unusable)
    assert second == []
    assert settled == also_settled == [[2.0]]


@pytest.mark.parametrize("unusable", [{0, 2, 4}, {0, 3}])
def test_sharded_modules_run_along_on_a_rank_of_whose_part_nothing_can_be_used(unusable):
    (first, settled), (second, also_settled) = results_of(2, evaluate_stretches, 5, unusable, True)
    assert first == items_of(5, unusable)
    assert second == []
    assert settled == also_settled == [[2.0]]


def fail_in_callback(error):
    factory = made_factory()
    x, _ = Points(n=20, batch_size=2)()

    def note(values, collected):
        raise error

    factory.eval([nemo.EvaluatorCallback([Net()(x=x)], note, lambda collected: None)])
    print("went on")


@pytest.mark.parametrize(("error", "code"), [(ValueError("a bug"), 1), (KeyboardInterrupt(), 130)])
def test_an_error_of_the_callback_on_the_first_rank_ends_the_others_with_it(error, code):
    first, second = on_ranks(2, fail_in_callback, error)
    assert first.code == 1  # of the process; a script ends with ``code``
    assert second.code == code
    assert f"stopped: {type(error).__name__}" in second.err
    assert "went on" not in second.out
    assert "ignored in" not in first.err
    assert first.seconds < 10


class Leaves(nemo.NeMoCallback):
    """Evaluates and leaves with the first round."""

    def __init__(self, wires, moment):
        self.wires = wires
        setattr(self, moment, self._leave)

    def evaluated_wires(self):
        return self.wires

    def _leave(self, state):
        for _ in state.evaluate(self.wires):
            break


def train_and_leave(shard_weights, moment):
    factory = made_factory(shard_weights)
    net = Net(name="net")
    x, y = Points(n=8, batch_size=2)()
    held = Stretches(5, {3})()
    callbacks = [Leaves([net(x=held)], moment)]
    factory.train(
        [Mse()(out=net(x=x), target=y)],
        callbacks=callbacks,
        optimizer="sgd",
        optimization_params={"lr": 0.1, "max_steps": 2},
    )
    return net.training, torch.is_grad_enabled()


@pytest.mark.parametrize("shard_weights", [False, True])
@pytest.mark.parametrize("moment", ["on_step_start", "on_batch_start", "on_step_end", "on_action_end"])
def test_an_evaluation_may_be_left_early_while_training(shard_weights, moment):
    assert results_of(2, train_and_leave, shard_weights, moment) == [(True, True)] * 2


def evaluated(evaluation):
    return [row.values[0] for block in evaluation.blocks(SingleProcess()) for row in block]


def workers():
    return {child.pid for child in multiprocessing.active_children()}


def test_the_next_evaluation_goes_on_with_the_data_workers_of_the_last_one_while_the_data_are_equal():
    nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=1)
    points, net, others = Points(n=6, batch_size=2), Net(), workers()
    points.num_workers = 1
    wire = net(x=points()[0])
    precision = Precision(Optimization.mxprO0, torch.device("cpu"))
    evaluation = Evaluation([wire], torch.device("cpu"), precision, keeps_workers=True)
    first = evaluated(evaluation)
    kept = workers() - others
    assert len(kept) == 1
    assert all(map(torch.equal, evaluated(evaluation), first))
    assert workers() - others == kept
    points.x += 1.0
    changed = evaluated(evaluation)
    assert not any(map(torch.equal, changed, first))
    assert torch.equal(torch.cat(changed), net(points.x))
    assert len(workers() - others) == 1
    assert workers() - others != kept
    evaluation.close()
    assert workers() == others


def test_the_next_batch_is_sent_to_the_device_before_this_one_is_waited_for(monkeypatch):
    events = []

    class Noted(AheadOfUse):
        def start(self, values):
            events.append("start")
            return super().start(values)

        def arrive(self, values):
            events.append("arrive")

    monkeypatch.setattr("nemo_lite.backends.pytorch.engine.evaluation.AheadOfUse", Noted)
    precision = Precision(Optimization.mxprO0, torch.device("cpu"))
    evaluation = Evaluation([Net()(x=Points(n=6, batch_size=2)()[0])], torch.device("cpu"), precision)
    for _ in evaluation.blocks(SingleProcess()):
        events.append("values")
    assert events == ["start", *["arrive", "start", "values"] * 2, "arrive", "values"]


class Beside(ReadBeside):
    """As on a GPU, on the CPU: notes when what is queued, and read."""

    def __init__(self, device):
        super().__init__(device)
        self.is_of_use, self.events, self.num_marks = True, [], 0

    def mark(self):
        self.events.append(f"queued {self.num_marks}")
        self.num_marks += 1
        return self.num_marks - 1

    @contextmanager
    def reading(self, values, mark):
        assert [value.shape for row in values for value in row] == [(2, 1)]
        self.events.append(f"read {mark}")
        yield
        self.events.append("done")


@pytest.fixture(name="ahead")
def _ahead(monkeypatch):
    monkeypatch.setattr("nemo_lite.backends.pytorch.engine.evaluation.ReadBeside", Beside)
    precision = Precision(Optimization.mxprO0, torch.device("cpu"))
    return Evaluation([Net()(x=Points(n=8, batch_size=2)()[0])], torch.device("cpu"), precision)


def test_on_a_gpu_a_batch_is_read_while_the_next_one_is_computed_and_the_values_are_the_same(ahead):
    found = [row.values for block in ahead.blocks(SingleProcess(), StopsEarly()) for row in block]
    middle = [event for number in (1, 2, 3) for event in (f"queued {number}", f"read {number - 1}", "done")]
    assert ahead._reads.events == ["queued 0", *middle, "read 3", "done"]
    plain = [row.values for block in ahead.blocks(SingleProcess()) for row in block]
    assert len(ahead._reads.events) == 12  # an inference is read when it is over
    assert all(torch.equal(mine[0], theirs[0]) for mine, theirs in zip(found, plain, strict=True))


def test_an_evaluation_that_looks_ahead_may_be_left_early_or_be_stopped_by_a_signal(ahead):
    for _ in ahead.blocks(SingleProcess(), StopsEarly()):
        break
    assert ahead._reads.events == ["queued 0", "queued 1", "read 0"]
    assert all(module.training for module in ahead.modules)
    received = iter([0, 0, 15])
    numbers = [
        row.number for block in ahead.blocks(SingleProcess(), StopsEarly(lambda: next(received))) for row in block
    ]
    assert numbers == [0, 1]
