"""The picture is XML, and its bars have the heights of the counts."""

import xml.etree.ElementTree as ET

import pytest
from toys.checked_sets import add, sound, write_set

from nemo_asr.data.check import draw_histograms, examine, statistics_of

_SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_has_a_row_for_each_set_and_a_bar_for_each_count(tmp_path):
    lines = [add(tmp_path, f"{n}.wav", sound(n, 0.5 if n else 1.0), text="a b <c>") for n in range(4)]
    sets = [statistics_of(examine(write_set(tmp_path, name, *lines))) for name in ("a&b.json", "c.json")]
    root = ET.fromstring(draw_histograms(sets))
    titles = [text.text for text in root.iter(f"{_SVG}text") if text.get("font-weight")]
    assert titles == [f"{tmp_path}/{name}: 4 utterances, 0.00 h" for name in ("a&b.json", "c.json")]
    bars = [bar for bar in root.iter(f"{_SVG}rect") if bar.find(f"{_SVG}title") is not None]
    assert len(bars) == 2 * 3 * 20
    first = {bar.find(f"{_SVG}title").text: float(bar.get("height")) for bar in bars[:20]}
    assert first["0.975 to 1: 1"] == pytest.approx(160 / 3, abs=0.1)
    assert first["0.5 to 0.525: 3"] == 160
