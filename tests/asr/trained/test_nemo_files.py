"""`.nemo` files become recipes of ours and the weights of each module; others are refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toys.nemo_archives import BLOCKS, config_0, config_1, packed, write_0, write_1, write_tar
from toys.subwords import small_subwords

from nemo_asr import AudioToMelSpectrogramPreprocessor, JasperEncoder
from nemo_asr.compat.pretrained import ASRConvCTCModel
from nemo_asr.trained.model import load_model
from nemo_asr.trained.nemo_files import read_nemo
from nemo_lite.base.errors import CheckpointError, ConfigError


@pytest.mark.parametrize("write", [write_0, write_1])
def test_both_generations_give_a_recipe_and_all_weights(
    tmp_path: Path, write: Callable[[Path], dict[str, torch.nn.Module]]
) -> None:
    modules = write(tmp_path / "m.nemo")
    found = read_nemo(tmp_path / "m.nemo")
    assert found.files == (tmp_path / "m.nemo",)
    for name, module in modules.items():
        assert found.weights[name].keys() == module.state_dict().keys()
        assert all(torch.equal(value, module.state_dict()[key]) for key, value in found.weights[name].items())
    recipe = load_model(tmp_path / "m.nemo").recipe
    assert (recipe.labels, recipe.name) == ([" ", "a", "b", "c", "'"], "m")


@pytest.mark.parametrize("write", [write_0, write_1])
def test_a_file_of_nemo_keeps_nemos_numbers_in_bands_without_signal(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    write(tmp_path / "m.nemo")
    made = load_model(tmp_path / "m.nemo").modules.preprocessor
    assert isinstance(made, AudioToMelSpectrogramPreprocessor)
    assert made.std_floor == 0.0
    assert made.generation == ("nemo_0.11" if write is write_0 else "nemo_1.0")


@pytest.mark.parametrize(("version", "generation"), [(None, "nemo_1.0"), ("2.4.0", "nemo_1.0"), ("3.0.0", "nemo_2.5")])
def test_the_version_of_a_file_decides_on_its_frames(tmp_path: Path, version: str | None, generation: str) -> None:
    write_1(tmp_path / "m.nemo", nemo_version=version)
    model = ASRConvCTCModel.from_pretrained(str(tmp_path / "m.nemo"))
    assert model.preprocessor.generation == generation
    again = ASRConvCTCModel.from_pretrained(model.save_to(str(tmp_path / "again")))
    assert again.preprocessor.generation == generation


def test_a_file_of_ours_keeps_our_frames(tmp_path: Path) -> None:
    params = config_0()["init_params"]
    params["preprocessor_params"]["header"]["full_spec"] = "nemo_asr.AudioToMelSpectrogramPreprocessor"
    saved = ASRConvCTCModel(**params).save_to(str(tmp_path / "m"))
    assert ASRConvCTCModel.from_pretrained(saved).preprocessor.generation == "nemo_lite"


def test_pieces_of_bert_get_the_marks_of_sentencepiece(tmp_path: Path) -> None:
    write_1(tmp_path / "m.nemo", ["the", "##ing", "a"], citrinet=True, tokenizer="wpe")
    assert read_nemo(tmp_path / "m.nemo").config["labels"] == ["\u2581the", "ing", "\u2581a"]


def test_the_tokenizer_of_an_archive_comes_with_its_model(tmp_path: Path) -> None:
    subwords = small_subwords()
    write_1(tmp_path / "m.nemo", list(subwords), citrinet=True, tokenizer_model=subwords.model)
    model = load_model(tmp_path / "m.nemo")
    assert (model.recipe.tokenizer, model.card.labels) == (subwords, list(subwords))
    model.save(tmp_path / "made")
    again = load_model(tmp_path / "made")
    assert again.recipe.tokenizer is not None
    assert again.recipe.tokenizer.ids_of("one two") == subwords.ids_of("one two")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "b"], r"m\.nemo: its tokenizer does not fit its decoder: got 24 pieces, wanted 2, one for each output"),
        ([*small_subwords()[:-1], "zzz"], r"m\.nemo: a label is outside its tokenizer's vocabulary: got 'zzz'"),
        ([*small_subwords()[::-1]], r"m\.nemo: its labels are not its tokenizer's pieces: got 24 labels in another"),
    ],
)
def test_a_tokenizer_that_is_another_models_is_one_line(tmp_path: Path, labels: list[str], message: str) -> None:
    write_1(tmp_path / "m.nemo", labels, citrinet=True, tokenizer_model=small_subwords().model)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_nemo(tmp_path / "m.nemo")
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_is_not_read_is_told_and_the_model_transcribes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_1(tmp_path / "m.nemo", ["\u2581a", "b"], citrinet=True)
    assert load_model(tmp_path / "m.nemo").recipe.tokenizer is None
    assert "The model transcribes; to train or score it add --set tokenizer=FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nemo:../up.model", r"tokenizer\.model_path leads out of the archive: got nemo:\.\./up\.model"),
        ("nemo:/etc/passwd", r"tokenizer\.model_path leads out of the archive: got nemo:/etc/passwd"),
        ("nemo:1_other.model", r"m\.nemo: it has no 1_other\.model"),
    ],
)
def test_a_tokenizer_outside_the_archive_is_refused(tmp_path: Path, path: str, message: str) -> None:
    config = {**config_1(), "tokenizer": {"type": "bpe", "model_path": path}}
    members = {"model_config.yaml": json.dumps(config), "model_weights.ckpt": packed({})}
    with pytest.raises(CheckpointError, match=message):
        read_nemo(write_tar(tmp_path / "m.nemo", members))


def test_a_configuration_below_the_key_model_is_read(tmp_path: Path) -> None:
    members = {"model_config.yaml": json.dumps({"model": config_1()}), "model_weights.ckpt": packed({})}
    assert "JasperEncoder" in read_nemo(write_tar(tmp_path / "m.nemo", members)).config


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (
            "nemo.collections.asr.models.EncDecMultiTalkerRNNTBPEModel",
            "it takes speakers as a further input",
        ),
        ("nemo.collections.speechlm2.models.SALM", "a language model decodes it"),
        ("nemo.collections.nlp.models.TransformerLMModel", "a file of a language model, not of a model of speech"),
        ("my.Model", "its kind is not known here"),
    ],
)
def test_a_model_of_another_kind_is_one_line_with_the_reason(tmp_path: Path, target: str, reason: str) -> None:
    message = rf"{target.rpartition('.')[2]}: .*{reason}; read are EncDecCTCModel, EncDecCTCModelBPE"
    with pytest.raises(ConfigError, match=message) as caught:
        read_nemo(written(tmp_path, target=target))
    assert "\n" not in str(caught.value)


def written(tmp_path: Path, **changes: Any) -> Path:
    config = config_1()
    for key, value in changes.items():
        section, _, inner = key.partition("__")
        if inner:
            config[section] = {**config[section], inner: value}
        else:
            config[section] = value
    members = {"model_config.yaml": json.dumps(config), "model_weights.ckpt": packed({})}
    return write_tar(tmp_path / "m.nemo", members)


def test_keys_that_stand_for_others_are_resolved(tmp_path: Path) -> None:
    path = written(tmp_path, defaults={"act": "selu"}, encoder__activation="${defaults.act}")
    assert read_nemo(path).config["JasperEncoder"]["activation"] == "selu"


def test_a_future_context_of_blocks_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, encoder__jasper=[{**BLOCKS[0], "future_context": 1}])
    assert read_nemo(path).config["JasperEncoder"]["jasper"][0]["future_context"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"encoder__params": None, "encoder___target_": "nemo.collections.asr.modules.SqueezeformerEncoder"},
            "encoder is SqueezeformerEncoder, wanted ConvASREncoder or JasperEncoder or ConformerEncoder",
        ),
        ({"decoder": None}, "decoder is missing"),
        ({"decoder__vocabulary": None}, "decoder.vocabulary is missing, the list of the model's labels"),
        ({"nemo_version": "new"}, 'nemo_version is "new", wanted a version such as 2.5.0'),
        ({"preprocessor__exact_pad": True}, "preprocessor.exact_pad is true, which is not known here, wanted false"),
        ({"encoder__quantize": True}, "encoder.quantize is true, which is not known here, wanted false"),
        (
            {"encoder__jasper": [{**BLOCKS[0], "stride": [1], "dilation": [2], "future_context": 1}]},
            "a future_context of dilated convolutions is not read; wanted dilation 1",
        ),
        ({"preprocessor__pitch": 3}, "preprocessor.pitch is 3, which is not known here"),
        ({"tokenizer": {"type": "yttm"}}, 'tokenizer.type is "yttm", wanted bpe, wpe or agg'),
    ],
)
def test_models_of_other_kinds_are_refused_with_the_place(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_nemo(written(tmp_path, **changes))
    assert f"{message}" in str(caught.value)
    assert "m.nemo, model_config.yaml:1:" in str(caught.value)


def test_weights_of_a_part_that_no_ctc_model_has_are_refused(tmp_path: Path) -> None:
    members = {"model_config.yaml": json.dumps(config_1()), "model_weights.ckpt": packed({"joint.w": torch.ones(1)})}
    with pytest.raises(CheckpointError, match=r"its weights are of another kind of model: got joint\.w"):
        read_nemo(write_tar(tmp_path / "m.nemo", members))


def test_code_in_the_weights_never_runs(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "ran"), "w")

    members = {"model_config.yaml": json.dumps(config_1()), "model_weights.ckpt": packed({"encoder.w": Runs()})}  # type: ignore[dict-item]
    with pytest.raises(CheckpointError, match=r"m\.nemo, model_weights\.ckpt: .* which are never loaded"):
        read_nemo(write_tar(tmp_path / "m.nemo", members))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("scale", "is_told"), [(1.0, False), (1.01, True)])
def test_other_mel_filters_than_ours_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: float, is_told: bool
) -> None:
    write_1(tmp_path / "m.nemo", filter_scale=scale)
    read_nemo(tmp_path / "m.nemo")
    assert ("m.nemo: its mel filters are not those that its settings give here" in capsys.readouterr().err) == is_told


def test_a_subclass_that_an_export_left_behind_changes_nothing(tmp_path: Path) -> None:
    def constructor(self: JasperEncoder, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("made")

    left_behind = type(
        "JasperEncoder", (JasperEncoder,), {"__init__": constructor, "__module__": JasperEncoder.__module__}
    )
    write_1(tmp_path / "m.nemo")
    assert "JasperEncoder" in read_nemo(tmp_path / "m.nemo").weights
    assert left_behind in JasperEncoder.__subclasses__()
