"""A DAG as text, as Mermaid and as SVG: everything is there once, nothing overlaps, nothing needs the outside."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys.dags import Add, Cutout, Decoder, Encoder, Layer, Loss, MelFeatures, SequenceLoss, SoundLayer, Source, Split
from toys.names import forget_names

from nemo_lite.base.errors import UsageError
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import NmTensor
from nemo_lite.core.picture import ModuleKind, View
from nemo_lite.core.show import as_mermaid, as_svg, as_text, write_svg

SVG = "{http://www.w3.org/2000/svg}"


def recogniser(name: str | None = None) -> Dag:
    audio, audio_length, labels, labels_length = SoundLayer(name=name)()
    frames, num_frames = MelFeatures()(audio, audio_length)
    encoded, encoded_length = Encoder(num_weights=332_632_349)(Cutout()(frames), num_frames)
    loss = SequenceLoss()(Decoder()(encoded), labels, encoded_length, labels_length)
    return Dag([loss])


def twice() -> Dag:
    """A module called twice, a wire read by many, two outputs of one name, one wire that nobody takes."""
    encoder = Encoder(feat_in=1024, num_weights=7)
    audio, audio_length, *_ = SoundLayer()()
    frames, num_frames = MelFeatures(features=1024)(audio, audio_length)
    first, first_length = encoder(frames, num_frames)
    second, _ = encoder(frames, first_length)
    return Dag([Decoder()(first), Decoder()(second), first])


def chain(length: int) -> Dag:
    wire = Source()()
    for _ in range(length):
        wire = Layer()(wire)
    return Dag([wire])


# What is said


def test_every_role_is_told_from_the_module() -> None:
    view = View(recogniser())
    assert [view.role(node) for node in view.nodes] == [
        *(
            ModuleKind.DATA,
            ModuleKind.PREPROCESSOR,
            ModuleKind.AUGMENTATION,
            ModuleKind.TRAINABLE,
            ModuleKind.TRAINABLE,
            ModuleKind.LOSS,
        ),
    ]
    plain = View(chain(1))
    assert plain.role(plain.nodes[1]) is ModuleKind.OTHER


def test_a_shared_module_is_counted_once() -> None:
    view = View(twice())
    assert view.num_weights == 7 + 2 * 29
    assert [view.weights(node) for node in view.nodes] == ["", "", "7", "29", "shared with encoder", "29"]


# Text


def test_the_table_reads_as_it_should() -> None:
    assert as_text(recogniser(), title="train").splitlines() == [
        "train: 6 nodes, 332,632,378 parameters",
        "T = samples/160",
        "",
        f"node                  module, and where its ports lead  shapes and types{27 * ' '}parameters",
        f"{20 * '-'}  {32 * '-'}  {41 * '-'}  {11 * '-'}",
        "[0] sound_layer       SoundLayer                        B samples",
        "      audio           -> [1] signal                     B samples  AudioSignal(16000)",
        "      audio_length    -> [1] length                     B  Lengths",
        "      labels          -> [5] targets                    B U  Labels",
        "      labels_length   -> [5] target_length              B  Lengths",
        "[1] mel_features      MelFeatures                       B samples -> B 64 T",
        "      signal          <- [0] audio                      B samples  AudioSignal(16000)",
        "      length          <- [0] audio_length               B  Lengths",
        "      spectrogram     -> [2] spectrogram                B 64 T  MelSpectrogram",
        "      num_frames      -> [3] length                     B  Lengths",
        "[2] cutout            Cutout                            B 64 T -> B 64 T",
        "      spectrogram     <- [1] spectrogram                B 64 T  Spectrogram",
        "      augmented       -> [3] spectrogram                B 64 T  Spectrogram",
        f"[3] encoder           Encoder                           B 64 T -> B 1024 T/2{23 * ' '}332,632,349",
        "      spectrogram     <- [2] augmented                  B 64 T  Spectrogram",
        "      length          <- [1] num_frames                 B  Lengths",
        "      encoded         -> [4] encoded                    B 1024 T/2  AcousticEncodedRepresentation",
        "      encoded_length  -> [5] input_length               B  Lengths",
        "[4] decoder           Decoder                           B 1024 T/2 -> B T/2 29                     29",
        "      encoded         <- [3] encoded                    B 1024 T/2  AcousticEncodedRepresentation",
        "      log_probs       -> [5] log_probs                  B T/2 29  Logprobs",
        "[5] sequence_loss     SequenceLoss                      B T/2 29 -> scalar",
        "      log_probs       <- [4] log_probs                  B T/2 29  Logprobs",
        "      targets         <- [0] labels                     B U  Labels",
        "      input_length    <- [3] encoded_length             B  Lengths",
        "      target_length   <- [0] labels_length              B  Lengths",
        "      loss            -> output                         scalar  Loss",
    ]


def test_the_table_tells_sharing_several_readers_and_wires_that_nobody_takes() -> None:
    lines = as_text(twice()).splitlines()
    assert lines[0] == "6 nodes, 65 parameters"
    assert re.search(r"^\[4\] encoder_2 .* as \[2\]$", "\n".join(lines), re.MULTILINE)
    assert any(re.search(r"encoded +-> \[3\] encoded, output +B 1024 T/2", line) for line in lines)
    assert any(re.search(r"encoded_length +-> +B  Lengths", line) for line in lines)


def test_readers_of_a_wire_are_told_in_the_order_of_the_nodes_not_in_that_of_their_connection() -> None:
    x = Source()()
    later, earlier = Layer(name="later"), Layer(name="earlier")
    first, second = later(x), earlier(x)
    lines = as_text(Dag([Add()(second, first)])).splitlines()
    assert any(re.search(r"^ +x +-> \[1\] x, \[2\] x ", line) for line in lines), lines
    assert [line.split()[1] for line in lines if re.match(r"\[[12]\]", line)] == ["earlier", "later"]


def test_the_table_shows_new_names_and_cuts_long_lists() -> None:
    x = Source()()
    x.rename("numbers")
    wire: NmTensor = x
    for _ in range(100):
        wire = Add()(wire, x)
    lines = as_text(Dag([wire, x])).splitlines()
    assert "-> [1] a, [1] b, [2] b, [3] b, [4] b, [5] b, 95 more, output" in "\n".join(lines)
    assert any(line.strip().startswith('x "numbers"') for line in lines)
    assert max(map(len, lines)) < 150


# Mermaid


def test_mermaid_has_a_box_for_each_node_and_an_arrow_for_each_connection() -> None:
    lines = as_mermaid(twice()).splitlines()
    assert lines[0] == "flowchart TD"
    assert len([line for line in lines if re.fullmatch(r'    s\d+\[\(?".*"\)?\]:::\w+', line)]) == 6
    assert len([line for line in lines if re.fullmatch(r'    s\d+ -->\|".*"\| (s|out)\d+', line)]) == 2 + 2 + 2 + 2 + 3
    assert '    s4["<b>encoder_2</b><br/>Encoder<br/>shared with encoder"]:::trainable' in lines
    assert '    s2 -->|"encoded<br/>AcousticEncodedRepresentation<br/>B 1024 T/2"| s3' in lines
    assert '    s0 -->|"audio → signal<br/>AudioSignal(16000)<br/>B samples"| s1' in lines
    used = set(re.findall(r":::(\w+)", "\n".join(lines)))
    assert used == set(re.findall(r"classDef (\w+)", "\n".join(lines)))


def test_outputs_of_one_name_are_told_apart() -> None:
    assert set(View(twice()).outputs.values()) == {"decoder.log_probs", "decoder_2.log_probs", "encoded"}


def test_mermaid_takes_hostile_names_literally() -> None:
    text = as_mermaid(Dag([Layer(name='"]; click <b> & #1\n')(Source()())]))
    assert "<b>#34;]; click #60;b#62; #38; #35;1#10;</b>" in text


# SVG


def parsed(dag: Dag, title: str = "") -> ElementTree.Element:
    return ElementTree.fromstring(as_svg(dag, title))


def texts(svg: ElementTree.Element, kind: str) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{SVG}text") if element.get("class") == kind]


def test_the_picture_names_every_node_port_type_shape_and_size() -> None:
    svg = parsed(recogniser(), "train")
    assert texts(svg, "title") == ["train"]
    assert texts(svg, "step") == ["sound_layer", "mel_features", "cutout", "encoder", "decoder", "sequence_loss"]
    assert texts(svg, "class")[0] == "SoundLayer"
    assert texts(svg, "weights") == ["332,632,349 parameters", "29 parameters"]
    assert {"signal", "length", "spectrogram", "log_probs", "targets", "input_length"} <= set(texts(svg, "port"))
    assert {"AudioSignal(16000)", "MelSpectrogram", "Lengths", "Logprobs", "Loss"} <= set(texts(svg, "type"))
    assert {"B samples", "B 64 T", "B 1024 T/2", "B T/2 29", "scalar"} <= set(texts(svg, "shape"))
    notes = texts(svg, "note")
    assert notes[0] == "6 nodes, 332,632,378 parameters; T = samples/160"
    assert notes[1:] == ["data layer", "preprocessor", "augmentation", "trainable", "loss"]


def test_there_is_an_arrowhead_for_each_connection() -> None:
    dag = twice()
    svg = parsed(dag)
    heads = [path for path in svg.iter(f"{SVG}path") if path.get("class") == "end"]
    assert len(heads) == sum(len(node.inputs) for node in dag.nodes) + len(dag.outputs)


def test_wires_that_nobody_takes_end_in_a_dot() -> None:
    assert len(list(parsed(twice()).iter(f"{SVG}circle"))) == 3  # labels, their length, the second encoded length


def test_a_shared_module_is_drawn_dashed_and_says_with_whom() -> None:
    svg = parsed(twice())
    assert len([rect for rect in svg.iter(f"{SVG}rect") if rect.get("stroke-dasharray")]) == 1
    assert "shared with encoder" in texts(svg, "weights")


def test_names_are_escaped_and_control_characters_replaced() -> None:
    svg = parsed(Dag([Layer(name='<b>&"\x00')(Source()())]), title='a < b & "c"')
    assert '<b>&"\ufffd' in texts(svg, "step")
    assert svg.get("aria-label") == 'a < b & "c"'


def test_the_picture_stands_alone() -> None:
    text = as_svg(recogniser(), "train")
    assert re.findall(r"(?:https?:)?//[^\"' ]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|<image|<foreignObject|@import|url\(|href", text)


@pytest.mark.parametrize("show", [as_text, as_mermaid, as_svg])
def test_the_same_dag_is_shown_the_same(show: object) -> None:
    assert callable(show)
    assert show(recogniser()) == show(recogniser())
    assert show(twice()) == show(twice())


def test_a_picture_is_written_to_a_file(tmp_path: Path) -> None:
    write_svg(tmp_path / "train.svg", recogniser(), title="Größe")
    assert (tmp_path / "train.svg").read_text(encoding="utf-8") == as_svg(recogniser(), "Größe")
    with pytest.raises(UsageError):
        write_svg(tmp_path / "train.svg" / "under-a-file.svg", recogniser())


@pytest.mark.long
@pytest.mark.slow
def test_two_thousand_nodes_are_shown_in_seconds() -> None:
    x = Source()()
    wire: NmTensor = x
    for _ in range(1000):
        wire = Add()(Layer()(wire), x)
    dag = Dag([wire])
    start = time.perf_counter()
    sizes = [len(as_text(dag)), len(as_mermaid(dag)), len(as_svg(dag))]
    assert time.perf_counter() - start < 10
    assert max(sizes) < 5_000_000


# Geometry


def rects(svg: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of all boxes."""
    diagram = svg.find(f"{SVG}g")
    assert diagram is not None
    places = []
    for rect in diagram.iter(f"{SVG}rect"):
        left, top, width, height = (float(rect.get(key, "0")) for key in ("x", "y", "width", "height"))
        places.append((left, top, left + width, top + height))
    return places


