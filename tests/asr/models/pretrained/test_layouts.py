"""Files of NeMo 0.11 and 1.x become the configuration of 0.11 and the weights of each module; others are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toys.nemo_archives import config_1, packed, write_0, write_1, write_tar

from nemo_asr import AudioToMelSpectrogramPreprocessor, JasperEncoder
from nemo_asr.models.pretrained import read_nemo
from nemo_lite.core.neural_module import NeuralModule
from nemo_lite.errors import CheckpointError, ConfigError


@pytest.mark.parametrize(("write", "model"), [(write_0, "QuartzNet"), (write_1, "ASRConvCTCModel")])
def test_both_generations_give_one_configuration_and_all_weights(
    tmp_path: Path, write: Callable[[Path], dict[str, torch.nn.Module]], model: str
) -> None:
    modules = write(tmp_path / "m.nemo")
    found = read_nemo(tmp_path / "m.nemo")
    assert found.class_name == model
    for name, module in modules.items():
        assert found.weights_of(name).keys() == module.state_dict().keys()
        assert all(torch.equal(value, module.state_dict()[key]) for key, value in found.weights_of(name).items())
    decoder = found.params["decoder_params"]["init_params"]
    assert decoder == {"feat_in": 16, "num_classes": 5, "vocabulary": [" ", "a", "b", "c", "'"]}


@pytest.mark.parametrize("write", [write_0, write_1])
def test_a_file_of_nemo_keeps_nemos_numbers_in_bands_without_signal(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    write(tmp_path / "m.nemo")
    made = NeuralModule.deserialize(read_nemo(tmp_path / "m.nemo").params["preprocessor_params"])
    assert isinstance(made, AudioToMelSpectrogramPreprocessor)
    assert made.std_floor == 0.0


def test_pieces_of_bert_get_the_marks_of_sentencepiece(tmp_path: Path) -> None:
    write_1(tmp_path / "m.nemo", ["the", "##ing", "a"], citrinet=True, tokenizer="wpe")
    found = read_nemo(tmp_path / "m.nemo").params["decoder_params"]["init_params"]["vocabulary"]
    assert found == ["\u2581the", "ing", "\u2581a"]


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
    assert read_nemo(path).params["encoder_params"]["init_params"]["activation"] == "selu"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"encoder__params": None, "encoder___target_": "nemo.collections.asr.modules.ConformerEncoder"},
            "encoder is ConformerEncoder, wanted ConvASREncoder or JasperEncoder",
        ),
        ({"decoder": None}, "decoder is missing"),
        ({"decoder__vocabulary": None}, "decoder.vocabulary is missing, the list of the model's labels"),
        ({"encoder__quantize": True}, "encoder.quantize is true, which is not known here, wanted false"),
        ({"preprocessor__pitch": 3}, "preprocessor.pitch is 3, which is not known here"),
        ({"tokenizer": {"type": "agg"}}, 'tokenizer.type is "agg", wanted bpe or wpe: its pieces are not known here'),
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
