"""What models of other toolkits are for, beside transcribing: texts are aligned, training starts, a class holds one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile
import torch
from toys import hugging_face, nemo_conformers, wenet
from toys.nemo_conformers import RATE, signal_of
from toys.tone_corpus import run_script, write_manifest

import nemo_asr
from nemo_asr.compat.pretrained import ASRConvCTCModel, QuartzNet
from nemo_asr.models.conformer import ConformerEncoder
from nemo_asr.run.cli.align import main as align
from nemo_lite.base.errors import ModelNotFoundError

# By toolkit: a text that its model can spell, and the words of it.
TEXTS = {"NeMo": ("bad cab", ["bad", "cab"]), "Hugging Face": ("tea", ["tea"]), "WeNet": ("天地", ["天地"])}


def imported(toolkit: str, folder: Path) -> Path:
    if toolkit == "NeMo":
        return nemo_conformers.write_case(folder / "fast.nemo", "fast conformer of 3.0")
    if toolkit == "Hugging Face":
        return hugging_face.write_folder(folder / "parakeet")
    torch.manual_seed(0)
    return wenet.write_folder(folder / "aishell", wenet.Model())


def said(toolkit: str, folder: Path) -> Path:
    """A manifest of one recording."""
    soundfile.write(folder / "said.wav", signal_of(3.0).numpy(), RATE)
    line = {"audio_filepath": "said.wav", "duration": 3.0, "text": TEXTS[toolkit][0]}
    return Path(write_manifest(folder / "said.json", [line]))


@pytest.mark.slow
@pytest.mark.parametrize("toolkit", TEXTS)
def test_the_words_of_a_text_are_aligned(toolkit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, manifest = imported(toolkit, tmp_path), said(toolkit, tmp_path)
    assert align([str(path), str(manifest), "--placement", "CPU"]) == 0
    line = json.loads(capsys.readouterr().out)
    words = [word for segment in line["segments"] for word in segment["words"]]
    assert [word["text"] for word in words] == TEXTS[toolkit][1]
    assert all(0 <= word["start"] <= word["end"] <= 3.0 for word in words)


@pytest.mark.slow
@pytest.mark.parametrize("toolkit", TEXTS)
def test_training_starts_from_its_weights(toolkit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, manifest = imported(toolkit, tmp_path), said(toolkit, tmp_path)
    monkeypatch.chdir(tmp_path)
    options = ["--train_dataset", manifest, "--max_steps", 1, "--batch_size", 1, "--exp_name", "tuned"]
    finished = run_script("jasper.py", "--init_from", path, *options)
    assert finished.code == 0, finished.err
    assert f"Weights from {path}" in finished.out
    assert "JasperDecoderForCTC: all 2 tensors loaded" in finished.out
    assert "Saved checkpoint STEP-1 in tuned/checkpoints" in finished.out


def test_a_class_of_nemo_holds_the_conformer_of_a_file(tmp_path: Path) -> None:
    path = imported("NeMo", tmp_path)
    held, encoder = ASRConvCTCModel.from_pretrained(str(path)), nemo_asr.load_model(path).modules.encoder
    assert isinstance(encoder, ConformerEncoder)
    again = ASRConvCTCModel.from_pretrained(held.save_to(str(tmp_path / "again")))
    wanted = encoder.state_dict()
    for model in (held, again):
        state = model.encoder.state_dict()
        assert state.keys() == wanted.keys()
        assert all(torch.equal(state[name], tensor) for name, tensor in wanted.items())


def test_a_class_of_nemo_names_what_reads_folders(tmp_path: Path) -> None:
    folder = imported("Hugging Face", tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"there is no such model: got .*; read folders with nemo_asr\.load"):
        QuartzNet.from_pretrained(str(folder))