def check_geometry(dag: Dag) -> None:
    svg = parsed(dag)
    boxes = rects(svg)
    assert len(boxes) == len(dag.nodes) + 1 + len(set(dag.outputs))
    for (_, _, _, bottom), (_, top, _, _) in pairwise(sorted(boxes, key=lambda box: box[1])):
        assert bottom < top
    edge = max(right for _, _, right, _ in boxes)
    width = float(svg.get("width", "0"))
    spans: dict[str, dict[tuple[str, str], list[float]]] = {}  # by lane and wire, which begins at one place
    for path in (path for path in svg.iter(f"{SVG}path") if path.get("class") == "wire"):
        begin = re.fullmatch(r"M (\S+) (\S+) H (\S+) V (\S+) H (\S+)", path.get("d", ""))
        assert begin is not None
        left, top, lane, bottom, _ = begin.groups()
        assert edge < float(lane) < width
        spans.setdefault(lane, {}).setdefault((left, top), []).extend((float(top), float(bottom)))
    for wires in spans.values():  # no two wires run in one place
        runs = sorted((min(heights), max(heights)) for heights in wires.values())
        assert all(end < start for (_, end), (start, _) in pairwise(runs))
    # Two wires that enter or leave beside each other do so at their own heights.
    heads = [head.get("d", "").split()[2] for head in svg.iter(f"{SVG}path") if head.get("class") == "end"]
    assert len(set(heads)) == len(heads)


