"""Graphs: recording, inputs, outputs, nesting, files; and running them without a factory."""

import gc
import threading

import pytest
import torch
from toys.dags import Add, Layer, Loss, Source, Split
from toys.nets import Mse, Net, Points

import nemo_lite as nemo
from nemo_lite.backends.pytorch.checkpoint.storage import load_training_state
from nemo_lite.base.errors import (
    CheckpointError,
    ConfigStructureError,
    ConfigurationError,
    DagError,
    GraphConnectionError,
    GraphTypeError,
    NameTakenError,
    NeuralPortNameMismatchError,
    UsageError,
)
from nemo_lite.compat.neural_graph import GraphInputs, GraphOutputs
from nemo_lite.core import Dag, NeuralGraph, NeuralType, NmTensor, OperationMode
from nemo_lite.core.app_state import StepModulePort
from nemo_lite.core.neural_module import active_recorder
from nemo_lite.core.neural_types import ChannelType

TYPE = "axes: (batch, dimension); elements_type: ChannelType"


class Made:
    """Modules under names of their own: no test meets those of another."""

    def __init__(self, prefix):
        self.source, self.layer, self.loss = (cls(name=f"{prefix}_{cls.__name__}") for cls in (Source, Layer, Loss))


@pytest.fixture
def made(request):
    return Made(request.node.name)


def training_graph(made, **options):
    with NeuralGraph(**options) as graph:
        made.loss(x=made.layer(x=made.source()))
    return graph


# Activation


def test_a_graph_records_the_calls_inside_of_with_and_nothing_else(made):
    outside = made.source()
    with NeuralGraph() as graph:
        inside = made.source()
    made.layer(x=inside)
    assert graph.steps == {0: made.source.name}
    assert graph.tensor_list == [inside]
    assert outside.call.step_number is None
    assert active_recorder() is None


def test_leaving_a_graph_makes_the_one_before_active_again():
    with NeuralGraph() as outer:
        with NeuralGraph():
            pass
        assert active_recorder() is outer


def test_a_graph_is_no_longer_active_after_an_error():
    with pytest.raises(ZeroDivisionError), NeuralGraph():
        raise ZeroDivisionError
    assert active_recorder() is None


def test_activate_and_deactivate_do_what_with_does(made):
    graph = NeuralGraph()
    graph.activate()
    made.source()
    graph.deactivate()
    made.source()
    assert len(graph.steps) == 1


def test_a_graph_is_not_active_in_another_thread(made):
    with NeuralGraph() as graph:
        thread = threading.Thread(target=made.source)
        thread.start()
        thread.join()
    assert graph.steps == {}


def test_names_are_numbered_and_free_again_when_a_graph_is_gone():
    first, second = NeuralGraph(), NeuralGraph()
    assert {first.name, second.name} == {"neuralgraph0", "neuralgraph1"}
    del first
    assert NeuralGraph().name == "neuralgraph0"
    named = NeuralGraph(name="mine")
    with pytest.raises(NameError, match='the name "mine" is in use by another graph') as caught:
        NeuralGraph(name=named.name)
    assert isinstance(caught.value, NameTakenError)


def test_the_mode_is_read_only():
    graph = NeuralGraph(operation_mode=OperationMode.evaluation)
    assert graph.operation_mode is OperationMode.evaluation
    with pytest.raises(AttributeError):
        graph.operation_mode = OperationMode.both  # type: ignore[misc]


# Steps and modules


def test_a_module_may_be_called_twice_and_counts_once(made):
    with NeuralGraph() as graph:
        made.layer(x=made.layer(x=graph))
    assert (len(graph), len(graph.steps), graph.step_number) == (1, 2, 1)
    assert graph[made.layer.name] is made.layer
    with pytest.raises(KeyError, match=r"has no module \"nope\"; modules: "):
        graph["nope"]


def test_modules_without_names_of_their_own_are_numbered():
    with NeuralGraph() as graph:
        Layer()(x=Layer()(x=graph))
    assert len(graph.modules) == len(set(graph.steps.values())) == 2
    assert [each.producer.module_name for each in graph.connections] == [graph.steps[0]]


