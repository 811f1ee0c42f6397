"""A classifier's modules on the wires of a data layer."""

from dataclasses import replace

import pytest

from nemo_asr.data.labelled import LabelPorts
from nemo_asr.data.speech_data_layer import SpeechPorts
from nemo_asr.tasks.families import connect_classifier
from nemo_asr.tasks.recipe import recipe_from_text
from nemo_lite.base.errors import ConfigError, NeuralPortNmTensorMismatchError, UsageError
from nemo_lite.core.neural_types import LogitsType, LossType

HEAD = """labels: [yes, no]
AudioToSpeechLabelDataLayer: {}
AudioToMelSpectrogramPreprocessor: {features: 8}
JasperEncoder:
  activation: relu
  jasper:
    - {filters: 4, repeat: 1, kernel: [3], stride: [2], dilation: [1], dropout: 0.0, residual: false}
"""


def recipe_of(text="", head=HEAD):
    return recipe_from_text(head + text, "model.yaml")


def test_a_classifier_goes_from_audio_to_scores_and_the_loss():
    recipe = recipe_of("SpectrogramAugmentation: {freq_masks: 1}\n")
    model = recipe.classifier()
    train, other = (connect_classifier(model, LabelPorts(16000), training=training) for training in (True, False))
    assert isinstance(train.loss.ntype.elements_type, LossType)
    assert isinstance(train.logits.ntype.elements_type, LogitsType)
    assert train.embeddings is None
    assert train.scored == [train.loss, train.logits, train.classes]
    assert type(model.decoder).__name__ == "JasperDecoderForClassification"
    assert model.augmentation is not None
    assert other.logits is not train.logits


def test_a_decoder_for_speakers_gives_embeddings_too():
    recipe = recipe_of("JasperDecoderForSpkrClass: {emb_sizes: '6,5'}\n")
    wires = connect_classifier(recipe.classifier(with_weights=False), LabelPorts(16000))
    assert wires.embeddings is not None
    assert [str(axis) for axis in wires.embeddings.ntype.axes or ()][1].endswith("6")


def test_data_without_audio_or_classes_are_refused():
    class Silent(LabelPorts):
        @property
        def output_ports(self):
            return {name: port for name, port in super().output_ports.items() if name.startswith("label")}

    with pytest.raises(UsageError, match=r"the data layer gives no audio: got label, label_length"):
        connect_classifier(recipe_of().classifier(), Silent(16000))
    with pytest.raises(NeuralPortNmTensorMismatchError, match="transcripts"):
        connect_classifier(recipe_of().classifier(), SpeechPorts(16000))


@pytest.mark.slow
def test_a_recipe_makes_the_model_of_its_task_only():
    with pytest.raises(UsageError, match=r"model.yaml:1:1: the configuration is for another task: got classification"):
        recipe_of().model()
    texts = HEAD.replace("AudioToSpeechLabelDataLayer", "AudioToTextDataLayer").replace("yes, no", "a, b")
    with pytest.raises(UsageError, match=r"got transcription, wanted classification; its data layer decides"):
        recipe_of(head=texts).classifier()
    assert replace(recipe_of(), name="other").task == "classification"


def test_names_of_classes_may_have_spaces_and_are_checked_in_the_file():
    assert recipe_of(head=HEAD.replace("yes, no", "John Smith, jane")).labels == ["John Smith", "jane"]
    with pytest.raises(ConfigError, match=r"model.yaml:1:\d+: class 'yes' repeats the one at model.yaml:1"):
        recipe_of(head=HEAD.replace("yes, no", "'yes', 'yes'"))
    with pytest.raises(ConfigError, match="labels is missing, the list of the model's classes"):
        recipe_of(head=HEAD.split("\n", 1)[1])


def test_a_decoder_for_texts_does_not_fit_a_classifier():
    with pytest.raises(ConfigError, match=r"CrossEntropyLossNM.*cannot take|cannot take.*JasperDecoderForCTC"):
        recipe_of("JasperDecoderForCTC: {}\n")
