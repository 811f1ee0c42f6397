"""Folders of transformers whose models hear waveforms: their numbers and texts; what is not read is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from toys.log_probs import log_probs_of
from toys.nemo_conformers import RATE, signal_of
from toys.waveform_models import (
    CASES,
    CHARACTERS,
    LETTERS,
    SECONDS,
    SPECIAL,
    VOCABULARY,
    config_of,
    kept_outputs,
    state_of,
    stored_cases,
    text_of,
    transformers_case,
    transformers_model,
    write_folder,
)

import nemo_asr
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.text.labels import text_of as text_written
from nemo_asr.trained.ctc_folders import HEAD_NAME
from nemo_asr.trained.foreign import renamed
from nemo_asr.trained.hugging_face import read_hugging_face
from nemo_asr.trained.model import load_model
from nemo_asr.trained.waveform_models import WAVEFORM_KINDS
from nemo_lite.base.errors import CheckpointError, ConfigError

LABELS = [" ", *LETTERS]
ENCODER, HEAD = "Wav2VecEncoder", "JasperDecoderForCTC"


def inner_name(key: str) -> str:
    """The name in the encoder here of a weight of transformers."""
    name = renamed(key, (*WAVEFORM_KINDS["wav2vec2"].names, HEAD_NAME))
    return name.removeprefix("encoder.") if name.startswith("encoder.") else key


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Of values up to 20, two float32 programs differ by 0.00001."""
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= 1e-5 * wanted.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_a_folder_has_the_numbers_and_the_text_of_transformers(tmp_path: Path, name: str) -> None:
    model, stored = load_model(write_folder(tmp_path / "small", name)), stored_cases()[name]
    scores = torch.tensor(stored["scores"])[:, kept_outputs(name)]
    assert close(log_probs_of(model, signal_of(SECONDS)), scores.log_softmax(-1))
    (found,) = model.transcribe([signal_of(SECONDS).numpy()], sample_rate=RATE)
    best = torch.unique_consecutive(scores.argmax(-1)).tolist()
    own = text_written([row for row in best if row < len(model.card.labels)], model.card.labels)
    assert found.text == " ".join(own.split()) != ""
    assert model.card.frame_seconds == 0.02
    if name in CHARACTERS:
        assert (found.text, model.card.labels) == (stored["text"], LABELS)


@pytest.mark.parametrize("name", CASES)
def test_the_stored_numbers_are_those_of_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    made, stored = transformers_case(name), stored_cases()[name]
    assert close(torch.tensor(made.pop("scores")), torch.tensor(stored.pop("scores")))
    assert made == stored


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    pytest.importorskip("transformers")
    theirs = transformers_model(name).double()
    theirs.load_state_dict(state_of(name))
    model: Any = load_model(write_folder(tmp_path / "small", name)).modules
    encoder, decoder = model.encoder.double().requires_grad_(True), model.decoder.double()
    samples, rows = torch.linspace(-2, 2, 6000, dtype=torch.float64).mul(40).sin()[None], kept_outputs(name)
    wanted = theirs(samples[None] if name == "omniasr_ctc" else samples).logits[0, :, rows]
    found = decoder.decoder_layers(encoder(samples[None], torch.tensor([6000]))[0])[0].T
    for scores in (wanted, found):
        scores.square().sum().backward()
    ours = {name: weight.grad for name, weight in encoder.named_parameters() if weight.grad is not None}
    compared = [(ours.get(inner_name(key)), each.grad) for key, each in theirs.named_parameters()]
    pairs = [(mine, other) for mine, other in compared if mine is not None and other is not None]
    assert len(pairs) >= len(ours) - 2  # of weights and their norms where transformers has one tensor
    for mine, other in pairs:
        # omniASR's positions are split in float32
        assert (mine - other).abs().max() <= 1e-5 * other.abs().max() + 1e-9


def test_texts_of_a_batch_are_those_of_each_recording_alone(tmp_path: Path) -> None:
    model = load_model(write_folder(tmp_path / "small"))
    recordings = [signal_of(seconds).numpy() for seconds in (0.8, 2.1, 0.3)]
    together = [each.text for each in model.transcribe(recordings, sample_rate=RATE)]
    assert together == [model.transcribe([each], sample_rate=RATE)[0].text for each in recordings]


@pytest.mark.parametrize("spelled", [("weight_g", "weight_v"), ("parametrizations.weight.original0", "original1")])
def test_the_norm_of_positions_is_read_in_both_spellings(tmp_path: Path, spelled: tuple[str, str]) -> None:
    folder = write_folder(tmp_path / "small")
    stored = load_file(folder / "model.safetensors")
    place = "wav2vec2.encoder.pos_conv_embed.conv."
    old = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in stored.items()
    }
    assert {f"{place}weight_g", f"{place}weight_v"} <= old.keys()
    save_file(old if spelled[0] == "weight_g" else stored, folder / "model.safetensors")
    found = read_hugging_face(folder).weights[ENCODER]
    assert torch.equal(found["encoder.pos_conv_embed.conv.weight_g"], old[f"{place}weight_g"])
    assert torch.equal(found["encoder.pos_conv_embed.conv.weight_v"], old[f"{place}weight_v"])