def test_connections_lead_from_step_to_step(made):
    graph = training_graph(made)
    assert [(each.producer.step_number, each.consumer) for each in graph.connections] == [
        (0, StepModulePort(1, made.layer.name, "x")),
        (1, StepModulePort(2, made.loss.name, "x")),
    ]


def test_the_wires_of_a_graph_are_those_of_its_dag(made):
    graph = training_graph(made)
    dag = Dag([graph.output_tensors["loss"]])
    assert dag.data_layer is made.source
    assert list(dag.modules.values()) == [made.layer, made.loss]


@pytest.mark.parametrize("mode", OperationMode)
def test_a_graph_with_data_is_complete_and_one_with_a_loss_trainable(made, mode):
    with NeuralGraph(operation_mode=mode) as part:
        made.layer(x=part)
    assert not part.is_complete
    assert not part.is_trainable
    whole = training_graph(made, operation_mode=mode)
    assert whole.is_complete
    assert whole.is_trainable is (mode is not OperationMode.evaluation)


# Inputs


def test_default_binding_makes_inputs_of_the_ports_names(made):
    with NeuralGraph() as graph:
        Add()(a=made.layer(x=graph), b=graph)
    assert list(graph.inputs) == ["x", "b"]
    assert graph.inputs["x"].ntype == made.layer.input_ports["x"]
    assert graph.inputs["x"].consumers == [StepModulePort(0, made.layer.name, "x")]
    assert graph.inputs.has_binding(1, "b") == "b"
    assert graph.inputs.has_binding(1, "a") is None


def test_a_chosen_input_may_feed_several_ports(made):
    with NeuralGraph() as graph:
        graph.inputs["mine"] = made.layer.input_ports["x"]
        made.layer(x=graph.inputs["mine"])
        made.loss(x=graph.inputs["mine"])
    assert [port.step_number for port in graph.inputs["mine"].consumers] == [0, 1]
    assert dict(graph.input_ports) == {"mine": made.layer.input_ports["x"]}


def test_inputs_are_types_made_once_and_never_taken_out():
    inputs, ntype = GraphInputs(), NeuralType("B D", ChannelType())
    inputs["x"] = ntype
    with pytest.raises(KeyError, match='there is an input "x" already'):
        inputs["x"] = ntype
    inputs["x"] = NeuralType("B T", ChannelType())
    assert inputs["x"].ntype is ntype
    inputs["y"] = inputs["x"]
    assert inputs["y"].ntype is ntype
    with pytest.raises(TypeError, match='input "z" is no type: got str'):
        inputs["z"] = "B D"  # type: ignore[assignment]
    with pytest.raises(TypeError, match='the input "x" of a graph cannot be deleted; make another graph without it'):
        del inputs["x"]
    with pytest.raises(TypeError):
        inputs.definitions["x"] = ntype  # type: ignore[index]
    inputs["x"].bind([StepModulePort(0, "a", "p"), StepModulePort(1, "b", "q")])
    inputs["x"].bind(StepModulePort(2, "c", "r"))
    assert inputs.serialize() == [f"x->0.a.p | {TYPE}", f"x->1.b.q | {TYPE}", f"x->2.c.r | {TYPE}"]


def test_a_graph_that_is_not_active_is_no_input(made):
    with pytest.raises(ConnectionError, match=r"\.x: graph \S+ is not active; call \S+ inside `with` of it") as caught:
        made.layer(x=NeuralGraph())
    assert isinstance(caught.value, GraphConnectionError)


def test_the_input_of_another_graph_is_refused(made):
    with NeuralGraph() as other:
        made.layer(x=other)
    with NeuralGraph(), pytest.raises(NeuralPortNameMismatchError, match="the input of a graph that is not active"):
        made.loss(x=other.inputs["x"])


def test_a_port_that_the_module_lacks_is_refused(made):
    with NeuralGraph() as graph, pytest.raises(NeuralPortNameMismatchError, match='"z"'):
        made.layer(z=graph)
    assert list(graph.inputs) == []


# Outputs


def test_every_wire_is_an_output_by_default_and_a_second_of_a_name_gets_its_step(made):
    with NeuralGraph() as graph:
        made.layer(x=made.layer(x=graph))
    assert list(graph.outputs) == ["y", f"1_{made.layer.name}_y"]
    assert graph.default_output_binding
    assert graph.outputs["y"].producer_step_module_port == StepModulePort(0, made.layer.name, "y")


