"""Folders of transformers: a Parakeet's CTC head is read with its tokenizer; other folders are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from toys.hugging_face import config_of, state_of, tokenizer_of, write_folder
from toys.log_probs import log_probs_of
from toys.nemo_conformers import RATE, by_formula, signal_of, stored_cases, write_case
from toys.subwords import TEXTS, small_subwords

from nemo_asr.trained.hugging_face import read_hugging_face
from nemo_asr.trained.model import load_model
from nemo_lite.base.errors import CheckpointError, ConfigError

SENTENCES = [*TEXTS, "one thin mat", "nnn  the cat", "<noise> four"]


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_folder_has_the_pieces_of_its_tokenizer_and_cuts_texts_as_the_original(
    tmp_path: Path, algorithm: str
) -> None:
    found = read_hugging_face(write_folder(tmp_path / "small", algorithm))
    original = small_subwords(algorithm)
    assert found.tokenizer is not None
    assert list(found.tokenizer) == list(original)
    assert [found.tokenizer.ids_of(text) for text in SENTENCES] == [original.ids_of(text) for text in SENTENCES]
    assert found.versions == {"transformers": "5.23.0"}


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_texts_are_cut_as_the_package_tokenizers_cuts_them(algorithm: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_of(algorithm)))
    for text in SENTENCES[:-2]:  # it does not join spaces, and cuts words that the user defined out with them
        assert theirs.encode(text, add_special_tokens=False).ids == small_subwords(algorithm).ids_of(text)[0]


def test_the_log_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = write_folder(tmp_path / "small")
    theirs = transformers.ParakeetForCTC.from_pretrained(folder).eval()
    inputs = transformers.ParakeetFeatureExtractor.from_pretrained(folder)(signal_of().numpy(), sampling_rate=RATE)
    with torch.no_grad():
        wanted = theirs(**inputs).logits.log_softmax(-1)[0]
    found = log_probs_of(load_model(folder), signal_of())
    torch.testing.assert_close(found, wanted[: len(found)], rtol=1e-5, atol=1e-5)


def test_a_file_of_nvidia_and_a_folder_of_the_same_weights_give_the_same_numbers(tmp_path: Path) -> None:
    """The numbers of the file are compared with those of NVIDIA's classes in `test_nemo_conformers.py`."""
    shapes = dict(stored_cases()["fast conformer of 3.0"]["shapes"])
    num_labels = len(small_subwords("bpe"))
    shapes |= {"decoder.decoder_layers.0.weight": [num_labels + 1, 16, 1]}
    shapes |= {"decoder.decoder_layers.0.bias": [num_labels + 1]}
    head = {"_target_": "nemo.collections.asr.modules.ConvASRDecoder", "vocabulary": list(map(chr, range(97, 121)))}
    file = write_case(tmp_path / "m.nemo", "fast conformer of 3.0", by_formula(shapes), decoder=head)
    folder = write_folder(tmp_path / "small")
    found, wanted = (log_probs_of(load_model(place), signal_of()) for place in (folder, file))
    assert torch.equal(found, wanted)


