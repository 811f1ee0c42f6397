"""The precision report: a table, and the picture in colours."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from toys.dags import Encoder, MelFeatures, SoundLayer

from nemo_lite.core.dag import Dag
from nemo_lite.core.show import NodePrecision, PrecisionReport, show_precision

SVG = "{http://www.w3.org/2000/svg}"


def report(relative_error=0.004, *, is_finite=True):
    audio, audio_length, *_ = SoundLayer()()
    dag = Dag([Encoder()(*MelFeatures()(audio, audio_length))[0]])
    features, encoder = dag.nodes
    nodes = [
        NodePrecision(features.name, "MelFeatures", ("float32",), 0.0, 0.0, 1e-5, 4.5, is_finite=True),
        NodePrecision(encoder.name, "Encoder", ("bfloat16",), 0.025, relative_error, 3e-8, 6.0, is_finite=is_finite),
    ]
    return PrecisionReport(dag, "O2: bfloat16 weights; more", 1, nodes)


def test_the_table_has_a_line_for_each_node():
    told, _, header, _, features, encoder = report().as_text().splitlines()
    assert told == "O2: bfloat16 weights; more; compared with float32 over 1 batch"
    assert header.split("  ")[0] == "node"
    assert features.split()[1:] == ["MelFeatures", "float32", "0.00e+00", "0.00%", "1.00e-05", "4.50e+00"]
    assert encoder.split()[1:] == ["Encoder", "bfloat16", "2.50e-02", "0.40%", "3.00e-08", "6.00e+00"]


def test_a_node_without_floating_values_has_no_numbers():
    dag = report().dag
    node = NodePrecision("counts", "Counter", (), 0.0, 0.0, 0.0, 0.0, is_finite=True)
    assert PrecisionReport(dag, "O1", 2, [node]).as_text().splitlines()[-1].split() == ["counts", "Counter", "-"]


@pytest.mark.parametrize(
    ("error", "is_finite", "meaning"),
    [
        (0.0, True, "as in float32"),
        (0.0005, True, "error below 0.1 %"),
        (0.004, True, "below 1 %"),
        (0.05, True, "below 10 %"),
        (0.5, True, "10 % and more, or not finite"),
        (0.0, False, "10 % and more, or not finite"),
        (math.nan, True, "10 % and more, or not finite"),
    ],
)
def test_the_picture_is_coloured_by_the_relative_error(tmp_path, error, is_finite, meaning):
    report(error, is_finite=is_finite).write_svg(tmp_path / "dag.svg", "O2")
    picture = ElementTree.parse(tmp_path / "dag.svg").getroot()
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"data layer", "as in float32", meaning} <= set(texts)
    assert f"bfloat16: {error:.2%}" in texts
    fills = {box.get("fill") for group in picture.iter(f"{SVG}g") for box in group.findall(f"{SVG}rect")}
    legend = [box.get("fill") for box in picture.findall(f"{SVG}rect") if box.get("width") == "14.0"]
    assert set(legend) <= fills
    assert len(legend) == len({"data layer", "as in float32", meaning})


def test_it_is_printed_and_saved_on_the_first_rank(tmp_path, capsys):
    show_precision(None, tmp_path / "none")
    show_precision(report())
    printed = capsys.readouterr().out
    show_precision(report(), tmp_path / "run")
    assert (tmp_path / "run" / "precision.txt").read_text() == report().as_text() + "\n"
    assert report().as_text() in printed
    assert "<title>O2: bfloat16 weights</title>" in (tmp_path / "run" / "precision.svg").read_text()
    assert not (tmp_path / "none").exists()
