"""Recordings with a class each: names of classes, and the data layer."""

import json

import msgspec
import numpy as np
import pytest
import soundfile
import torch

from nemo_asr.data.labelled import AudioToSpeechLabelDataLayer, ClassParser, UnknownLabelError, class_names, of_length
from nemo_asr.run.manifest import class_of
from nemo_asr.run.manifest_kinds import Line
from nemo_lite.backends.pytorch.data.order import Shard
from nemo_lite.base.errors import ConfigError, DataError, UsageError
from nemo_lite.core.neural_types import AudioSignal, LabelsType

# Names of classes: in lines, in lists, as numbers.


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b'{"command": "go", "label": "x"}', "go"),
        (b'{"target": 3}', "3"),
        (b'{"label": null, "text": "go"}', ""),
        (b'{"label": {"a": 1}}', ""),
    ],
)
def test_a_line_names_its_class_in_text_or_number(line, name):
    assert class_of(msgspec.json.decode(line, type=Line)) == name


def test_a_parser_gives_the_number_of_a_class_as_a_list():
    parser = ClassParser(["go", "stop here"])
    assert parser("stop here") == [1]
    assert parser("halt") is None
    assert "1 text refused" in parser.report()
    assert parser.describe() == "names of classes"
    with pytest.raises(UnknownLabelError, match='class "halt" is not in labels'):
        parser.encode("halt")


def test_numbers_are_names_too_and_all_problems_are_told_at_once():
    assert class_names([3, "a"]) == ("3", "a")
    with pytest.raises(ConfigError) as error:
        class_names([None, "a", "a"], lambda index: f"model.yaml:{index}")
    assert len(error.value.problems) == 2
    assert "model.yaml:2: class 'a' repeats the one at model.yaml:1" in str(error.value)


# The data layer of classified recordings: classes, batches, lengths, refusals.


