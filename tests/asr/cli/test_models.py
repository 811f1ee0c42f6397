"""nemo-lite models: what a model is, and a model folder of checkpoints and of NeMo's weights."""

import json

import pytest
import torch
from toys.nemo_archives import LABELS, write_1
from toys.tone_corpus import CONFIG

import nemo_asr
from nemo_asr.cli.models import main
from nemo_asr.transcribe.model import TrainedModel, describe, trained_modules
from nemo_lite.errors import CheckpointError, UsageError


@pytest.fixture(name="model")
def _model(tmp_path):
    (tmp_path / "tones.yaml").write_text(CONFIG)
    recipe = nemo_asr.load_recipe(tmp_path / "tones.yaml")
    return TrainedModel("here", recipe, recipe.model(), describe(recipe))


def test_a_model_is_described(model, tmp_path, capsys):
    card = model.save(tmp_path / "model", licence="CC-BY-4.0")
    capsys.readouterr()
    main(["show", str(tmp_path / "model")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Tones, {tmp_path / 'model'}"
    assert "labels       4: ' ' a b c" in lines
    assert "audio        16000 Hz; 20 ms a frame of log-probabilities" in lines
    assert "weights      JasperEncoder: 3,810 numbers" in lines  # 3,616 parameters, and running statistics
    assert "licence      CC-BY-4.0" in lines
    files = [line for line in lines if line.startswith("file ")]
    assert len(files) == len(card.files) == 3
    assert all(file.name in line and file.sha256[:16] in line for file, line in zip(card.files, files, strict=True))


def test_the_card_is_printed_as_json(model, tmp_path, capsys):
    model.save(tmp_path / "model")
    capsys.readouterr()
    main(["show", str(tmp_path / "model"), "--json"])
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "model/model.json").read_text())


def test_a_damaged_model_is_refused(model, tmp_path):
    card = model.save(tmp_path / "model")
    path = tmp_path / "model" / card.files[-1].name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"the hash does not match that in model\.json"):
        main(["show", str(tmp_path / "model")])


def nemo_weights(model, folder):
    """Checkpoints as NeMo 0.x writes them."""
    folder.mkdir()
    for name, module in trained_modules(model.modules).items():
        torch.save(module.state_dict(), folder / f"{name}-STEP-7.pt")


def test_weights_of_nemo_become_a_model_folder(model, tmp_path, capsys):
    nemo_weights(model, tmp_path / "nemo")
    config = ["--model_config", str(tmp_path / "tones.yaml")]
    main(["convert", str(tmp_path / "nemo"), str(tmp_path / "made"), *config, "--licence", "MIT"])
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path / 'made'}: Tones, step 7 (epoch 0)"
    made = nemo_asr.load_model(tmp_path / "made")
    assert (made.card.licence, made.recipe.labels) == ("MIT", model.recipe.labels)
    mine, theirs = (trained_modules(each.modules)["JasperEncoder"].state_dict() for each in (model, made))
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_weights_without_a_configuration_need_one(model, tmp_path):
    nemo_weights(model, tmp_path / "nemo")
    with pytest.raises(CheckpointError, match=r"give the model's configuration as well \(--model_config\)"):
        main(["convert", str(tmp_path / "nemo"), str(tmp_path / "made")])
    assert not (tmp_path / "made").exists()


def test_a_model_that_is_there_stays(model, tmp_path):
    model.save(tmp_path / "model")
    with pytest.raises(UsageError, match=r"model: there is a model already; give another folder$"):
        main(["convert", str(tmp_path / "model"), str(tmp_path / "model")])


def test_a_file_of_nemo_is_shown_and_becomes_a_model_folder(tmp_path, capsys):
    write_1(tmp_path / "Small.nemo")
    main(["show", str(tmp_path / "Small.nemo")])
    assert "weights      JasperEncoder: " in capsys.readouterr().out
    main(["convert", str(tmp_path / "Small.nemo"), str(tmp_path / "folder"), "--licence", "as NVIDIA says"])
    assert f"{tmp_path / 'folder'}: Small, step 0" in capsys.readouterr().out
    card = nemo_asr.load_model(tmp_path / "folder").card
    assert (card.licence, card.labels) == ("as NVIDIA says", LABELS)


def test_a_file_that_is_no_archive_is_refused_in_one_line(tmp_path):
    (tmp_path / "m.nemo").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"m\.nemo: the \.nemo archive is no tar file, or a damaged one: got "):
        main(["convert", str(tmp_path / "m.nemo"), str(tmp_path / "folder")])
