"""nemo-lite eval --certify: transcripts that depend on how a model is run are found."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import torch
from toys.tone_corpus import run_subcommand
from toys.tone_model import STREAMING, stored_tones

from nemo_asr.commands.cli.eval import EvalParser
from nemo_asr.run.transcribe.inputs import recordings_of
from nemo_asr.trained.folder import read_card
from nemo_asr.trained.invariance import certificate_table, certify
from nemo_lite.base.errors import UsageError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certified")
    model = stored_tones(folder, STREAMING)
    lines = [json.loads(line) for name in ("dev", "train") for line in (folder / f"{name}.json").open()]
    return model, folder, recordings_of([str(folder / line["audio_filepath"]) for line in lines])


@pytest.fixture
def model(trained):
    return trained[0]


@contextmanager
def broken(model, change):
    """What its encoder gives is changed: by a function of that, and of the features (B, D, T) and their lengths."""

    def hook(module, args, kwargs, outputs):
        return change(outputs[0], kwargs["audio_signal"], kwargs["length"]), *outputs[1:]

    handle = model.modules.encoder.register_forward_hook(hook, with_kwargs=True)
    yield
    handle.remove()


def found(certificate):
    return {setting.name.split()[-1]: setting.differing for setting in certificate.settings}


def test_a_sound_model_has_no_difference_in_any_way(model, trained):
    certificate, differences = certify(model, "all", trained[2])
    assert differences == []
    assert set(found(certificate).values()) == {0}
    assert certificate.num_ways == 7
    assert certificate.utterances == len(trained[2]) == 16
    assert (certificate.device, certificate.precision, certificate.torch) == ("cpu", "O0", torch.__version__)
    assert "| in windows | 0 of 16 |" in certificate_table(certificate)


def test_a_stale_value_is_found(model, trained):
    kept = [torch.zeros(1, 1, 1)]

    def stale(encoded, features, length):
        kept.append(encoded.mean((0, 2), keepdim=True))
        return encoded + 9 * kept[-2]  # what the batch before has left

    with broken(model, stale):
        certificate, differences = certify(model, "all", trained[2])
    assert found(certificate)["again"]
    assert found(certificate)["order"]
    assert {difference.setting for difference in differences} >= {"alone again", "in another order"}
    assert 'alone "' in str(differences[0])


def test_padding_that_leaks_is_found_and_nothing_else(model, trained):
    def leaking(encoded, features, length):
        padding = (features.shape[2] - length).clamp(min=0)[:, None, None]
        return torch.where(padding > 20, encoded.flip(1), encoded)

    with broken(model, leaking):
        counts = found(certify(model, "all", trained[2])[0])
    assert counts["longest"]
    assert counts["again"] == counts["windows"] == 0


@pytest.mark.slow
def test_the_certificate_is_in_the_card_and_a_difference_ends_the_command(trained, tmp_path, monkeypatch, capsys):
    model, folder, _ = trained
    model.save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    words = ["model", "--eval_datasets", folder / "dev.json", "--certify", "--placement", "CPU", "--no-report"]
    for _ in range(2):
        done = run_subcommand("eval", *words)
        assert done.code == 0, done.err
    (certificate,) = read_card(tmp_path / "model/model.json").certificates
    assert (certificate.set, certificate.utterances, certificate.differing) == ("dev", 4, 0)
    assert "The certificate is in model/model.json" in done.out
    assert "certificate  4 of dev in 7 ways: equal" in run_subcommand("models", "show", "model").out
    monkeypatch.setattr("nemo_asr.trained.invariance._Ways._padded", lambda self: [("a", (), 0.0)] * 4)
    failed = run_subcommand("eval", *words)
    assert failed.code == 2
    assert "transcripts depend on how the model is run: got 4 transcripts are others, such as beside" in failed.err
    assert read_card(tmp_path / "model/model.json").certificates[0].differing == 4


def test_two_models_and_cut_recordings_are_refused(capsys):
    for option in (["--segments", "energy"], ["B", "--compare"]):
        with pytest.raises(SystemExit):
            EvalParser().parse_args(["A", *option, "--eval_datasets", "dev.json", "--certify"])
        assert "--certify hears one model, and recordings as they are" in capsys.readouterr().err


def test_a_set_without_recordings_is_refused(model):
    with pytest.raises(UsageError, match="a certificate needs recordings"):
        certify(model, "none", [])
