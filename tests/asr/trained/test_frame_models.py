"""Folders of wav2vec2-BERT, LASR and Granite Speech: transformers' numbers and texts; what is not read is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from toys.byte_pairs import pieces_and_merges, small_byte_pairs
from toys.frame_models import (
    CASES,
    CHARACTERS,
    SECONDS,
    config_of,
    inputs_of,
    kept_outputs,
    load,
    state_of,
    stored_cases,
    tokenizer_with_special_tokens,
    transformers_case,
    transformers_model,
    write_folder,
)
from toys.log_probs import log_probs_of
from toys.nemo_conformers import RATE, signal_of
from toys.subwords import TEXTS, small_subwords
from toys.waveform_models import LETTERS

from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.text.labels import text_of as text_written
from nemo_asr.trained.ctc_folders import HEAD_NAME
from nemo_asr.trained.foreign import renamed
from nemo_asr.trained.frame_models import FRAME_KINDS
from nemo_asr.trained.hugging_face import read_hugging_face
from nemo_asr.trained.model import load_model
from nemo_lite.base.errors import CheckpointError, ConfigError

FRAME_SECONDS = {"wav2vec2-bert": 0.02, "with an adapter": 0.08, "lasr": 0.04, "granite": 0.08}


def close(found: Tensor, wanted: Tensor) -> bool:
    """Of values up to 60, two float32 programs differ by 0.0002."""
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= 1e-5 * wanted.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_a_folder_has_the_numbers_and_the_text_of_transformers(tmp_path: Path, name: str) -> None:
    model, stored = load_model(write_folder(tmp_path / "small", name)), stored_cases()[name]
    scores = torch.tensor(stored["scores"])[:, kept_outputs(name)]
    assert close(log_probs_of(model, signal_of(SECONDS)), scores.log_softmax(-1))
    (found,) = model.transcribe([signal_of(SECONDS).numpy()], sample_rate=RATE, cutting=None)
    best = torch.unique_consecutive(scores.argmax(-1)).tolist()
    own = text_written([row for row in best if row < len(model.card.labels)], model.card.labels)
    assert found.text == " ".join(own.split()) != ""
    assert model.card.frame_seconds == FRAME_SECONDS[name]
    if name in CHARACTERS:
        assert (found.text, model.card.labels) == (stored["text"], [" ", *LETTERS])


@pytest.mark.parametrize("name", CASES)
def test_the_stored_numbers_are_those_of_transformers(name: str) -> None:
    _needs_transformers(name)
    made, stored = transformers_case(name), stored_cases()[name]
    assert close(torch.tensor(made.pop("scores")), torch.tensor(stored.pop("scores")))
    assert made == stored


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seconds", [1.23, 1.24, 1.25])
def test_scores_and_gradients_in_float64_are_those_of_transformers(tmp_path: Path, name: str, seconds: float) -> None:
    """Of even and odd numbers of frames."""
    _needs_transformers(name)
    theirs, kind = transformers_model(name).double(), FRAME_KINDS[CASES[name][0]]
    load(theirs, name, state_of(name))
    inputs = inputs_of(name, signal_of(seconds))
    features = inputs["input_features"] = inputs["input_features"].double()
    modules: Any = load_model(write_folder(tmp_path / "small", name)).modules
    encoder, decoder = modules.encoder.double(), modules.decoder.double()
    number = int(inputs["attention_mask"].sum())
    if name in CHARACTERS:  # pairs of frames
        features, number = features.reshape(1, -1, 80), (len(signal_of(seconds)) - 400) // 160 + 1
    encoded, lengths = encoder(features.transpose(1, 2), torch.tensor([number]))
    found = decoder.decoder_layers(encoded)[0].T[: int(lengths)]
    wanted = theirs(**inputs).logits[0, : int(lengths), kept_outputs(name)]
    assert (found - wanted).abs().max() <= 1e-12 * wanted.abs().max()
    for scores in (wanted, found):
        scores.square().sum().backward()
    given = {renamed(key, (*kind.names, HEAD_NAME)): weight.grad for key, weight in theirs.named_parameters()}
    of_encoder = {key.removeprefix("encoder."): each for key, each in given.items() if key.startswith("encoder.")}
    others = kind.completed({key: each for key, each in of_encoder.items() if each is not None}, {"mask_time_prob": 0})
    compared = 0
    for key, weight in encoder.named_parameters():
        if key.startswith("out.") or weight.grad is None:  # transformers' is also its head; only training masks
            assert key.startswith(("out.", "masked_spec_embed"))
            continue
        own, other = weight.grad, others[key]
        if "depthwise" in key and name == "lasr":
            own, other = own[..., 1:], other[..., 1:]  # the first tap is in no kernel of transformers
        assert (own - other).abs().max() <= 1e-9 * other.abs().max() + 1e-12, key
        compared += 1
    assert compared >= len(others) - 2


def _needs_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    if name == "granite":
        pytest.importorskip("torchaudio", reason="transformers computes Granite's features with it")


@pytest.mark.parametrize("name", CASES)
def test_texts_of_a_batch_are_those_of_each_recording_alone(tmp_path: Path, name: str) -> None:
    model = load_model(write_folder(tmp_path / "small", name))
    recordings = [signal_of(seconds).numpy() for seconds in (0.8, 2.1, 0.31)]
    together = [each.text for each in model.transcribe(recordings, sample_rate=RATE, cutting=None)]
    assert together == [model.transcribe([each], sample_rate=RATE, cutting=None)[0].text for each in recordings]


def test_pieces_are_those_of_the_tokenizer_without_the_end_of_a_text(tmp_path: Path) -> None:
    folder, original = write_folder(tmp_path / "small", "lasr"), small_subwords("unigram")
    found = read_hugging_face(folder)
    assert found.tokenizer is not None
    assert list(found.tokenizer) == list(original)
    assert [found.tokenizer.ids_of(text) for text in TEXTS] == [original.ids_of(text) for text in TEXTS]
    weight = found.weights["JasperDecoderForCTC"]["decoder_layers.0.weight"]
    stored = state_of("lasr")["ctc_head.weight"]
    assert torch.equal(weight, stored[[*range(2, len(stored)), 0]])


def test_the_head_of_granite_is_the_one_in_its_middle_unless_the_folder_has_another(tmp_path: Path) -> None:
    state = state_of("granite")
    own = {"ctc_head.weight": state["encoder.out.weight"] + 1, "ctc_head.bias": state["encoder.out.bias"].clone()}
    tied = read_hugging_face(write_folder(tmp_path / "tied", "granite"))
    untied = read_hugging_face(write_folder(tmp_path / "untied", "granite", state={**state, **own}))
    weights = [each.weights["JasperDecoderForCTC"]["decoder_layers.0.weight"] for each in (tied, untied)]
    torch.testing.assert_close(weights[1], weights[0] + 1)
    assert torch.equal(weights[0][-1, :, 0], state["encoder.out.weight"][0])


def test_weights_of_half_precision_are_read(tmp_path: Path) -> None:
    halves = {
        key: tensor.bfloat16() if tensor.is_floating_point() and "norm" not in key else tensor
        for key, tensor in state_of("granite").items()
    }
    whole = {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in halves.items()}
    models = [
        load_model(write_folder(tmp_path / str(i), "granite", state=each)) for i, each in enumerate((halves, whole))
    ]
    found = [log_probs_of(model, signal_of(SECONDS)) for model in models]
    assert torch.equal(*found)


def test_settings_of_the_folder_are_those_of_the_modules(tmp_path: Path) -> None:
    changes = {"layerdrop": 0.25, "apply_spec_augment": False, "hidden_dropout": 0.2, "add_adapter": True}
    found = read_hugging_face(write_folder(tmp_path / "small", changes=changes, state=state_of("with an adapter")))
    encoder = found.config["Wav2VecBertEncoder"]
    wanted = {"layerdrop": 0.25, "mask_time_prob": 0.0, "hidden_dropout": 0.2, "num_adapter_layers": 1}
    assert {key: encoder[key] for key in wanted} == wanted
    assert "masked_spec_embed" not in found.weights["Wav2VecBertEncoder"]
    residuals: dict[str, Any] = {
        "feed_forward_residual_weights": [1.25, 0.75],
        "rope_parameters": {"rope_theta": 500.0},
    }
    folder = write_folder(tmp_path / "lasr", "lasr", _of_encoder("lasr", **residuals))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"sampling_rate": 8000, "win_length": 200, "n_fft": 256})
    )
    found = read_hugging_face(folder)
    encoder = found.config["LasrEncoder"]
    assert (encoder["feed_forward_residual_weights"], encoder["rope_theta"]) == ([1.25, 0.75], 500.0)
    assert (encoder["conv_kernel_size"], encoder["batch_norm_momentum"]) == (7, 0.01)
    features = found.config["AudioToKaldiFbankPreprocessor"]
    assert (features["sample_rate"], features["n_window_size"], features["log_zero_guard_value"]) == (8000, 200, 1e-5)
    folder = write_folder(tmp_path / "granite", "granite")
    (folder / "preprocessor_config.json").write_text(json.dumps({"feature_extractor": {"logmel_floor_db": 6.0}}))
    assert read_hugging_face(folder).config["AudioToMelDeltasPreprocessor"]["floor"] == 6.0


def test_a_folder_without_the_vector_of_masked_frames_has_zeros(tmp_path: Path) -> None:
    state = state_of("wav2vec2-bert")
    del state["wav2vec2_bert.masked_spec_embed"]
    encoder: Any = load_model(write_folder(tmp_path / "small", state=state)).modules.encoder
    assert not encoder.masked_spec_embed.any()


@pytest.mark.parametrize("name", ["with an adapter", "lasr"])
def test_a_model_folder_transcribes_alike_and_aligns(tmp_path: Path, name: str) -> None:
    model = load_model(write_folder(tmp_path / "small", name))
    model.save(tmp_path / "made", licence="MIT")
    again = load_model(tmp_path / "made")
    (first,), (second,) = (each.transcribe([signal_of().numpy()], sample_rate=RATE) for each in (model, again))
    assert first == second
    text = "EAT NO" if name in CHARACTERS else "one two"
    (aligned,) = model.align([signal_of().numpy()], [text], sample_rate=RATE)
    assert [word.text for word in aligned.segments[0].words] == text.split()


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_file_of_it_has_the_same_texts(tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnxruntime")
    model = load_model(write_folder(tmp_path / "small", name))
    export_onnx(model, tmp_path / "m.onnx")  # compares numbers and texts of several lengths
    recordings = [signal_of(seconds).numpy() for seconds in (1.3, 0.7)]
    written = OnnxModel(tmp_path / "m.onnx").transcribe(recordings, audio_rate=RATE).transcripts
    wanted = [each.text for each in model.transcribe(recordings, sample_rate=RATE)]
    assert [each.text for each in written if each] == wanted


def _of_encoder(name: str, **changes: Any) -> dict[str, Any]:
    return {"encoder_config": {**config_of(name)["encoder_config"], **changes}}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "wav2vec2-bert",
            {"position_embeddings_type": "rotary"},
            "config.json.position_embeddings_type: a setting that is not known here: got rotary, wanted relative_key",
        ),
        ("wav2vec2-bert", {"use_intermediate_ffn_before_adapter": True}, "adapter: a setting that is not known here"),
        ("wav2vec2-bert", {"adapter_stride": 4}, "config.json.adapter_stride: a setting that is not known here: got 4"),
        ("wav2vec2-bert", {"output_hidden_size": 8}, "output_hidden_size: a setting that is not known here: got 8, w"),
        ("wav2vec2-bert", {"hidden_size": "many"}, "Wav2VecBertEncoder.hidden_size"),
        ("wav2vec2-bert", {"num_hidden_layers": 1}, "does not fit Wav2VecBertEncoder: unexpected: layers.1."),
        ("wav2vec2-bert", {"add_adapter": True}, "does not fit Wav2VecBertEncoder: missing: adapter.0."),
        ("wav2vec2-bert", {"pad_token_id": 99}, "pad_token_id: it is no output of the CTC head: got 99"),
        (
            "lasr",
            _of_encoder("lasr", subsampling_conv_stride=3),
            "subsampling_conv_stride: a setting that is not known",
        ),
        ("lasr", _of_encoder("lasr", num_key_value_heads=1), "num_key_value_heads: a setting that is not known here"),
        (
            "lasr",
            _of_encoder("lasr", rope_parameters={"rope_type": "yarn"}),
            "encoder_config.rope_parameters.rope_type: a setting that is not known here: got yarn, wanted default",
        ),
        ("lasr", _of_encoder("lasr", rope_parameters=[1]), "encoder_config.rope_parameters: the value cannot be used"),
        ("lasr", _of_encoder("lasr", hidden_size=0), "encoder_config.hidden_size: the value cannot be used: got 0"),
        ("lasr", _of_encoder("lasr", conv_residual_weights=[1, 2, 3]), "LasrEncoder.conv_residual_weights"),
        ("granite", _of_encoder("granite", head_dim=4), "encoder_config.head_dim: a setting that is not known here"),
        ("granite", _of_encoder("granite", subsample_layers=["a"]), "GraniteSpeechEncoder.subsample_layers"),
        ("granite", _of_encoder("granite", vocab_size=5), "different: out.weight is (26, 16), the module has (5, 16)"),
        ("granite", {"encoder_config": None}, "does not fit GraniteSpeechEncoder"),
    ],
)
def test_a_configuration_that_is_not_read_is_one_line(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        load_model(write_folder(tmp_path / "small", name, changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        (
            "wav2vec2-bert",
            "preprocessor_config.json",
            {"stride": 1},
            "features' settings.stride: a setting that is not",
        ),
        ("lasr", "preprocessor_config.json", {"n_fft": 1024}, "features' settings.n_fft: a setting that is not known"),
        ("lasr", "preprocessor_config.json", {"hop_length": "x"}, "hop_length: the value cannot be used: got 'x'"),
        ("granite", "preprocessor_config.json", {"delta_win_length": 5}, "delta_win_length: a setting that is not"),
        ("granite", "tokenizer.json", None, r"small: the folder lacks a file: got no tokenizer.json"),
        (
            "granite",
            "tokenizer.json",
            {**tokenizer_with_special_tokens(), "decoder": {"type": "ByteLevel"}},
            "tokenizer.json: its pieces of bytes cannot be used: got ",
        ),
        ("granite", "tokenizer.json", {"added_tokens": 3, "model": []}, "tokenizer.json: model.type"),
        (
            "granite",
            "tokenizer.json",
            {"added_tokens": [{"special": True, "content": [], "id": []}], "model": {"unk_token": {}}},
            "tokenizer.json: model.type",
        ),
    ],
)
def test_a_file_that_is_not_read_is_one_line(tmp_path: Path, name: str, file: str, content: Any, message: str) -> None:
    folder = write_folder(tmp_path / "small", name)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(json.dumps(content))
    with pytest.raises((CheckpointError, ConfigError), match=re.escape(message)) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        (
            "wav2vec2-bert",
            "wav2vec2_bert.feature_projection.projection.bias",
            "different: feature_projection.projectio",
        ),
        ("lasr", "encoder.layers.0.conv.depthwise_conv.weight", "different: layers.0.conv.depthwise_conv.weight is"),
        ("granite", "encoder.layers.0.self_attn.rel_pos_emb.weight", "layers.0.self_attn.distance_embedding.weight is"),
        ("granite", "encoder.out.bias", "the weights of the CTC head do not fit each other: got 0 and"),
    ],
)
def test_weights_of_other_sizes_are_one_line(tmp_path: Path, name: str, key: str, message: str) -> None:
    folder = write_folder(tmp_path / "small", name, state={**state_of(name), key: torch.zeros(())})
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "body"), [("wav2vec2-bert", "wav2vec2_bert."), ("lasr", "encoder.")])
def test_a_model_without_a_head_is_one_line(tmp_path: Path, name: str, body: str) -> None:
    state = {key: tensor for key, tensor in state_of(name).items() if key.startswith(body)}
    folder = write_folder(tmp_path / "body", name, {"architectures": ["SomeModel"]})
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="body: the model has no CTC head, so it writes no texts: got SomeModel"):
        read_hugging_face(folder)


def with_byte_pairs(folder: Path, **changes: Any) -> tuple[Path, list[str]]:
    """A folder of LASR whose pieces are of bytes, behind a blank and the end of a text; and these pieces."""
    pieces, merges = pieces_and_merges()
    special = ["<pad>", "</s>"]
    vocabulary = {piece: number for number, piece in enumerate([*special, *pieces])}
    content = {
        "added_tokens": [{"id": vocabulary[text], "content": text, "special": True} for text in special],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [*map(list, merges)]},
        **changes,
    }
    state = state_of("lasr")
    of_head = {key: tensor for key, tensor in state.items() if key.startswith("ctc_head.")}
    torch.manual_seed(0)
    for key, tensor in of_head.items():
        state[key] = torch.randn(len(vocabulary), *tensor.shape[1:]) * (4 if tensor.dim() > 1 else 0)
    write_folder(folder, "lasr", {"vocab_size": len(vocabulary)}, state)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder, pieces


def test_pieces_of_bytes_write_the_texts_of_their_bytes_and_cut_them(tmp_path: Path) -> None:
    folder, pieces = with_byte_pairs(tmp_path / "small")
    model = load_model(folder)
    tokenizer = small_byte_pairs()
    assert model.recipe.tokenizer == tokenizer
    signal = signal_of(SECONDS)
    best = torch.unique_consecutive(log_probs_of(model, signal).argmax(1)).tolist()
    ids = [i for i in best if i < len(pieces)]
    (found,) = model.transcribe([signal.numpy()], RATE, cutting=None)
    assert found.text == " ".join(text_written(ids, tokenizer).split())
    assert len(ids) > 5
    assert model.recipe.tokenizer.ids_of("the cat, 你好") == tokenizer.ids_of("the cat, 你好")


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}},
        {"normalizer": {"type": "Lowercase"}},
    ],
)
def test_a_file_that_cuts_texts_otherwise_is_told_and_its_pieces_are_read(
    tmp_path: Path, changes: dict[str, Any], caplog
) -> None:
    folder, _ = with_byte_pairs(tmp_path / "small")
    plain = read_hugging_face(folder).tokenizer
    assert "GPT-2" not in caplog.text
    assert read_hugging_face(with_byte_pairs(folder, **changes)[0]).tokenizer == plain
    assert "tokenizer.json: it cuts texts otherwise than GPT-2. Texts of training and scoring are cut" in caplog.text
