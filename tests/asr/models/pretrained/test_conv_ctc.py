"""ASRConvCTCModel, QuartzNet, JasperNet: from files, with new labels, saved again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from toys.nemo_archives import LABELS, config_0, write_0, write_1

from nemo_asr.models.pretrained import ASRConvCTCModel, JasperNet, QuartzNet
from nemo_lite.errors import CheckpointError


def test_each_class_lists_its_published_models() -> None:
    names = [[each.pretrained_model_name for each in cls.list_pretrained_models()] for cls in (QuartzNet, JasperNet)]
    assert names == [["QuartzNet15x5-En", "QuartzNet15x5-Zh"], ["JasperNet10x5-En"]]
    assert len(ASRConvCTCModel.list_pretrained_models()) == 3
    assert all(each.location.startswith("https://api.ngc.nvidia.com/") for each in QuartzNet.list_pretrained_models())


def test_a_file_of_0_11_gives_the_class_that_it_names_with_its_weights(tmp_path: Path) -> None:
    modules = write_0(tmp_path / "m.nemo")
    model = ASRConvCTCModel.from_pretrained(str(tmp_path / "m.nemo"))
    assert (type(model), model.vocabulary) == (QuartzNet, LABELS)
    assert model.num_weights == sum(each.numel() for module in modules.values() for each in module.parameters())
    assert [str(module) for module in model.modules] == [
        "AudioToMelSpectrogramPreprocessor",
        "SpectrogramAugmentation",
        "JasperEncoder",
        "JasperDecoderForCTC",
    ]
    assert type(JasperNet.from_pretrained(str(tmp_path / "m.nemo"))) is JasperNet
    for name, module in modules.items():
        loaded = model.modules_with_weights()[name].state_dict()
        assert all(torch.equal(value, loaded[key]) for key, value in module.state_dict().items())


def test_new_labels_get_a_new_decoder_which_is_saved_with_the_model(tmp_path: Path) -> None:
    modules = write_1(tmp_path / "m.nemo")
    model = ASRConvCTCModel.from_pretrained(str(tmp_path / "m.nemo"), new_vocab=["x", "y"])
    again = ASRConvCTCModel.from_pretrained(model.save_to(str(tmp_path / "again")))
    for each in (model, again):
        assert each.vocabulary == ["x", "y"]
        assert torch.equal(
            each.encoder.encoder[0].mconv[0].conv.weight, modules["JasperEncoder"].encoder[0].mconv[0].conv.weight
        )  # type: ignore[union-attr,index]
    assert torch.equal(again.decoder.decoder_layers[0].weight, model.decoder.decoder_layers[0].weight)


def test_labels_that_nobody_gave_are_none_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    params = config_0()["init_params"]
    del params["decoder_params"]["init_params"]["vocabulary"], params["spec_augment_params"]
    model = ASRConvCTCModel(**params)
    assert (model.vocabulary, model.spec_augmentation) == (None, None)
    assert "ASRConvCTCModel: its decoder does not know its labels" in capsys.readouterr().err


def test_weights_that_do_not_fit_are_named_with_the_file_and_the_module(tmp_path: Path) -> None:
    model = ASRConvCTCModel(**config_0()["init_params"])
    model.decoder = type(model.decoder)(feat_in=16, num_classes=9)
    path = model.save_to(str(tmp_path / "m"))
    with pytest.raises(
        CheckpointError, match=r"m\.nemo, JasperDecoderForCTC: does not fit JasperDecoderForCTC: different:"
    ):
        ASRConvCTCModel.from_pretrained(path)