def test_chosen_outputs_hide_the_default_ones(made):
    graph = training_graph(made)
    loss = graph.tensors[2]["loss"]
    graph.outputs["my_loss"] = loss
    assert dict(graph.output_tensors) == {"my_loss": loss}
    assert dict(graph.output_ports) == {"my_loss": loss.ntype}
    assert not graph.default_output_binding
    with pytest.raises(KeyError, match='there is an output "my_loss" already'):
        graph.outputs["my_loss"] = loss
    with pytest.raises(TypeError, match='output "other" is no wire: got str'):
        graph.outputs["other"] = "loss"  # type: ignore[assignment]
    with pytest.raises(TypeError, match='the output "my_loss" of a graph cannot be deleted; choose the outputs in'):
        del graph.outputs["my_loss"]
    with pytest.raises(TypeError):
        graph.output_tensors["x"] = loss  # type: ignore[index]


def test_outputs_by_themselves_take_names(made):
    graph = training_graph(made)
    outputs = GraphOutputs(graph.tensors)
    outputs.bind(graph.tensor_list[:2], ["first", "second"])
    assert outputs.tensor_list == graph.tensor_list[:2]
    assert list(outputs) == ["first", "second"]


# Nesting


def test_nesting_repeats_the_steps_with_the_same_modules_and_new_wires(made):
    with NeuralGraph() as inner:
        made.layer(x=made.layer(x=inner))
    with NeuralGraph() as outer:
        result = inner(x=made.source())
        made.loss(x=result[1])
    assert outer.steps == {0: made.source.name, 1: made.layer.name, 2: made.layer.name, 3: made.loss.name}
    assert type(result).__name__ == "NeuralGraphOutput"
    assert result.y in outer.tensor_list
    assert result.y not in inner.tensor_list
    assert len(inner.steps) == 2
    assert outer.is_complete
    assert len(outer.modules) == 3


def test_only_outputs_of_the_inner_graph_are_published_under_its_names(made):
    with NeuralGraph() as inner:
        first = made.layer(x=inner)
        made.layer(x=first)
        inner.outputs["hidden"] = first
    with NeuralGraph() as outer:
        result = inner(x=made.source())
    assert list(outer.outputs) == ["x", "hidden"]
    assert isinstance(result, NmTensor)
    assert outer.output_tensors["hidden"] is result


def test_the_outer_graph_in_place_of_a_wire_binds_the_modules_port(made):
    with NeuralGraph() as inner:
        inner.inputs["renamed"] = made.layer.input_ports["x"]
        made.layer(x=inner.inputs["renamed"])
    with NeuralGraph() as outer:
        inner(renamed=outer)
    assert list(outer.inputs) == ["x"]
    with NeuralGraph() as chosen:
        chosen.inputs["kept"] = inner.inputs["renamed"]
        inner(renamed=chosen.inputs["kept"])
    assert [*chosen.inputs["kept"].consumers] == [StepModulePort(0, made.layer.name, "x")]


def test_graphs_nest_twice_and_twice_over(made):
    with NeuralGraph() as one:
        made.layer(x=one)
    with NeuralGraph() as two:
        one(x=one(x=two))
    with NeuralGraph() as three:
        two(x=two(x=made.source())[1])
    assert [call.module for call in three.calls] == [made.source, *[made.layer] * 4]
    assert [[use.name for use in call.nested_in] for call in three.calls] == [[], *[[two.name, one.name]] * 4]


@pytest.mark.parametrize(
    ("inner", "outer", "fits"),
    [
        ("training", "training", True),
        ("both", "training", True),
        ("both", "evaluation", True),
        ("evaluation", "training", False),
        ("training", "evaluation", False),
        ("training", "both", False),
        ("evaluation", "both", False),
    ],
)
def test_modes_must_fit(made, inner, outer, fits):
    with NeuralGraph(OperationMode[inner]) as nested:
        made.layer(x=nested)
    with NeuralGraph(OperationMode[outer]) as graph:
        if fits:
            nested(x=graph)
        else:
            with pytest.raises(
                TypeError, match=f"cannot be nested in one of another mode: got {inner} in {outer}"
            ) as e:
                nested(x=graph)
            assert isinstance(e.value, GraphTypeError)


