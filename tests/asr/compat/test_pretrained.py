"""NeMo 0.11's classes of whole models: published ones, from files, with other labels."""

from __future__ import annotations

import io
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import torch
from toys.nemo_archives import LABELS, config_0, write_0, write_1

from nemo_asr.compat import pretrained as download
from nemo_asr.compat.pretrained import PUBLISHED, ASRConvCTCModel, JasperNet, QuartzNet, local_file
from nemo_lite.base.errors import CheckpointError, ModelNotFoundError

# Published models: found in the cache, downloaded when asked for, checked; a clear line without a network.


NAME = "QuartzNet15x5-En"


class Answer(io.BytesIO):
    """What a server answers, which knows no ranges."""

    status = 200

    def __init__(self, content: bytes, length: int) -> None:
        super().__init__(content)
        self.headers = Message()
        self.headers["Content-Length"] = str(length)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(download, "CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("nemo_asr.published.transfer.time.sleep", lambda seconds: None)
    return tmp_path / "cache" / "QuartzNet15x5-En-Base.nemo"


def answering(monkeypatch: pytest.MonkeyPatch, content: bytes, length: int) -> list[str]:
    asked: list[str] = []

    def answer(self: Any, url: str, headers: Any = None) -> Any:
        asked.append(url)
        return Answer(content, length)

    monkeypatch.setattr("nemo_asr.published.transfer.Transfer._open", answer)
    return asked


def test_a_model_is_downloaded_once_and_again_when_asked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_0(tmp_path / "server.nemo")
    content = (tmp_path / "server.nemo").read_bytes()
    asked = answering(monkeypatch, content, len(content))
    assert local_file(NAME, PUBLISHED) == local_file(NAME, PUBLISHED) == cache
    assert (asked, cache.read_bytes()) == ([PUBLISHED[NAME].location] * 2, content)
    local_file(NAME, PUBLISHED, refresh=True)
    assert len(asked) == 4  # of each the size, and the content
    assert "QuartzNet15x5-En-Base.nemo, SHA-256 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "length", "message"),
    [
        (b"half", 8, r'it cannot be downloaded: got "the connection broke off" from .*; download https://'),
        (b"<html>", 6, "the .nemo archive is no tar file"),
    ],
)
def test_what_is_no_whole_model_is_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, length: int, message: str
) -> None:
    answering(monkeypatch, content, length)
    with pytest.raises((CheckpointError, ModelNotFoundError), match=message):
        local_file(NAME, PUBLISHED)
    assert list(cache.parent.iterdir()) == []


def test_without_a_network_the_line_says_so_and_where_the_file_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("nemo_asr.published.transfer.Transfer._open", fail)
    message = (
        f"{NAME}: it cannot be downloaded: got .*Name or service not known.*; download https://api.ngc.nvidia.com/v2/"
    )
    with pytest.raises(FileNotFoundError, match=message) as caught:
        local_file(NAME, PUBLISHED)
    assert isinstance(caught.value, ModelNotFoundError)
    assert "\n" not in str(caught.value)


def test_another_name_is_answered_with_the_nearest(cache: Path) -> None:
    message = r'from_pretrained: there is no such model: got "QuartzNet15x5-Em" \(did you mean QuartzNet15x5-En\?\)'
    with pytest.raises(FileNotFoundError, match=message):
        local_file("QuartzNet15x5-Em", PUBLISHED)


# ASRConvCTCModel, QuartzNet, JasperNet: from files, with new labels, saved again.


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
