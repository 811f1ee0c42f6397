"""Texts that do not fit a model's frames, as findings about a set."""

import pytest
from toys.checked_sets import add, sound, write_set

from nemo_asr.tasks.fitting import misfits_in
from nemo_asr.tasks.recipe import load_recipe


@pytest.fixture(scope="module")
def recipe():
    return load_recipe("demo")  # 50 frames a second, 41 where perturbations make it 1.2 times as fast


def set_of(folder, *texts):
    lines = [add(folder, f"{number}.wav", sound(number), text=text) for number, text in enumerate(texts)]
    write_set(folder, "train.json", *lines)
    return str(folder / "train.json")


def test_texts_that_never_fit_are_a_problem_and_those_that_may_not_are_told(recipe, tmp_path):
    seconds = add(tmp_path, "long.wav", sound(9))["duration"]
    fits, tight = "ab" * 10, "ab" * int(seconds * 46 / 2)
    path = set_of(tmp_path, fits, "ab" * int(seconds * 30), tight)
    never, sometimes = misfits_in(recipe, path, training=True)
    assert (never.kind, never.is_problem, sometimes.is_problem) == ("frames", True, False)
    assert "1 of 3 utterances whose text does not fit the model's frames" in never.summary
    assert never.details[0].startswith(f"{path}:2: ")
    assert [each.split(": ")[0] for each in sometimes.details] == [f"{path}:3"]
    (alone,) = misfits_in(recipe, path, training=False)
    assert alone.details == never.details


def test_a_set_that_the_data_layer_cannot_read_is_a_problem(recipe, tmp_path):
    write_set(tmp_path, "train.json", {"audio_filepath": "none.wav", "duration": 1.0, "text": "a"})
    (found,) = misfits_in(recipe, str(tmp_path / "train.json"), training=True)
    assert (found.is_problem, "none.wav" in found.details[0]) == (True, True)