NAMES = ["yes", "no", "stop"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(NAMES, 1):
        soundfile.write(tmp_path / f"{name}.wav", np.linspace(0, 0.5, 1600 * number + 800), 16000)
    return tmp_path


def manifest(*lines, name="train.json"):
    """A line is a class, with the recording of its name, or (recording, further keys)."""
    with open(name, "w") as file:
        for line in lines:
            audio, keys = (line, {"command": line}) if isinstance(line, str) else line
            seconds = soundfile.info(f"{audio}.wav").duration
            file.write(json.dumps({"audio_filepath": f"{audio}.wav", "duration": seconds, **keys}) + "\n")
    return name


def layer_of(path, **settings):
    return AudioToSpeechLabelDataLayer(manifest_filepath=path, **{"batch_size": 4, "min_duration": None, **settings})


def batches_of(layer, *, training=False, epoch=0):
    return [batch.values for batch in layer.loader(training=training, shard=Shard()).epoch(epoch)]


def test_a_batch_has_audio_and_a_class_for_each_recording(folder):
    layer = layer_of(manifest("no", "yes", "stop"), labels=NAMES)
    ((audio, audio_lens, classes, ones),) = batches_of(layer)
    assert audio.shape == (3, 5600)
    assert audio_lens.tolist() == [4000, 2400, 5600]
    assert classes.tolist() == [1, 0, 2]
    assert (classes.dtype, classes.shape, ones.tolist()) == (torch.int64, (3,), [1, 1, 1])
    assert list(layer.output_ports) == ["audio_signal", "a_sig_length", "label", "label_length"]
    assert isinstance(layer.output_ports["label"].elements_type, LabelsType)
    assert layer.output_ports["audio_signal"].elements_type == AudioSignal(16000)
    assert len(layer) == 3


def test_without_labels_they_are_those_of_the_manifest_in_order(folder):
    layer = layer_of(manifest("yes", "no", "yes", "stop"), labels=None)
    assert layer.labels == ["no", "stop", "yes"]
    assert layer.num_classes == 3
    assert layer._dataset.label2id == {"no": 0, "stop": 1, "yes": 2}
    assert layer._dataset.id2label == {0: "no", 1: "stop", 2: "yes"}
    assert batches_of(layer)[0][2].tolist() == [2, 0, 2, 1]


def test_the_class_is_the_first_of_command_target_and_label(folder):
    lines = [{"label": "c", "target": "b"}, {"label": "c"}, {"label": "c", "target": "b", "command": "a"}, {"label": 7}]
    layer = layer_of(manifest(*[("yes", line) for line in lines]))
    assert [layer.utterance_of(row).text for row in range(4)] == ["b", "c", "a", "7"]
    assert layer.labels == ["7", "a", "b", "c"]


def test_a_class_that_is_not_in_labels_is_told_with_its_line(folder):
    path = manifest("yes", "no", ("stop", {"command": "stpo"}))
    with pytest.raises(UnknownLabelError) as error:
        layer_of(path, labels=["yes", "no", "stop"])
    assert str(error.value) == (
        'train.json:3: class "stpo" is not in labels (did you mean stop?): wanted yes, no, stop; '
        "add it to labels, or delete the line"
    )
    assert isinstance(error.value, (KeyError, DataError))
    assert error.value.exit_code == 2


def test_a_line_without_a_class_is_told(folder):
    problem = r"^train\.json:2: no class: write it under command, target or label, or delete the line$"
    for keys in ({"text": "yes"}, {"label": ""}, {"label": ["yes"]}):
        with pytest.raises(DataError, match=problem):
            layer_of(manifest("yes", ("no", keys)))


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([], r"labels\[0\]: the list of classes is empty"),
        (["a", ""], r"labels\[1\]: '' is no name of a class"),
        (["a", "b", "a"], r"labels\[2\]: class 'a' repeats the one at labels\[0\]"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, problem, folder):
    with pytest.raises(ConfigError, match=problem):
        layer_of(manifest("yes"), labels=labels)


def test_classes_of_several_words_are_kept_as_they_are(folder):
    layer = layer_of(manifest(("yes", {"label": "John  Smith"}), ("no", {"label": "jane"})))
    assert layer.labels == ["John  Smith", "jane"]
    assert batches_of(layer)[0][2].tolist() == [0, 1]


def test_parts_of_a_file_and_limits_of_durations_are_those_of_all_manifests(folder):
    part = ("stop", {"label": "part", "offset": 0.1, "duration": 0.2})
    layer = layer_of(manifest(part, "yes"), min_duration=0.16)
    (_, lengths, _, _), *_ = batches_of(layer)
    assert lengths.tolist() == [3200]
    assert layer.labels == ["part"]
    assert "1 shorter than min_duration 0.16 s" in layer.utterances.summary()


def test_every_recording_is_brought_to_time_length(folder):
    layer = layer_of(manifest("yes", "no", "stop"), time_length=0.25, shuffle=False)
    (audio, lengths, _, _), *_ = batches_of(layer)
    assert lengths.tolist() == [4000] * 3
    assert audio.shape == (3, 4000)
    stop, _ = soundfile.read("stop.wav", dtype="float32")
    np.testing.assert_array_equal(audio[2].numpy(), stop[800:4800])  # the middle
    first, again, other = [batches_of(layer, training=True, epoch=epoch)[0][0][2] for epoch in (0, 0, 1)]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("samples", "brought"),
    [([1, 2, 3], [1, 2, 3, 1, 2, 3, 2, 3]), ([1, 2, 3, 4], [1, 2, 3, 4] * 2), (range(8), range(8)), ([5], [5] * 8)],
)
def test_a_shorter_recording_is_repeated_and_filled_up_from_its_end(samples, brought):
    assert of_length(np.array(samples), 8).tolist() == list(brought)


def test_a_negative_time_length_is_refused(folder):
    with pytest.raises(UsageError, match="time_length is -1, wanted float from 0"):
        layer_of(manifest("yes"), time_length=-1)


def test_shapes_of_a_batch_are_known_without_reading(folder):
    shapes = layer_of(manifest("yes")).output_shapes({})
    assert [len(shape) for shape in shapes.values()] == [2, 1, 1, 1]