def test_settings_of_the_folder_are_those_of_the_modules(tmp_path: Path) -> None:
    changes = {"layerdrop": 0.25, "apply_spec_augment": False, "mask_feature_prob": 0.1, "attention_dropout": 0.3}
    folder = write_folder(tmp_path / "small", "wavlm", changes)
    settings = {"feature_extractor": {"do_normalize": False, "sampling_rate": 8000}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    found = read_hugging_face(folder)
    encoder = found.config[ENCODER]
    wanted = {"layerdrop": 0.25, "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "attention_dropout": 0.3}
    assert {key: encoder[key] for key in wanted} == wanted
    assert (encoder["gated_positions"], encoder["num_buckets"]) == (True, 16)
    assert "masked_spec_embed" not in found.weights[ENCODER]
    preprocessor = {"sample_rate": 8000, "normalize": False, "variance_floor": 1e-7}
    assert found.config["AudioToWaveformPreprocessor"] == preprocessor
    assert found.versions == {"transformers": "5.24.0"}
    assert load_model(folder).card.sample_rate == 8000


def test_a_folder_without_the_vector_of_masked_frames_has_zeros(tmp_path: Path) -> None:
    state = state_of("hubert")
    del state["hubert.masked_spec_embed"]
    model = load_model(write_folder(tmp_path / "small", "hubert", state=state))
    encoder: Any = model.modules.encoder
    assert not encoder.masked_spec_embed.any()


def test_special_tokens_are_no_labels_and_lower_case_is_written_where_the_tokenizer_does(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small")
    usual = read_hugging_face(folder)
    # The blank last, other names of special tokens, of which one was added later, as older folders have it.
    tokens = ["[UNK]", "/", *LETTERS, "[BOS]", "</s>", "[PAD]"]
    vocabulary = {token: number for number, token in enumerate(tokens) if token != "[BOS]"}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "added_tokens.json").write_text(json.dumps({"[BOS]": tokens.index("[BOS]")}))
    special = {"unk_token": "[UNK]", "bos_token": {"content": "[BOS]"}, "pad_token": "[PAD]"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    config = {"do_lower_case": True, "word_delimiter_token": "/"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({**config_of("wav2vec2"), "pad_token_id": len(tokens) - 1}))
    state = state_of("wav2vec2")
    rows = {" ": "|", "[PAD]": "<pad>", "[UNK]": "<unk>", "/": "|", "[BOS]": "<s>"}
    order = torch.tensor([VOCABULARY[rows.get(token, token)] for token in tokens])
    state |= {name: state[name][order] for name in ("lm_head.weight", "lm_head.bias")}
    save_file(state, folder / "model.safetensors")
    found = read_hugging_face(folder)
    assert found.config["labels"] == [" ", *LETTERS.lower()]
    assert all(torch.equal(tensor, usual.weights[HEAD][name]) for name, tensor in found.weights[HEAD].items())


def test_a_special_token_that_would_win_is_not_written(tmp_path: Path) -> None:
    state = state_of("wav2vec2")
    state["lm_head.bias"][1 : len(SPECIAL)] += 100
    plain, changed = (
        load_model(write_folder(tmp_path / name, state=each)) for name, each in (("a", None), ("b", state))
    )
    texts = [model.transcribe([signal_of(SECONDS).numpy()], sample_rate=RATE)[0].text for model in (plain, changed)]
    assert texts[0] == texts[1] != ""


def test_the_text_is_that_of_the_tokenizer_of_transformers() -> None:
    pytest.importorskip("transformers")
    for name in CHARACTERS:
        assert text_of(torch.tensor(stored_cases()[name]["scores"])) == stored_cases()[name]["text"]


def test_a_model_folder_transcribes_alike_and_hears_hot_words_and_times(tmp_path: Path) -> None:
    model = load_model(write_folder(tmp_path / "small", "wavlm"))
    model.save(tmp_path / "made", licence="MIT")
    again = load_model(tmp_path / "made")
    (first,), (second,) = (each.transcribe([signal_of().numpy()], sample_rate=RATE) for each in (model, again))
    assert first == second
    assert again.card.licence == "MIT"
    assert [word.text for word in first.words] == first.text.split()
    assert all(a.end <= b.start for a, b in zip(first.words, first.words[1:], strict=False))
    decoder = nemo_asr.BeamSearchCTCDecoder(LABELS, beam_size=8, hotwords=["EAT"], hotword_weight=12.0)
    (hot,) = model.transcribe([signal_of().numpy()], sample_rate=RATE, decoder=decoder)
    assert "EAT" in hot.text.split()
    assert "EAT" not in first.text.split()
    (aligned,) = model.align([signal_of().numpy()], ["EAT NO HAT"], sample_rate=RATE)
    assert [word.text for word in aligned.segments[0].words] == ["EAT", "NO", "HAT"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["wav2vec2", "wavlm large"])
def test_a_file_of_it_has_the_same_texts(tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnxruntime")
    model = load_model(write_folder(tmp_path / "small", name))
    export_onnx(model, tmp_path / "m.onnx")  # compares numbers and texts of several lengths
    recordings = [signal_of(seconds).numpy() for seconds in (1.3, 0.7)]
    written = OnnxModel(tmp_path / "m.onnx").transcribe(recordings, audio_rate=RATE).transcripts
    wanted = [each.text for each in model.transcribe(recordings, sample_rate=RATE)]
    assert [each.text for each in written if each] == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_adapter": True}, "config.json.add_adapter: a setting that is not known here: got True, wanted False"),
        ({"adapter_attn_dim": 16}, "config.json.adapter_attn_dim: a setting that is not known here: got 16"),
        ({"hidden_act": "relu"}, "config.json.hidden_act: a setting that is not known here: got relu, wanted gelu"),
        ({"conv_pos_batch_norm": True}, "config.json.conv_pos_batch_norm: a setting that is not known here"),
        ({"pad_token_id": 99}, "pad_token_id: it is no output of the CTC head: got 99, wanted the blank's output, 0"),
        ({"model_type": "wav2vec2-conformer"}, "wav2vec2-conformer: its attention is none that an encoder here has"),
        ({"model_type": "sew"}, "type sew: its encoder is none of those here: wanted model_type parakeet_ctc, "),
        ({"hidden_size": "many"}, "Wav2VecEncoder.hidden_size"),
        ({"conv_kernel": [10, 3, "x", 3, 3, 2, 2]}, "Wav2VecEncoder.conv_kernel"),
        ({"num_attention_heads": 5}, "num_attention_heads must divide hidden_size: got hidden_size 16"),
        ({"num_hidden_layers": 1}, "Wav2VecEncoder: does not fit Wav2VecEncoder: unexpected: encoder.layers.1."),
    ],
)
def test_a_configuration_that_is_not_read_is_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        load_model(write_folder(tmp_path / "small", changes=changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vocab.json", None, r"small: the folder lacks a file: got no vocab\.json"),
        ("vocab.json", "[]", r"vocab\.json: the file holds no settings: wanted an object"),
        (
            "vocab.json",
            {"eng": {"a": 1}},
            r"vocab\.json: it has a vocabulary for each language, which is not read",
        ),
        (
            "vocab.json",
            {"a": 1},
            "its tokenizer does not fit its decoder: got no token 2, wanted one for each of the",
        ),
        ("vocab.json", {**VOCABULARY, "T": "x"}, "its tokenizer does not fit its decoder: got no token 6"),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"},
            "tokenizer_class: the tokenizer is of another kind: got Wav2Vec2PhonemeCTCTokenizer, wanted Wav2Vec2CTC",
        ),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: the file cannot be read"),
        ("preprocessor_config.json", {"sampling_rate": "fast"}, "AudioToWaveformPreprocessor.sample_rate"),
    ],
)
def test_a_file_that_is_not_read_is_one_line(tmp_path: Path, file: str, content: Any, message: str) -> None:
    folder = write_folder(tmp_path / "small")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises((CheckpointError, ConfigError), match=message) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"lm_head.weight": torch.zeros(20, 16)},
            "the weights of the CTC head do not fit each other: got 14 and 20",
        ),
        ({"lm_head.bias": torch.zeros(())}, "the weights of the CTC head do not fit each other: got 0 and 14 outputs"),
        (
            {"wav2vec2.encoder.layer_norm.bias": None},
            "Wav2VecEncoder: does not fit Wav2VecEncoder: missing: encoder.",
        ),
        (
            {"wav2vec2.encoder.layer_norm.bias": None, "wav2vec2.masked_spec_embed": None},
            "Wav2VecEncoder: does not fit Wav2VecEncoder: missing: masked_spec_embed",
        ),
        ({"wav2vec2.encoder.pos_conv_embed.conv.weight": torch.zeros(3)}, "unexpected: encoder.pos_conv_embed.conv.w"),
        (
            {"wav2vec2.feature_projection.projection.weight": torch.zeros(16, 9)},
            "different: feature_projection.proj",
        ),
    ],
)
def test_weights_of_other_sizes_are_one_line(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    state = {**state_of("wav2vec2"), **changed}
    present = {name: tensor for name, tensor in state.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        load_model(write_folder(tmp_path / "small", state=present))
    assert "\n" not in str(caught.value)


def test_a_model_without_a_head_or_with_other_parts_is_one_line(tmp_path: Path) -> None:
    state = state_of("wav2vec2")
    body = {name: tensor for name, tensor in state.items() if not name.startswith("lm_head.")}
    folder = write_folder(tmp_path / "body", changes={"architectures": ["Wav2Vec2Model"]}, state=body)
    wanted = "body: the model has no CTC head, so it writes no texts: got Wav2Vec2Model, wanted such as Wav2Vec2ForCTC"
    with pytest.raises(CheckpointError, match=wanted):
        read_hugging_face(folder)
    folder = write_folder(tmp_path / "more", state={**state, "project_q.weight": torch.zeros(2, 2)})
    with pytest.raises(CheckpointError, match=r"weights are of another kind of model: got project_q\.weight, wanted"):
        read_hugging_face(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="its weights are pickled, and pickles are not read here"):
        read_hugging_face(folder)
