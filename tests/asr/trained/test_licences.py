"""Licences of weights: which are known to allow commercial use, and what becomes of them in fine-tuning."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from toys.tone_corpus import CONFIG, make_corpus, run_subcommand

import nemo_asr
from nemo_asr.commands.cli.models import main as models
from nemo_asr.tasks.recipe import recipe_from_text
from nemo_asr.trained.folder import CARD, read_card
from nemo_asr.trained.licences import COMMERCIAL, licence_of, require_commercial
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite.base.errors import UsageError


def written(folder: Path, licence: str) -> Path:
    recipe = recipe_from_text(CONFIG, "model.yaml")
    TrainedModel("made", recipe, recipe.model(), describe(recipe)).save(folder, licence=licence)
    return folder


@pytest.mark.parametrize("licence", [*COMMERCIAL, "cc-by-4.0", " mit "])
def test_licences_that_allow_commercial_use_pass(licence: str) -> None:
    require_commercial(licence, "model")


@pytest.mark.parametrize("licence", ["CC-BY-NC-4.0", "", "research only", "CC-BY"])
def test_others_and_none_do_not(licence: str) -> None:
    got = licence or "not said"
    told = f"model: the licence is not known to allow commercial use: got {got}, wanted one of Apache-2.0"
    with pytest.raises(UsageError, match=told):
        require_commercial(licence, "model")


def test_models_show_exits_with_1_where_commercial_use_is_required_and_not_known(tmp_path: Path, capsys) -> None:
    free, bound = written(tmp_path / "free", "MIT"), written(tmp_path / "bound", "CC-BY-NC-4.0")
    models(["show", str(free), "--require", "commercial"])
    models(["show", str(bound)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        models(["show", str(bound), "--require", "commercial"])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert "licence      CC-BY-NC-4.0" in said.out
    assert f"{bound}: the licence is not known to allow commercial use: got CC-BY-NC-4.0" in said.err


def test_a_model_that_starts_from_another_one_has_its_licence(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    bound = written(tmp_path / "bound", "CC-BY-NC-4.0")
    trained = run_subcommand(
        *("train", "--init_from", bound, "--train_dataset", tmp_path / "train.json", "--max_steps", 1),
        *("--batch_size", 2, "--work_dir", tmp_path / "runs", "--exp_name", "tuned"),
    )
    assert trained.code == 0, trained.err
    assert read_card(tmp_path / "runs" / "tuned" / "model" / CARD).licence == "CC-BY-NC-4.0"
    assert nemo_asr.load_model(tmp_path / "runs" / "tuned").card.licence == "CC-BY-NC-4.0"


def test_a_model_that_is_not_there_or_says_nothing_has_none(tmp_path: Path) -> None:
    assert licence_of(tmp_path / "nothing") == ""
    assert licence_of(written(tmp_path / "said", "")) == ""
    assert msgspec.structs.asdict(read_card(tmp_path / "said" / CARD))["licence"] == ""
