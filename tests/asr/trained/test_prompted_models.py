"""Canary and Cohere Transcribe say what transformers, and NVIDIA's classes, find for them."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toys import hugging_face, nemo_prompted, prompted_models
from toys.nemo_conformers import RATE, signal_of
from toys.nemo_source import needs_nemo

from nemo_asr.commands.cli.models import main as models
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.attention import ENCODED
from nemo_asr.run.text.labels import text_of
from nemo_asr.tasks.family import search_of
from nemo_asr.trained.hugging_face import read_hugging_face
from nemo_asr.trained.model import TrainedModel, import_model, load_model, tell_prompt
from nemo_asr.trained.nemo_files import read_nemo
from nemo_lite.base.errors import CheckpointError, ConfigError, UsageError

END = 3  # the id in files


def encoded_by(model: TrainedModel) -> tuple[Tensor, Tensor]:
    """Frames (1, D, T) of the signal, and their number."""
    modules: dict[str, Any] = dict(model.modules.modules)
    signal = signal_of()
    with torch.no_grad():
        features, lengths = modules["preprocessor"](input_signal=signal[None], length=torch.tensor([len(signal)]))
        encoded, num_frames = modules["encoder"](audio_signal=features, length=lengths)
    return encoded, num_frames


def log_probs_of(model: TrainedModel, text: Sequence[int]) -> Tensor:
    """Of each label of a text and behind it: (U + 1, labels and end)."""
    encoded, num_frames = encoded_by(model)
    decoder: Any = model.modules.others["attention"]
    with torch.no_grad():
        found: Tensor = decoder(
            encoded=encoded, labels=torch.tensor([text]), num_frames=num_frames, num_labels=torch.tensor([len(text)])
        )
    return found[0, :, : len(model.card.labels) + 1]


def tell(model: TrainedModel, prompt: Mapping[str, Any]) -> None:
    """Set what a case says, and else what models say by default."""
    tell_prompt(
        model,
        Namespace(
            prompt_language=prompt.get("language", "en"),
            target_language=prompt.get("target_language"),
            punctuation="on" if prompt.get("punctuation", True) else "off",
        ),
    )


def own_ids(ids: Sequence[int], labels: Sequence[int]) -> list[int]:
    """Ids of a file as they are here; those of special labels, which no text has, are left out."""
    return [labels.index(i) for i in ids if i in labels]


# Folders of transformers.


def labels_of_folder() -> list[int]:
    return [i for i, piece in enumerate(prompted_models.pieces()) if piece not in prompted_models.SPECIAL]


@pytest.mark.parametrize("name", prompted_models.CASES)
def test_a_folder_has_the_numbers_of_transformers_and_the_texts_of_generate(tmp_path: Path, name: str) -> None:
    wanted, labels = prompted_models.stored_cases()[name], labels_of_folder()
    model = load_model(prompted_models.write_folder(tmp_path / "small", name))
    encoded, _ = encoded_by(model)
    torch.testing.assert_close(encoded[0].T, torch.tensor(wanted["frames"]), rtol=0, atol=2e-5)
    found = log_probs_of(model, own_ids(prompted_models.TEXT, labels))
    # CPUs round otherwise: 3.2e-5 was seen, where values reach 30.
    torch.testing.assert_close(found, torch.tensor(wanted["log_probs"])[:, [*labels, END]], rtol=0, atol=5e-5)
    assert len({tuple(ids) for ids in wanted["texts"].values()}) > 1
    for prompt, ids in wanted["texts"].items():
        tell(model, prompted_models.PROMPTS[prompt])
        (transcript,) = model.transcribe([signal_of().numpy()], sample_rate=RATE, cutting=None)
        assert transcript.text == text_of(own_ids(ids, labels), model.card.labels) != ""


@pytest.mark.parametrize("name", prompted_models.CASES)
def test_the_stored_numbers_are_those_of_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    made, stored = prompted_models.transformers_case(name), prompted_models.stored_cases()[name]
    for key in ("frames", "log_probs"):
        torch.testing.assert_close(torch.tensor(made.pop(key)), torch.tensor(stored.pop(key)), rtol=0, atol=2e-5)
    assert made == stored


def test_an_imported_model_says_the_same(tmp_path: Path) -> None:
    folder = prompted_models.write_folder(tmp_path / "small", "canary")
    texts = [
        model.transcribe([signal_of().numpy()], sample_rate=RATE, cutting=None)[0].text
        for model in (
            load_model(folder),
            import_model(folder, tmp_path / "imported"),
            load_model(tmp_path / "imported"),
        )
    ]
    assert texts[0] == texts[1] == texts[2] != ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"decoder_config": {"num_key_value_heads": 4, "hidden_size": 16}},
            "num_key_value_heads: a setting that is not",
        ),
        ({"decoder_config": {"hidden_act": "tanh", "hidden_size": 16}}, "hidden_act: a setting that is not known here"),
        ({"decoder_config": {"hidden_size": 32}}, "the decoder has other channels than the encoder: got 32 and 16"),
        ({"decoder_config": {"hidden_size": "large"}}, "hidden_size: the value cannot be used: got 'large'"),
        ({"model_type": "parakeet_ctc"}, "its weights are of another kind of model: got model."),
    ],
)
def test_a_folder_that_cannot_be_read_is_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_hugging_face(prompted_models.write_folder(tmp_path / "small", "canary", changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_an_end_among_its_pieces_is_one_line(tmp_path: Path) -> None:
    folder = prompted_models.write_folder(tmp_path / "small", "canary")
    content = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(content.replace("<|endoftext|>", "<|stop|>"))
    with pytest.raises(CheckpointError, match=r"its tokenizer has no end of texts: wanted <\|endoftext\|>"):
        read_hugging_face(folder)


def test_weights_of_other_shapes_are_one_line(tmp_path: Path) -> None:
    state = prompted_models.state_of("canary", prompted_models.stored_cases()["canary"]["shapes"])
    state["model.decoder.norm.weight"] = torch.ones(3)
    folder = prompted_models.write_folder(tmp_path / "small", "canary", state=state)
    with pytest.raises(CheckpointError, match=r"layers\.after_norm\.weight"):
        load_model(folder)


# What models are told.


def test_a_language_that_the_model_does_not_know_is_one_line_with_those_it_knows(tmp_path: Path) -> None:
    model = load_model(prompted_models.write_folder(tmp_path / "small", "canary"))
    for told in (model.set_language, model.set_target_language):
        with pytest.raises(UsageError, match=r"does not know this language: got xx, wanted one of en, de, fr$"):
            told("xx")
    decoder: Any = model.modules.others["attention"]
    assert (decoder.prompt.language, decoder.prompt.target_language) == ("en", "en")


def test_a_model_without_a_prompt_names_what_it_does_not_take(tmp_path: Path) -> None:
    model = load_model(hugging_face.write_folder(tmp_path / "small"))
    with pytest.raises(UsageError, match=r"the model takes no language of texts: got de; leave it out"):
        model.set_target_language("de")
    with pytest.raises(UsageError, match=r"cannot be told whether to write punctuation: got off; leave it out"):
        model.set_punctuation(False)


def test_a_model_that_translates_by_its_languages_names_their_option_where_a_task_is_asked_for(tmp_path: Path) -> None:
    model = load_model(prompted_models.write_folder(tmp_path / "small", "canary"))
    with pytest.raises(UsageError, match=r"no tasks: got translate; say the language of the text instead: --target_l"):
        tell_prompt(model, Namespace(prompt_task="translate"))
    plain = load_model(hugging_face.write_folder(tmp_path / "plain"))
    with pytest.raises(UsageError, match=r"the model has no tasks: got translate; leave it out$"):
        plain.set_task("translate")


def test_segments_are_no_longer_than_the_model_was_trained_on(tmp_path: Path) -> None:
    model = load_model(prompted_models.write_folder(tmp_path / "small", "canary"))
    lengths: list[int] = []
    encoder: Any = model.modules.encoder
    encoder.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(int(kwargs["length"].max())), with_kwargs=True
    )
    model.transcribe([np.tile(signal_of().numpy(), 60)], sample_rate=RATE, batch_size=1)
    assert len(lengths) > 2
    assert max(lengths) <= 100 * 40  # frames of features


# Files of NVIDIA's.


def labels_of_file(name: str) -> list[int]:
    pieces = nemo_prompted.content_of(name)
    if nemo_prompted.CASES[name][0]:  # the first tokenizer is that of special labels
        return list(range(1 + len(prompted_models.SPECIAL), len(pieces)))
    return [i for i, piece in enumerate(pieces) if piece not in prompted_models.SPECIAL]


@pytest.mark.parametrize("name", nemo_prompted.CASES)
def test_a_file_has_the_numbers_of_nvidia_and_its_texts_greedily_and_with_a_beam(tmp_path: Path, name: str) -> None:
    wanted, labels = nemo_prompted.stored_cases()[name], labels_of_file(name)
    model = load_model(nemo_prompted.write_case(tmp_path / "small.nemo", name))
    assert model.card.labels == [nemo_prompted.content_of(name)[i] for i in labels]
    found = log_probs_of(model, own_ids(nemo_prompted.TEXT, labels))
    torch.testing.assert_close(found, torch.tensor(wanted["log_probs"])[:, [*labels, END]], rtol=0, atol=5e-5)
    states = {ENCODED: encoded_by(model)[0][0].T.numpy()}
    with_beam = SearchOptions(beam_size=nemo_prompted.BEAM)
    for prompt, texts in wanted["texts"].items():
        tell(model, nemo_prompted.PROMPTS[prompt])
        assert texts["beam"] != texts["greedy"]
        for kind, options in (("greedy", None), ("beam", with_beam)):
            search: Any = search_of(model.modules, model.card.labels, options)
            assert list(search.recognise(states).best.ids) == own_ids(texts[kind], labels)


@needs_nemo
@pytest.mark.parametrize("name", nemo_prompted.CASES)
def test_the_stored_numbers_are_those_of_nemo_source(name: str) -> None:
    made, stored = nemo_prompted.nvidia_case(name), nemo_prompted.stored_cases()[name]
    found, wanted = torch.tensor(made.pop("log_probs")), torch.tensor(stored.pop("log_probs"))
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)
    assert made == stored


def test_the_prompt_of_a_file_is_that_of_nvidia_and_begins_with_what_the_file_says(tmp_path: Path) -> None:
    slots = {"source_lang": "<|de|>", "target_lang": "en", "pnc": "no"}
    for name in nemo_prompted.CASES:
        file = nemo_prompted.write_case(
            tmp_path / f"{name}.nemo", name, prompt_defaults=[{"role": "user", "slots": slots}]
        )
        decoder: Any = load_model(file).modules.others["attention"]
        pieces = nemo_prompted.content_of(name)
        wanted = [pieces[i] for i in nemo_prompted.prompt(name, "de", "en", punctuation=False)]
        assert decoder.prompt.labels() == wanted
        assert decoder.prompt.languages == (["en", "de"] if name == "canary" else prompted_models.LANGUAGES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_format": "llama2"}, 'prompt_format is "llama2"; wanted canary2, or canary with a tokenizer for spec'),
        (
            {"transf_encoder": {"num_layers": 2}},
            "transf_encoder has layers, which are not read here, wanted num_layers",
        ),
        ({"transf_decoder": {"model_name": "bert"}}, "transf_decoder.config_dict is missing"),
        (
            {"transf_decoder": {"config_dict": {"num_layers": 1, "num_attention_heads": 2, "inner_size": 8}}},
            "transf_decoder.config_dict.pre_ln is false, wanted true",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_nemo(nemo_prompted.write_case(tmp_path / "small.nemo", "canary2", **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_another_kind_in_a_file_are_one_line(tmp_path: Path) -> None:
    state = nemo_prompted.state_of("canary2", nemo_prompted.stored_cases()["canary2"]["shapes"])
    state["transf_encoder.layers.0.weight"] = torch.ones(1)
    with pytest.raises(CheckpointError, match=r"of another kind of model: got transf_encoder\.layers\.0\.weight"):
        read_nemo(nemo_prompted.write_case(tmp_path / "small.nemo", "canary2", state=state))


def test_what_a_file_says_of_the_loss_is_that_of_fine_tuning(tmp_path: Path) -> None:
    loss = {"label_smoothing": 0.1, "pad_id": 2}
    config = read_nemo(nemo_prompted.write_case(tmp_path / "small.nemo", "canary2", loss=loss)).config
    assert config["AttentionLoss"] == {"smoothing": 0.1, "reduction": "mean_volume", "subtract_entropy": False}
    assert json.dumps(config["PromptedDecoder"])  # plain values


def test_models_show_tells_the_languages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models(["show", str(prompted_models.write_folder(tmp_path / "small", "canary"))])
    assert "languages    en, de, fr" in capsys.readouterr().out.splitlines()
