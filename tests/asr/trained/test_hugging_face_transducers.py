"""Transducers in folders of transformers find the labels, frames and durations that transformers finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toys.hugging_face_transducers import (
    BLANK,
    CASES,
    state_of,
    stored_cases,
    transformers_case,
    write_folder,
)
from toys.log_probs import frames_of
from toys.nemo_conformers import RATE, signal_of
from toys.subwords import small_subwords

from nemo_asr.run.search.transducer import FRAMES
from nemo_asr.trained.hugging_face import read_hugging_face
from nemo_asr.trained.model import TrainedModel, load_model
from nemo_lite.base.errors import CheckpointError


def found_by(model: TrainedModel) -> tuple[torch.Tensor, Any]:
    if "prompt" in model.modules.others:
        model.set_language("de-DE")
    frames = frames_of(model, signal_of())
    search: Any = model.modules.search
    return frames, search.recognise({FRAMES: frames.numpy()}).best


@pytest.mark.parametrize("name", CASES)
def test_a_folder_has_the_labels_frames_and_durations_that_transformers_finds(tmp_path: Path, name: str) -> None:
    wanted = stored_cases()[name]
    model = load_model(write_folder(tmp_path / "small", name))
    frames, found = found_by(model)
    torch.testing.assert_close(frames, torch.tensor(wanted["frames"]), rtol=1e-5, atol=1e-5)
    assert (list(found.ids), list(found.starts)) == (wanted["labels"], wanted["starts"])
    lasting = [max(duration, 1) for duration in wanted["durations"]]
    assert [end - start for start, end in zip(found.starts, found.ends, strict=True)] == lasting
    assert model.card.labels == list(small_subwords("bpe"))
    assert model.transcribe([signal_of().numpy()], sample_rate=RATE)[0].text != ""


@pytest.mark.parametrize("name", CASES)
def test_the_stored_numbers_are_those_of_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    made, stored = transformers_case(name), stored_cases()[name]
    torch.testing.assert_close(torch.tensor(made.pop("frames")), torch.tensor(stored.pop("frames")), rtol=0, atol=1e-5)
    assert made == stored


def test_the_blank_is_the_last_output_of_the_joint_network_whatever_the_configuration_says(tmp_path: Path) -> None:
    right = load_model(write_folder(tmp_path / "right", "parakeet_tdt"))
    wrong = load_model(write_folder(tmp_path / "wrong", "parakeet_tdt", {"blank_token_id": BLANK + 1}))
    assert found_by(right)[1] == found_by(wrong)[1]
    assert right.card.labels == wrong.card.labels


def test_a_stored_row_of_the_blank_is_loaded_as_it_is(tmp_path: Path) -> None:
    weights = read_hugging_face(write_folder(tmp_path / "small", "parakeet_rnnt")).weights["RNNTDecoder"]
    model = load_model(tmp_path / "small")
    prediction: Any = model.modules.others["prediction"]
    loaded = prediction.state_dict()["prediction.embed.weight"]
    assert torch.equal(loaded, weights["prediction.embed.weight"])
    assert loaded[BLANK].abs().min() > 0


def test_an_encoder_for_streams_has_the_context_and_the_features_of_its_folder(tmp_path: Path) -> None:
    config = read_hugging_face(write_folder(tmp_path / "small", "nemotron_asr_streaming")).config
    encoder = config["ConformerEncoder"]
    assert encoder["att_context_size"] == [[4, 1], [4, 0]]
    assert "stochastic_depth_drop_prob" not in encoder  # layerdrop is not taken over
    assert config["AudioToMelSpectrogramPreprocessor"]["normalize"] == "NA"
    assert config["TransducerSearch"] == {"max_symbols": 4}


def test_a_processor_without_languages_leaves_auto(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small", "nemotron3_5_asr")
    (folder / "processor_config.json").write_text(json.dumps({"feature_extractor": {"feature_size": 80}}))
    assert read_hugging_face(folder).config["LanguagePrompt"]["prompt_dictionary"] == {"auto": 5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"durations": ["long"]}, "durations: the value cannot be used: got ['long'], wanted [0, 1, 2, 3, 4]"),
        ({"durations": list(range(40))}, "the joint network has too few outputs: got -10, wanted labels and the blank"),
        ({"decoder_hidden_size": "large"}, "decoder_hidden_size: the value cannot be used: got 'large'"),
        (
            {"model_type": "nemotron_asr_streaming", "encoder_config": {"sliding_window": "all"}},
            "encoder_config.sliding_window, default_num_lookahead_tokens: the values cannot be used: got all, [13]",
        ),
        ({"model_type": "parakeet_ctc"}, "its weights are of another kind of model: got decoder."),
        ({"model_type": "parakeet_other"}, "type parakeet_other: its kind is not known here: wanted model_type parak"),
    ],
)
def test_a_folder_that_cannot_be_read_is_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_hugging_face(write_folder(tmp_path / "small", "parakeet_tdt", changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_with_fewer_pieces_than_labels_is_one_line(tmp_path: Path) -> None:
    shapes = stored_cases()["parakeet_rnnt"]["shapes"]
    more = {key: [size + 3 * (size == BLANK + 1) for size in shape] for key, shape in shapes.items()}
    folder = write_folder(tmp_path / "small", "parakeet_rnnt", state=state_of("parakeet_rnnt", more))
    with pytest.raises(CheckpointError, match=r"its tokenizer does not fit its decoder: got no piece 25, wanted one"):
        read_hugging_face(folder)