@pytest.mark.parametrize("make", [recogniser, twice, lambda: chain(1), lambda: chain(30)])
def test_nothing_overlaps(make: object) -> None:
    assert callable(make)
    check_geometry(make())


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from("sal"), st.integers(0, 50), st.integers(0, 50), st.integers(0, 60)),
        min_size=1,
        max_size=30,
    ),
    st.lists(st.integers(0, 90), min_size=1, max_size=4),
)
def test_nothing_overlaps_in_any_dag(steps: list[tuple[str, int, int, int]], outputs: list[int]) -> None:
    forget_names()  # to find out whether a name is free takes a collection of garbage
    wires: list[NmTensor] = [Source()()]
    for number, (kind, first, second, width) in enumerate(steps):
        one, two = wires[-1 - first % len(wires)], wires[-1 - second % len(wires)]
        name = f"{number}" + width * "x"
        wires += (
            Split(name=name)(one)
            if kind == "s"
            else [Add(name=name)(one, two) if kind == "a" else Layer(name=name)(one)]
        )
    asked = [wires[index % len(wires)] for index in outputs]
    check_geometry(Dag([Loss()(wires[-1]), *asked]))


def test_texts_stay_inside_their_boxes_and_beside_each_other() -> None:
    svg = parsed(recogniser(name="a_rather_long_name_of_a_data_layer_that_somebody_gave"))
    sizes = {"step": 8.0, "class": 6.0, "weights": 6.0} | dict.fromkeys(("port", "type", "shape", "source"), 6.02)
    diagram = svg.find(f"{SVG}g")
    assert diagram is not None
    groups = diagram.findall(f"{SVG}g")
    assert len(groups) == 6
    for group in groups:
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        left, right = float(rect.get("x", "0")), float(rect.get("x", "0")) + float(rect.get("width", "0"))
        lines: dict[str, list[tuple[float, float]]] = {}
        for text in group.iter(f"{SVG}text"):
            begin = float(text.get("x", "0"))
            end = begin + len(text.text or "") * sizes[text.get("class", "")]
            lines.setdefault(text.get("y", ""), []).append((begin, end))
            assert left < begin
            assert end < right
        for spans in lines.values():
            assert all(end < begin for (_, end), (begin, _) in pairwise(sorted(spans)))


def test_short_wires_run_next_to_the_boxes() -> None:
    x = Source()()
    first = Layer()(x)
    paths = [path.get("d", "") for path in parsed(Dag([Add()(Layer()(first), x)])).iter(f"{SVG}path")]
    lanes = [float(path.split()[4]) for path in paths if "V" in path]
    assert lanes.count(min(lanes)) > lanes.count(max(lanes))


def test_a_notebook_shows_the_picture():
    dag = recogniser()
    assert dag._repr_html_() == as_svg(dag)
