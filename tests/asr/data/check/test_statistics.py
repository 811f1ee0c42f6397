"""Figures of a set."""

import json

import numpy as np
import pytest
from toys.checked_sets import add, sound, write_set

from nemo_asr.data.check import distribution, examine, statistics_of


def test_the_figures_are_those_of_the_recordings_and_texts(tmp_path):
    lines = [
        add(tmp_path, "a.wav", sound(1, 0.5), text="one two", speaker="ann"),
        add(tmp_path, "b.wav", sound(2, 1.0, 8000), rate=8000, text="one", speaker="ann", duration=5.0),
        add(tmp_path, "c.wav", sound(3, 1.5), text="one two", speaker=7),
        {"audio_filepath": "none.wav", "duration": 9, "text": "x y z"},
    ]
    path = write_set(tmp_path, "train.json", *lines)
    found = statistics_of(examine(path))
    assert found == json.loads(json.dumps(found))
    assert (found["name"], found["manifests"]) == (path, [path])
    assert (found["utterances"], found["hours"]) == (3, pytest.approx(3.0 / 3600))
    assert found["sample_rates"] == {"16000": 2, "8000": 1}
    assert found["channels"] == {"1": 3}
    assert found["speakers"] == {"ann": 2, "7": 1}
    assert (found["words"], found["different_words"], found["different_texts"]) == (5, 2, 2)
    assert found["characters"] == {"o": 5, "n": 3, "e": 3, " ": 2, "t": 2, "w": 2}
    assert found["unit"] == "words"
    seconds = found["seconds"]
    assert [seconds[key] for key in ("least", "median", "mean", "most")] == pytest.approx([0.5, 1.0, 1.0, 1.5])
    assert sum(seconds["histogram"]["counts"]) == 3
    assert found["units_per_second"]["most"] == pytest.approx(4.0)


def test_texts_without_spaces_are_counted_in_characters_and_without_audio_there_are_no_rates(tmp_path):
    path = write_set(tmp_path, "train.json", add(tmp_path, "a.wav", sound(1), text="今天天气"))
    found = statistics_of(examine(path, with_audio=False))
    assert (found["unit"], found["units_per_second"]["median"]) == ("characters", 8.0)
    assert "sample_rates" not in found


@pytest.mark.parametrize("values", [[1 / 0.17, 5 / 0.85], [3.0, 3.0], [1e6, np.nextafter(1e6, 2e6)], [5.0]])
def test_values_that_differ_by_rounding_alone_have_a_histogram_too(values):
    """Rates of short sets are so: one word in 0.17 s and five in 0.85 s."""
    found = distribution(values)
    assert (found["least"], found["most"]) == (min(values), max(values))
    counts = found["histogram"]["counts"]
    assert sum(counts[9:11]) == len(values)  # in the middle
    assert len(found["histogram"]["edges"]) == 21


def test_a_narrow_range_keeps_its_histogram():
    assert sum(count > 0 for count in distribution([5.0, 5.0001, 5.0002])["histogram"]["counts"]) == 3