def test_wrong_uses_of_a_nested_graph_are_told(made):
    with NeuralGraph() as inner:
        made.layer(x=inner)
        with pytest.raises(ConnectionError, match="cannot be nested in itself"):
            inner(x=inner)
    with NeuralGraph():
        with pytest.raises(NeuralPortNameMismatchError, match='"y" is not an input; inputs: x'):
            inner(y=made.source())
        with pytest.raises(KeyError, match=r'the input "x" of graph \S+ is not given'):
            inner()
        with pytest.raises(TypeError, match='the input "x" is given neither a wire nor a graph: got int'):
            inner(x=1)  # type: ignore[arg-type]


def test_without_an_active_graph_nesting_connects_and_records_nothing(made):
    with NeuralGraph() as inner:
        made.layer(x=inner)
    wire = inner(x=made.source())
    assert Dag([wire]).data_layer is made.source
    assert wire.call.step_number is None


# Summary


def test_the_summary_counts_what_the_graph_has(made):
    graph = training_graph(made, operation_mode=OperationMode.training)
    lines = graph.summary().splitlines()
    assert lines[0] == f"NeuralGraph {graph.name}: training, COMPLETE, TRAINABLE"
    titles = [line for line in lines if not line.startswith(" ")][1:]
    wanted = ["Modules [3]:", "Steps [3]:", "Connections [2]:", "Graph Inputs [0]:", "Graph Outputs (default) [3]:"]
    assert titles == wanted
    assert f"  0.{made.source.name}.x -> 1.{made.layer.name}.x" in lines


# Files


def test_a_file_gives_the_same_graph_again(made, tmp_path):
    with NeuralGraph(OperationMode.evaluation) as inner:
        left, right = Split(name=f"{made.layer.name}_split")(x=inner)
        made.layer(x=right)
        made.loss(x=left)
    inner.export_to_config(tmp_path / "graph.yml")
    again = NeuralGraph.import_from_config(tmp_path / "graph.yml", reuse_existing_modules=True, name="again")
    assert again.name == "again"
    assert again.modules == inner.modules
    assert again.serialize() == inner.serialize()
    assert again.operation_mode is OperationMode.evaluation
    assert active_recorder() is None


def test_a_file_has_the_sections_and_lines_of_nemo(made):
    graph = training_graph(made, operation_mode=OperationMode.training)
    graph.outputs["total"] = graph.tensors[2]["loss"]
    written = graph.serialize()
    source, layer, loss = made.source.name, made.layer.name, made.loss.name
    assert written["header"]["operation_mode"] == "training"
    assert written["header"]["full_spec"].endswith(".NeuralGraph")
    assert written["steps"] == {0: source, 1: layer, 2: loss}
    assert written["connections"] == [f"0.{source}.x->1.{layer}.x | {TYPE}", f"1.{layer}.y->2.{loss}.x | {TYPE}"]
    mapping = f"2.{loss}.loss->total | axes: None; elements_type: LossType"
    assert written["outputs"] == {"type": "manual", "mappings": [mapping]}


def test_a_file_in_flow_style_is_read_too(made, tmp_path):
    path = tmp_path / "graph.yml"
    path.write_text(
        "header: {nemo_core_version: 0.11.0, full_spec: nemo.core.neural_graph.NeuralGraph, operation_mode: both}\n"
        "modules:\n"
        "  flow_layer: {header: {full_spec: toys.dags.Layer}, init_params: {name: null}}\n"
        f"steps: {{0: flow_layer}}\nconnections: []\ninputs: ['mine->0.flow_layer.x | {TYPE}']\n"
        f"outputs: {{type: default, mappings: ['0.flow_layer.y->y | {TYPE}']}}\n"
    )
    graph = NeuralGraph.import_from_config(path)
    assert graph["flow_layer"].name == "flow_layer"
    assert list(graph.inputs) == ["mine"]
    assert list(graph.outputs) == ["y"]


def test_modules_that_live_are_taken_only_when_asked_for(made):
    written = training_graph(made).serialize()
    with pytest.raises(KeyError, match=f"there are modules named {made.source.name}, .* already; give reuse_existing"):
        NeuralGraph.deserialize(written)
    assert NeuralGraph.deserialize(written, reuse_existing_modules=True)[made.layer.name] is made.layer