def test_weights_in_several_files_and_a_blank_in_another_place_change_nothing(tmp_path: Path) -> None:
    whole, parts = write_folder(tmp_path / "whole"), write_folder(tmp_path / "parts")
    state = load_file(parts / "model.safetensors")
    num_labels = len(small_subwords("bpe"))
    order = torch.tensor([num_labels, *range(num_labels)])  # the blank comes first
    state |= {name: state[name][order] for name in ("ctc_head.weight", "ctc_head.bias")}
    names = sorted(state)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, own in shards.items():
        save_file({name: state[name].contiguous() for name in own}, parts / file, metadata={"format": "pt"})
    (parts / "model.safetensors").unlink()
    weight_map = {name: file for file, own in shards.items() for name in own}
    (parts / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (parts / "config.json").write_text(json.dumps({**config_of(num_labels), "pad_token_id": 0}))
    tokenizer = tokenizer_of("bpe")
    tokenizer["model"]["vocab"] = {piece: i + 1 for piece, i in tokenizer["model"]["vocab"].items()}
    tokenizer["added_tokens"] = [
        {**each, "id": 0 if each["content"] == "<pad>" else each["id"] + 1} for each in tokenizer["added_tokens"]
    ]
    (parts / "tokenizer.json").write_text(json.dumps(tokenizer))
    found, wanted = read_hugging_face(parts), read_hugging_face(whole)
    assert (found.tokenizer, len(found.files)) == (wanted.tokenizer, 5)
    for module, tensors in wanted.weights.items():
        assert all(torch.equal(tensor, found.weights[module][name]) for name, tensor in tensors.items())


def test_a_folder_becomes_a_model_folder_that_transcribes_alike(tmp_path: Path) -> None:
    model = load_model(write_folder(tmp_path / "small"))
    model.save(tmp_path / "made")
    again = load_model(tmp_path / "made")
    texts = [each.transcribe([signal_of().numpy()], sample_rate=RATE)[0].text for each in (model, again)]
    assert texts[0] == texts[1] != ""
    assert again.recipe.tokenizer == model.recipe.tokenizer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "moonshine"}, "type moonshine: its decoder is a Transformer that reads text, not a CTC head"),
        (
            {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            "type llama: a file of a language model, not of a model of speech",
        ),
        ({"model_type": "sew"}, "type sew: its encoder is none of those here"),
        (
            {"encoder_config": {"hidden_act": "relu"}},
            "encoder_config.hidden_act: a setting that is not known here: got relu",
        ),
        (
            {"encoder_config": {"convolution_bias": False}},
            "encoder_config.convolution_bias: a setting that is not known",
        ),
        (
            {"encoder_config": {"hidden_size": "many"}},
            "encoder_config.hidden_size: the value cannot be used: got 'many'",
        ),
        ({"encoder_config": {"hidden_size": 0}}, "encoder_config.hidden_size: the value cannot be used: got 0"),
        (
            {"encoder_config": {"hidden_size": 10, "intermediate_size": 32}},
            "intermediate_size is no multiple of hidden",
        ),
        (
            {"pad_token_id": 99},
            "pad_token_id: it is no output of the CTC head: got 99, wanted the blank's output, 0 to 24",
        ),
    ],
)
def test_a_folder_of_another_model_is_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_hugging_face(write_folder(tmp_path / "small", changes=changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_other_sizes_than_the_configuration_says_are_listed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small")
    config = config_of(24)
    config["encoder_config"]["num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match=r"small, ConformerEncoder: does not fit ConformerEncoder: unexpected: lay"
    ):
        load_model(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "[]", r"config\.json: the file holds no settings: wanted an object"),
        ("config.json", "{", r"config\.json: the file cannot be read: "),
        ("tokenizer.json", None, r"small: the folder lacks a file: got no tokenizer\.json"),
        (
            "tokenizer.json",
            '{"model": {"type": "WordLevel"}}',
            r"model\.type: the tokenizer is of another kind: got WordL",
        ),
        (
            "tokenizer.json",
            '{"model": {"type": "BPE", "vocab": {"a": 0}}}',
            r"^[^:]*: its tokenizer does not fit its decoder",
        ),
        (
            "tokenizer.json",
            '{"model": {"type": "Unigram", "vocab": [3]}}',
            r"tokenizer\.json: the tokenizer is damaged",
        ),
        ("model.safetensors", "no tensors", r"model\.safetensors: "),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, file: str, content: str | None, message: str) -> None:
    folder = write_folder(tmp_path / "small")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises((CheckpointError, ConfigError), match=message) as caught:
        read_hugging_face(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["../up.safetensors"], "a file of weights lies outside the folder: got "),
        (["model-2.safetensors"], r"the folder lacks a file: got no model-2\.safetensors"),
        ([], "the file lists no weights: wanted weight_map"),
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    folder = write_folder(tmp_path / "small")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        read_hugging_face(folder)


def test_weights_of_another_part_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small")
    save_file({**state_of(24), "joint.head.weight": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"its weights are of another kind of model: got joint\.head\.weight, wanted"
    ):
        read_hugging_face(folder)


def test_a_tokenizer_that_is_not_read_here_still_gives_the_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "small", "unigram")
    tokenizer = tokenizer_of("unigram")
    tokenizer["model"]["vocab"][5][0] = "a\u2581b"  # over two words
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = read_hugging_face(folder)
    assert (found.tokenizer, found.config["labels"][5]) == (None, "a\u2581b")
    assert "to train or score it add --set tokenizer=FILE" in capsys.readouterr().err
