"""What scripts import from NeMo's speech collection is found at the same places."""

import importlib

import pytest

import nemo_asr

IMPORT_PATHS = {
    "data_layer": ["AudioToTextDataLayer"],
    "audio_preprocessing": [
        "AudioPreprocessor",
        "AudioToMFCCPreprocessor",
        "AudioToMelSpectrogramPreprocessor",
        "AudioToSpectrogramPreprocessor",
        "CropOrPadSpectrogramAugmentation",
        "MultiplyBatch",
        "SpectrogramAugmentation",
        "TimeStretchAugmentation",
    ],
    "jasper": ["JasperDecoderForCTC", "JasperDecoderForClassification", "JasperEncoder"],
    "losses": ["CTCLossNM", "CrossEntropyLossNM"],
    "greedy_ctc_decoder": ["GreedyCTCDecoder"],
    "beam_search_decoder": ["BeamSearchDecoderWithLM"],
}
HELPERS = {
    "helpers": [
        "monitor_asr_train_progress",
        "monitor_classification_training_progress",
        "post_process_predictions",
        "post_process_transcripts",
        "process_classification_evaluation_batch",
        "process_classification_evaluation_epoch",
        "process_evaluation_batch",
        "process_evaluation_epoch",
    ],
    "metrics": ["classification_accuracy", "classification_confusion_matrix", "word_error_rate"],
}


@pytest.mark.parametrize("module", IMPORT_PATHS)
def test_modules_are_at_nemos_place_and_at_the_top(module):
    place = importlib.import_module(f"nemo_asr.{module}")
    for name in IMPORT_PATHS[module]:
        assert getattr(place, name) is getattr(nemo_asr, name), name


@pytest.mark.parametrize("module", HELPERS)
def test_helpers_are_at_nemos_place(module):
    place = importlib.import_module(f"nemo_asr.{module}")
    assert [name for name in HELPERS[module] if not callable(getattr(place, name, None))] == []


PARTS = {
    "cleaners": ["clean_text", "clean_numbers"],
    "collections": ["ASRAudioText", "AudioText", "FromFileText", "SpeechLabel", "Text"],
    "dataset": ["AudioDataset", "AudioLabelDataset", "TranscriptDataset", "seq_collate_fn"],
    "features": ["FilterbankFeatures", "WaveformFeaturizer", "normalize_batch"],
    "jasper": ["JasperBlock", "MaskedConv1d", "init_weights"],
    "manifest": ["item_iter"],
    "parsers": ["CharParser", "ENCharParser", "make_parser"],
    "perturb": ["AudioAugmentor", "Perturbation", "register_perturbation"],
    "segment": ["AudioSegment"],
    "spectr_augment": ["SpecAugment", "SpecCutout"],
}


@pytest.mark.parametrize("module", PARTS)
def test_parts_are_at_nemos_place_and_attributes_of_parts(module):
    place = importlib.import_module(f"nemo_asr.parts.{module}")
    assert getattr(nemo_asr.parts, module) is place
    assert [name for name in PARTS[module] if not callable(getattr(place, name, None))] == []
