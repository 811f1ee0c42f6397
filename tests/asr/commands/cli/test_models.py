"""nemo-lite models: what a model is, and a model folder of checkpoints and of NeMo's weights."""

import json

import pytest
import torch
from toys.hugging_face import write_folder
from toys.nemo_archives import LABELS, write_1
from toys.nemo_conformers import write_case
from toys.tone_corpus import CONFIG

import nemo_asr
from nemo_asr.commands.cli.models import main
from nemo_asr.published.catalogue import DOOR
from nemo_asr.trained.fine_tuning import init_from, recipe_of, task_of_model
from nemo_asr.trained.model import TrainedModel, describe, trained_modules
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.base.files import digest_of_file


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
    assert "audio        16000 Hz; 20 ms a frame" in lines
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


@pytest.mark.parametrize("words", [["calibrate", "model", "dev.json"], ["convert", "model", "folder"]])
def test_files_of_import_run_before_a_model_is_loaded(words, tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit(7)")
    with pytest.raises(SystemExit, match="7"):
        main([*words, "--import", str(tmp_path / "mine.py")])


def test_a_damaged_model_is_refused(model, tmp_path):
    card = model.save(tmp_path / "model")
    path = tmp_path / "model" / card.files[-1].name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="a file of the model is missing or damaged"):
        main(["show", str(tmp_path / "model")])


def nemo_weights(model, folder):
    """Checkpoints as NeMo 0.x writes them."""
    folder.mkdir()
    for name, module in trained_modules(model.modules).items():
        torch.save(module.state_dict(), folder / f"{name}-STEP-7.pt")


@pytest.mark.long
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


@pytest.mark.long
def test_other_toolkits_models_are_imported_beside_their_file_or_into_their_folder(tmp_path, capsys):
    file, folder = write_case(tmp_path / "fast.nemo", "fast conformer of 3.0"), write_folder(tmp_path / "parakeet")
    for source, made in ((file, tmp_path / "fast"), (folder, tmp_path / "parakeet/model")):
        main(["import", str(source), "--licence", "CC-BY-4.0"])
        card = nemo_asr.load_model(made).card
        digests = {name: digest_of_file(source / name if source.is_dir() else source) for name in card.sources}
        assert (card.licence, card.sources) == ("CC-BY-4.0", digests)
        assert {"config.json", "model.safetensors"} <= {*digests} or {*digests} == {"fast.nemo"}
    assert nemo_asr.load_model(folder).place == str(tmp_path / "parakeet/model")
    assert "features     80 a frame; frames of NeMo 2.5 and later" in capsys.readouterr().out


def test_what_is_shown_of_a_file_is_what_is_shown_of_its_folder(tmp_path, capsys):
    file = write_case(tmp_path / "fast.nemo", "hybrid with 128 bands")
    main(["import", str(file), "--to", str(tmp_path / "made")])
    capsys.readouterr()
    main(["show", str(file)])
    of_file = capsys.readouterr().out.splitlines()
    main(["show", str(tmp_path / "made")])
    of_folder = capsys.readouterr().out.splitlines()
    assert "features     128 a frame; frames of NeMo 1.0 to 2.4" in of_file
    assert "labels       6: ' ' a b c d '" in of_file
    assert {line for line in of_file if line.startswith(("labels", "audio", "features", "weights"))} <= {*of_folder}
    assert "source       fast.nemo" in of_file
    assert f"source       fast.nemo  SHA-256 {digest_of_file(file)[:16]}..." in of_folder
    assert of_file[-1] == "written by   NeMo 2.4.0"
    assert of_folder[-1].endswith(", NeMo 2.4.0")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.nemo", rf"none\.nemo: there is nothing to import: got nothing, wanted a \.nemo file, .*; {DOOR}"),
        (
            ".",
            rf"there is nothing to import: got a folder, wanted a \.nemo file, a folder of .*; {DOOR}",
        ),
    ],
)
def test_what_is_no_model_is_not_imported(tmp_path, path, message):
    with pytest.raises(CheckpointError, match=message):
        main(["import", str(tmp_path / path), "--to", str(tmp_path / "made")])
    assert not (tmp_path / "made").exists()


def test_an_import_leaves_the_model_that_is_there(tmp_path):
    file = write_case(tmp_path / "fast.nemo", "fast conformer of 3.0")
    main(["import", str(file)])
    with pytest.raises(UsageError, match=r"fast: there is a model already; give another folder: --to DIR$"):
        main(["import", str(file)])


def test_fine_tuning_takes_the_rows_of_a_files_labels_by_label(tmp_path):
    file = write_case(tmp_path / "fast.nemo", "fast conformer of 3.0")
    labels = ["d", "x", " ", "a"]
    recipe = recipe_of(file, [f"labels={json.dumps(labels)}"])
    model = recipe.model()
    done = init_from(file, model, recipe)
    assert (done.kept_labels, done.new_labels, done.left_labels) == (["d", " ", "a"], ["x"], ["b", "c", "'"])
    theirs = nemo_asr.load_model(file).modules.decoder.decoder_layers[0].weight
    mine = model.decoder.decoder_layers[0].weight
    assert all(torch.equal(mine[row], theirs[old]) for row, old in ((0, 4), (2, 0), (3, 1), (4, 6)))
    assert task_of_model(file) == task_of_model(write_folder(tmp_path / "parakeet")) == "transcription"


def test_a_file_that_is_no_archive_is_refused_in_one_line(tmp_path):
    (tmp_path / "m.nemo").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"m\.nemo: the \.nemo archive is no tar file, or a damaged one: got "):
        main(["convert", str(tmp_path / "m.nemo"), str(tmp_path / "folder")])
