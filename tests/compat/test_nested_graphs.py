"""Pictures of DAGs with nested graphs: each graph is a box around its nodes, and around no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from toys.dags import Add, Cutout, Decoder, Encoder, Layer, MelFeatures, SequenceLoss, SoundLayer, Source

from nemo_lite.core import Dag, NeuralGraph
from nemo_lite.core.picture import GraphFrame, View
from nemo_lite.core.show import as_mermaid, as_svg, as_text

SVG = "{http://www.w3.org/2000/svg}"
Rect = tuple[float, float, float, float]  # left, top, right, bottom


def recogniser() -> Dag:
    """Acoustic modules in a graph, which is nested in that of the model."""
    with NeuralGraph(name="acoustic") as acoustic:
        acoustic.outputs["encoded"], acoustic.outputs["length"] = Encoder()(Cutout()(spectrogram=acoustic), acoustic)
    with NeuralGraph(name="model") as model:
        spectrogram, num_frames = MelFeatures()(signal=model, length=model)
        encoded, length = acoustic(spectrogram=spectrogram, length=num_frames)
        model.outputs["log_probs"], model.outputs["length"] = Decoder()(encoded), length
    audio, audio_length, labels, labels_length = SoundLayer()()
    log_probs, length = model(signal=audio, length=audio_length)
    return Dag([SequenceLoss()(log_probs, labels, length, labels_length), log_probs])


def used_twice() -> Dag:
    """One graph nested twice, side by side and with nodes of the outer DAG between them."""
    with NeuralGraph(name="block") as block:
        block.outputs["out"] = Layer()(x=Layer()(x=block))
    start = Source()()
    left, right = block(x=start), Layer()(block(x=start))
    return Dag([Add()(left, Add()(right, start)), left])


def rects(svg: ElementTree.Element) -> Iterator[tuple[str, Rect]]:
    """Frames (``frame``), and boxes of nodes (their name), with their places in the whole picture."""

    def walk(element: ElementTree.Element, x: float, y: float) -> Iterator[tuple[str, Rect]]:
        moved = re.match(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
        if moved:
            x, y = x + float(moved[1]), y + float(moved[2])
        names = [text.text or "" for text in element.findall(f"{SVG}text") if text.get("class") == "step"]
        for rect in element.findall(f"{SVG}rect"):
            if names or rect.get("class") == "frame":
                left, top = x + float(rect.get("x", "")), y + float(rect.get("y", ""))
                place = (left, top, left + float(rect.get("width", "")), top + float(rect.get("height", "")))
                yield names[0] if names else "frame", place
        for child in element.findall(f"{SVG}g"):
            yield from walk(child, x, y)

    return walk(svg, 0.0, 0.0)


def is_in(inner: Rect, outer: Rect) -> bool:
    return inner[0] >= outer[0] and inner[1] >= outer[1] and inner[2] <= outer[2] and inner[3] <= outer[3]


def are_apart(first: Rect, second: Rect) -> bool:
    return first[2] < second[0] or second[2] < first[0] or first[3] < second[1] or second[3] < first[1]


def test_nodes_are_in_the_frames_of_their_graphs() -> None:
    frame = View(recogniser()).frame
    model = next(item for item in frame.items if isinstance(item, GraphFrame))
    acoustic = next(item for item in model.items if isinstance(item, GraphFrame))
    assert (frame.name, model.name, acoustic.name) == ("", "model", "acoustic")
    assert [node.name for node in acoustic.nodes] == ["cutout", "encoder"]
    assert [node.name for node in model.nodes] == ["mel_features", "cutout", "encoder", "decoder"]


def test_mermaid_has_a_subgraph_for_each_use_of_a_graph() -> None:
    lines = [line.strip() for line in as_mermaid(recogniser()).splitlines()]
    kinds = [re.sub(r"^s(\d).*", r"s\1", line) for line in lines if not re.match(r"(s\d|out).*--|classDef|out", line)]
    assert kinds == [
        *("flowchart TD", "s0", 'subgraph g0["model"]', "s1", 'subgraph g1["acoustic"]', "s2", "s3", "end", "s4"),
        *("end", "s5"),
    ]
    assert as_mermaid(used_twice()).count('["block"]') == 2


def test_the_table_says_in_which_graphs_a_module_is() -> None:
    text = as_text(recogniser())
    assert "Encoder in model/acoustic " in text
    assert "Decoder in model " in text
    assert "SoundLayer " in text


def test_the_picture_frames_the_nodes_of_a_graph_and_no_others() -> None:
    for dag, inside in (
        (recogniser(), [{"mel_features", "cutout", "encoder", "decoder"}, {"cutout", "encoder"}]),
        (used_twice(), [{"layer", "layer_2"}, {"layer_3", "layer_4"}]),
    ):
        found = list(rects(ElementTree.fromstring(as_svg(dag))))
        frames = [place for name, place in found if name == "frame"]
        nodes = {name: place for name, place in found if name != "frame"}
        assert len(nodes) == len(dag.nodes) + 1
        framed = [{name for name, place in nodes.items() if is_in(place, frame)} for frame in frames]
        assert sorted(map(len, framed)) == sorted(map(len, inside))
        for frame, names in zip(frames, framed, strict=True):
            assert all(are_apart(place, frame) for name, place in nodes.items() if name not in names)


def test_the_picture_names_the_graphs_and_has_an_arrowhead_for_each_connection() -> None:
    svg = ElementTree.fromstring(as_svg(recogniser()))
    assert [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == "graph"] == ["model", "acoustic"]
    heads = [path for path in svg.iter(f"{SVG}path") if path.get("class") == "end"]
    assert len(heads) == sum(len(node.inputs) for node in recogniser().nodes) + 2


def test_equal_graphs_give_equal_pictures() -> None:
    assert as_svg(recogniser()) == as_svg(recogniser())
    assert as_svg(used_twice()) == as_svg(used_twice())