def test_wires_do_not_keep_the_modules_of_a_graph_that_is_gone():
    made = Made("finished")
    with NeuralGraph() as graph:
        x = made.source()
        y = made.layer(x=x)
        loss = made.loss(x=y)
    written = graph.serialize()
    again = NeuralGraph.deserialize(written, reuse_existing_modules=True)
    assert again["finished_Layer"] is made.layer
    del made, graph, again
    NeuralGraph.deserialize(written)
    assert [wire.producer_name for wire in (x, y, loss)] == ["None"] * 3
    assert x.consumers == []
    assert str(y) == TYPE
    with pytest.raises(
        DagError, match="x: the module of a wire is gone; keep the graph in which the wire was made, or"
    ):
        Dag([loss])


@pytest.mark.parametrize("first", ["x", "y"])
def test_a_wire_of_a_gone_graph_is_told_where_a_dag_is_continued_to_it(made, first):
    x = made.source()
    dag = Dag([made.loss(x=made.layer(x=x))])
    with NeuralGraph() as graph:
        y = Layer()(x=x if first == "y" else Source()())
    del graph
    gc.collect()
    with pytest.raises(DagError, match=f"{first}: the module of a wire is gone; keep the graph in which"):
        dag.continuation([y])


def test_a_graph_keeps_modules_that_nothing_else_does():
    with NeuralGraph() as graph:
        loss = Loss(name="kept_Loss")(x=Layer(name="kept_Layer")(x=Source(name="kept_Source")()))
    gc.collect()
    assert list(graph.modules) == ["kept_Source", "kept_Layer", "kept_Loss"]
    assert [node.name for node in Dag([loss]).nodes] == ["kept_Layer", "kept_Loss"]


def test_modules_of_a_finished_frame_are_gone_though_a_wire_that_they_read_is_held():
    source = Source(name="held_Source")
    x = source()

    def graph_of_frame():
        with NeuralGraph() as graph:
            layer = Layer(name="frame_Layer")
            layer(x=x).rename("of the frame")
            Loss(name="frame_Loss")(x=layer(x=graph))
        return {name: module.serialize() for name, module in graph.modules.items()}

    modules = graph_of_frame()
    header = {"full_spec": "nemo.core.neural_graph.NeuralGraph", "operation_mode": "both"}
    steps = {0: "frame_Layer", 1: "frame_Loss"}
    inputs = [f"x->0.frame_Layer.x | {TYPE}", f"y->1.frame_Loss.x | {TYPE}"]
    lists = {"connections": [], "inputs": inputs, "outputs": {"type": "default", "mappings": []}}
    graph = NeuralGraph.deserialize({"header": header, "modules": modules, "steps": steps, **lists})
    assert list(graph.modules) == ["frame_Layer", "frame_Loss"]


def test_modules_that_nothing_uses_any_more_do_not_stand_in_the_way():
    written = training_graph(Made("gone")).serialize()
    again = NeuralGraph.deserialize(written)
    assert [*again.modules] == ["gone_Source", "gone_Layer", "gone_Loss"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": None, "outputs": None}, "lacks steps, outputs; wanted header, modules"),
        ({"header": {"full_spec": "nemo.core.Other", "operation_mode": "both"}}, "full_spec is nemo.core.Other"),
        (
            {"header": {"full_spec": "x.NeuralGraph", "operation_mode": "test"}},
            "operation_mode is test, wanted training",
        ),
        ({"connections": ["0.a->b"]}, "connections: 0.a->b is no line of a graph file"),
        ({"steps": {0: "nobody"}, "connections": []}, "step 0 is nobody, which is not among the modules"),
        ({"outputs": {"type": "other"}}, "outputs: type is other, wanted default or manual"),
        ({"modules": ["a"]}, "modules is a list, wanted a dict"),
    ],
)
def test_a_file_that_is_no_graph_is_refused_with_an_import_error(made, change, message):
    written = training_graph(made).serialize() | change
    written = {section: value for section, value in written.items() if value is not None}
    with pytest.raises(ImportError, match=message) as caught:
        NeuralGraph.deserialize(written, reuse_existing_modules=True)
    assert isinstance(caught.value, ConfigStructureError)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(batch, dimension)", "(batch, time)", "the port has another type: axes: .batch, dimension."),
        ("->1.", "->2.", "step 2 is .*, not "),
        ("0.{source}.x", "0.{source}.nope", "an earlier step 0 with an output port nope is not there"),
    ],
)
def test_a_connection_that_does_not_fit_the_modules_is_refused(made, old, new, message):
    written = training_graph(made).serialize()
    first, *others = written["connections"]
    names = {"source": made.source.name}
    written["connections"] = [first.replace(old.format(**names), new.format(**names)), *others]
    with pytest.raises(ConfigStructureError, match=message):
        NeuralGraph.deserialize(written, reuse_existing_modules=True)


def test_a_graph_with_wires_from_outside_is_not_written(made):
    outside = made.source()
    with NeuralGraph() as graph:
        made.layer(x=outside)
    with pytest.raises(DagError, match="takes a wire from outside"):
        graph.serialize()


# Running without a factory


@pytest.fixture
def net():
    return Net(norm=True, name="net")


@pytest.fixture
def whole(net):
    """Data, net and loss; its outputs are the default ones."""
    with NeuralGraph() as graph:
        x, y = Points()()
        Mse(name="mse")(out=net(x=x), target=y)
    return graph


@pytest.fixture
def part(net):
    with NeuralGraph() as graph:
        net(x=graph)
    return graph


# Batches


def test_batches_are_named_tuples_in_port_order_of_the_size_asked_for(whole):
    whole.configure_data_loader(batch_size=5)
    batches = list(whole.get_batch())
    assert [len(batch.x) for batch in batches] == [5, 5, 2]
    assert type(batches[0]).__name__ == "PointsOutput"
    assert torch.equal(torch.cat([batch.y for batch in batches]), whole["points0"].y)


def test_without_configuration_batches_have_one_item_and_dictionaries_ports(whole):
    batches = list(whole.get_batch(yield_dict=True))
    assert len(batches) == 12
    assert [*batches[0]] == ["x", "y"]


def test_a_data_layer_of_one_port_gives_the_values_themselves():
    class Numbers(nemo.DataLayerNM):
        output_ports = {"x": Points.output_ports["x"]}

        def __len__(self):
            return 4

        @property
        def dataset(self):
            return torch.utils.data.TensorDataset(torch.arange(4.0))

    with NeuralGraph() as graph:
        Numbers()()
    graph.configure_data_loader(batch_size=4)
    assert [batch.tolist() for batch in graph.get_batch()] == [[0.0, 1.0, 2.0, 3.0]]
    assert [batch["x"].tolist() for batch in graph.get_batch(yield_dict=True)] == [[0.0, 1.0, 2.0, 3.0]]


def test_a_graph_that_is_not_complete_has_no_batches(part):
    with pytest.raises(ConfigurationError, match="the graph has no data of its own: got inputs x; run it with"):
        part.get_batch()


# Forward


def test_forward_takes_a_batch_or_the_ports_and_gives_the_outputs(whole, net):
    batch = next(iter(whole.get_batch()))
    net.eval()
    expected = net(batch.x)
    by_batch, by_ports = whole.forward(batch), whole.forward(x=batch.x, y=batch.y)
    assert type(by_batch).__name__ == "NeuralGraphOutput"
    assert by_batch._fields == ("x", "y", "out", "loss")
    assert torch.equal(by_batch.out, expected)
    assert torch.equal(by_ports.loss, torch.nn.functional.mse_loss(expected, batch.y))


def test_forward_of_an_open_graph_takes_its_inputs(part, net):
    x = torch.rand(4, 3)
    net.eval()
    assert torch.equal(part.forward(x=x), net(x))
    assert torch.equal(part.forward(x), net(x))


def test_forward_sees_what_was_added_to_the_graph_later(part, net):
    x = torch.rand(4, 3)
    net.eval()
    part.forward(x=x)
    with part:
        wire = Net(name="second")(x=part)
    part.outputs["last"] = wire
    assert torch.equal(part.forward(x=x), part["second"](x))


@pytest.mark.parametrize(
    ("args", "ports", "message"),
    [
        ((1, 2), {}, "forward takes one batch, or ports by name: got 2 batches and 0 ports"),
        ((1,), {"x": 1}, "got 1 batches and 1 ports"),
        ((), {"x": 1}, "forward takes exactly the graph's ports: got x, wanted x, y"),
        ((), {"x": 1, "y": 2, "z": 3}, "got x, y, z, wanted x, y"),
        ((1,), {}, "the batch does not have the graph's ports: wanted x, y"),
    ],
)
def test_forward_refuses_other_names(whole, args, ports, message):
    with pytest.raises(UsageError, match=message):
        whole.forward(*args, **ports)


def test_a_graph_for_evaluation_runs_in_evaluation_mode_without_gradients_and_leaves_modes_as_they_are(net):
    with NeuralGraph(OperationMode.evaluation) as graph:
        net(x=graph)
    net.train()
    x = torch.rand(4, 3)
    out = graph.forward(x=x)
    assert not out.requires_grad
    assert net.training
    assert torch.equal(out, net.eval()(x))


def test_modules_take_the_mode_of_the_graph_that_calls_them_and_a_graph_for_training_puts_it_back(net):
    with NeuralGraph(OperationMode.training) as training:
        net(x=training)
    with NeuralGraph(OperationMode.evaluation) as evaluation:
        net(x=evaluation)
    assert net.operation_mode is OperationMode.evaluation
    assert not net.training
    training.forward(x=torch.rand(4, 3))
    assert net.training


def test_a_frozen_module_stays_in_evaluation_mode(net):
    net.freeze()
    with NeuralGraph(OperationMode.training) as graph:
        net(x=graph)
    graph.forward(x=torch.rand(4, 3))
    assert not net.training


def test_an_input_that_is_not_connected_is_told_when_the_graph_runs():
    with NeuralGraph() as graph:
        Mse(name="mse")(out=graph)
    with pytest.raises(ValueError, match="mse: input ports are not connected: got out, wanted target"):
        graph.forward(out=torch.zeros(1))


def test_a_nested_graph_computes_what_its_modules_compute(part, net):
    with NeuralGraph() as outer:
        outer.outputs["predicted"] = part(x=Points()().x)
    net.eval()
    batch = next(iter(outer.get_batch()))
    assert torch.equal(outer.forward(batch), net(batch.x))


# Backward


def test_backward_adds_the_gradients_of_all_losses_of_the_last_forward(whole, net):
    with whole:
        Mse(name="twice")(out=whole.tensors[1]["out"], target=whole.tensors[0]["y"])
    batch = next(iter(whole.get_batch()))
    net.eval()
    whole.forward(batch)
    whole.backward()
    gradient = net.fc.weight.grad.clone()
    net.zero_grad()
    torch.nn.functional.mse_loss(net(batch.x), batch.y).backward()
    assert torch.allclose(gradient, 2 * net.fc.weight.grad)


def test_backward_takes_losses_of_ones_own(part, net):
    out = part.forward(x=torch.ones(2, 3))
    with NeuralGraph() as graph:
        x, y = Points()()
        Mse(name="mse")(out=net(x=x), target=y)
    graph.backward([out.sum()])
    assert net.fc.bias.grad.item() == 2


def test_backward_needs_a_trainable_graph_that_has_run(part, whole):
    with pytest.raises(ConfigurationError, match="the graph cannot be trained: got mode both, 0 losses"):
        part.backward()
    with pytest.raises(ConfigurationError, match="there is no loss to take gradients of; call forward"):
        whole.backward()


def test_a_loop_over_batches_trains(whole):
    whole.configure_data_loader(batch_size=4)
    losses = []
    for batch in [batch for _ in range(20) for batch in whole.get_batch()]:
        losses.append(whole.forward(batch).loss.item())
        whole.backward()
        with torch.no_grad():
            for parameter in whole.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    assert losses[-1] < losses[0] / 5
    assert [name for name, _ in whole.named_parameters()] == ["norm.weight", "norm.bias", "fc.weight", "fc.bias"]
    assert [name for name, _ in whole.named_parameters(recurse=False)] == []


# Devices


def test_devices_that_are_not_there_are_refused(whole, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert whole.to(nemo.DeviceType.CPU) is whole
    with pytest.raises(ConfigurationError, match=r"there is no GPU: got AllGpu; use DeviceType\.CPU"):
        whole.to(nemo.DeviceType.AllGpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigurationError, match="divides batches among GPUs: got 1 to use, wanted 2 or more"):
        whole.to(nemo.DeviceType.GPU, use_dataparallel=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_modules_and_batches_move_to_the_gpu(whole):
    whole.to(nemo.DeviceType.GPU)
    assert whole.forward(next(iter(whole.get_batch()))).loss.device.type == "cuda"


# Weights


def test_weights_go_to_one_file_by_module_and_back(whole, net, tmp_path):
    whole.save_to(tmp_path / "weights.chkpt")
    stored = load_training_state(tmp_path / "weights.chkpt")
    assert set(stored) == {"header", "modules"}
    assert stored["header"]["name"] == whole.name
    assert list(stored["modules"]) == ["net"]
    before = net.fc.weight.clone()
    torch.nn.init.zeros_(net.fc.weight)
    whole.restore_from(tmp_path / "weights.chkpt")
    assert torch.equal(net.fc.weight, before)


def test_weights_of_nemos_file_are_read(whole, net, tmp_path):
    weights = {name: torch.ones_like(value) for name, value in net.state_dict().items()}
    torch.save({"header": {"nemo_core_version": "0.11.0"}, "modules": {"net": weights}}, tmp_path / "graph.pt")
    whole.restore_from(tmp_path / "graph.pt")
    assert net.fc.bias.item() == 1


def test_modules_that_are_in_one_place_only_are_told_in_one_warning(whole, part, net, tmp_path, caplog):
    whole.save_to(tmp_path / "weights")
    with part:
        Net(name="unsaved")(x=part)
    part.restore_from(tmp_path / "weights", module_names=["net", "unsaved", "nobody"])
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert f"unsaved (not in the file), nobody (not in graph {part.name})" in warnings[0]


def test_a_file_that_does_not_fit_leaves_all_modules_as_they_are(whole, net, tmp_path):
    before = net.fc.weight.clone()
    torch.save({"header": {}, "modules": {"net": {"fc.weight": torch.zeros(2)}}}, tmp_path / "graph.pt")
    with pytest.raises(CheckpointError, match="net"):
        whole.restore_from(tmp_path / "graph.pt")
    assert torch.equal(net.fc.weight, before)
    torch.save({"fc.weight": torch.zeros(2)}, tmp_path / "module.pt")
    with pytest.raises(CheckpointError, match="these are no weights of a graph: wanted modules by name"):
        whole.restore_from(tmp_path / "module.pt")


def test_freezing_takes_names_of_modules(whole, net):
    whole.freeze(["net", "points0"])
    assert net.is_frozen()
    assert "net (Net) [FROZEN]" in whole.summary()
    whole.unfreeze()
    assert not net.is_frozen()
    with pytest.raises(KeyError, match=r'has no module "nett"; modules: points0, net, mse \(did you mean net\?\)'):
        whole.freeze(["nett"])


# With the factory


@pytest.mark.parametrize("names", [[], ["loss"]])
def test_the_factory_trains_the_losses_of_a_graph(whole, net, names):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    for name in names:
        whole.outputs[name] = whole.losses[0]
    before = net.fc.weight.clone()
    factory.train(training_graph=whole, optimizer="sgd", optimization_params={"lr": 0.1, "max_steps": 1})
    assert not torch.equal(net.fc.weight, before)


def test_the_factory_refuses_a_graph_beside_losses_and_one_that_cannot_be_trained(whole, part):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    with pytest.raises(UsageError, match="got both tensors_to_optimize and training_graph; give one of them"):
        factory.train(whole.losses, whole)
    with pytest.raises(ConfigurationError, match=r"the graph cannot be trained: got mode both, outputs out; give"):
        factory.train(training_graph=part)


def test_arguments_by_position_in_the_order_of_nemo_09_are_accepted(whole):
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    rates = []

    def policy(rate, step, epoch):
        rates.append(rate)
        return rate

    logger = nemo.SimpleLogger(step_freq=1)
    factory.train(whole.losses, "sgd", {"lr": 0.5, "max_steps": 1}, [logger], policy)
    assert rates == [0.5]
    factory.train(whole.losses, "sgd", {"lr": 0.5, "max_steps": 1}, callbacks=[logger], lr_policy=policy, reset=True)
    assert rates == [0.5, 0.5]
