"""WeNet's train.yaml as a configuration here: its recipes are the shipped ones, and what is not known has its line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from toys.tone_corpus import make_corpus, run_script
from toys.wenet_recipes import conformer, small, u2pp

from nemo_asr.argparse import AsrArgParser
from nemo_asr.models.conformer import ConformerEncoder
from nemo_asr.options import policy_of
from nemo_asr.shipped import config_path
from nemo_asr.tasks.recipe import Recipe, labels_are_auto, load_recipe
from nemo_asr.trained.model import load_model
from nemo_asr.wenet_keys import KEYS, load_model_config
from nemo_lite.base.config import load_config
from nemo_lite.base.errors import CheckpointError, ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs"


def written(folder: Path, recipe: dict[str, Any], name: str = "train_conformer.yaml") -> Path:
    """A file of this recipe."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # as in nemo_lite.base.config
    with (folder / name).open("w") as file:
        yaml.dump(recipe, file)
    return folder / name


@pytest.mark.parametrize(
    ("recipe", "ours", "name"),
    [(conformer, "conformer_aishell", "ConformerAishell"), (u2pp, "u2pp_aishell", "U2ppAishell")],
)
def test_wenets_recipes_are_the_shipped_configurations(
    tmp_path: Path, recipe: Callable[[], dict[str, Any]], ours: str, name: str
) -> None:
    labels = "labels=[a, b]"
    theirs = load_recipe(written(tmp_path, recipe()), [labels, f"model={name}"])
    shipped = load_recipe(ours, [labels])
    assert theirs.difference(shipped) is None
    data, same = (each.config["AudioToTextDataLayer"].plain() for each in (theirs, shipped))
    assert (data["train"].pop("max_duration"), data["train"].pop("min_duration")) == (pytest.approx(409.6), 0.0)
    assert data == same


@pytest.mark.parametrize(("recipe", "ours"), [(conformer, "conformer_aishell"), (u2pp, "u2pp_aishell")])
def test_the_shipped_configurations_train_as_wenets_recipes(
    tmp_path: Path, recipe: Callable[[], dict[str, Any]], ours: str
) -> None:
    theirs, shipped = (vars(options(file)) for file in (written(tmp_path, recipe()), config_path(ours)))
    assert theirs.pop("model_config") != shipped.pop("model_config")
    assert theirs == shipped


def test_labels_are_those_of_the_training_texts_or_the_pieces_of_the_tokenizer(tmp_path: Path) -> None:
    assert labels_are_auto(written(tmp_path, conformer()))
    recipe = conformer(tokenizer="bpe")
    recipe["tokenizer_conf"]["bpe_path"] = "data/train_unigram5000.model"
    config = load_model_config(written(tmp_path, recipe))
    assert ("labels" in config, config["tokenizer"]) == (False, "data/train_unigram5000.model")


def load_labelled(file: Path) -> Recipe:
    """The recipe of the file, with labels."""
    return load_recipe(file, ["labels=[a, b]"])


def options(file: Path, *given: str) -> Any:
    """What a training with the file is asked to do."""
    parser = AsrArgParser(prog="jasper.py")
    return parser.parse_args(["--model_config", str(file), "--train_dataset", "t.json", *given])


def test_a_training_has_the_optimizer_the_schedule_and_the_batches_of_the_file(tmp_path: Path) -> None:
    found = options(written(tmp_path, conformer()))
    assert (found.optimizer, found.lr, found.weight_decay, found.grad_norm_clip) == ("adam", 0.002, 0.0, 5)
    assert (found.batch_size, found.iter_per_step, found.num_epochs, found.log_freq) == (16, 4, 240, 100)
    assert policy_of(found, 100_000)(0.002, 24_999, 0) == pytest.approx(0.002, rel=1e-12)


def test_what_the_command_line_has_wins_also_where_it_is_the_default(tmp_path: Path) -> None:
    file = written(tmp_path, conformer())
    given = ["--iter_per_step", "1", "--log_freq", "25", "--lr=0.02", "--batch_size", "8", "--num_epochs", "3"]
    found = options(file, *given, "--grad_norm_clip", "1")
    assert (found.iter_per_step, found.log_freq, found.lr, found.grad_norm_clip) == (1, 25, 0.02, 1)
    assert (found.batch_size, found.num_epochs) == (8, 3)
    by_steps = options(file, "--max_steps", "7", "--global_batch_size", "32", "--batch_per_step", "2")
    assert (by_steps.num_epochs, by_steps.max_steps, by_steps.iter_per_step, by_steps.batch_size) == (None, 7, 2, 16)


def test_what_a_file_leaves_out_is_as_in_wenet(tmp_path: Path) -> None:
    kept = {"encoder_conf": {"output_size": 64}, "dataset_conf": {"fbank_conf": {"num_mel_bins": 40}}}
    file = written(tmp_path, {**kept, "optim": "adam"})
    config = load_model_config(file)
    assert config["family"] == "ctc_attention"
    assert (config["ConformerEncoder"]["ff_expansion_factor"], config["ConformerEncoder"]["n_layers"]) == (32, 6)
    assert (config["AuxiliaryCTCLoss"]["weight"], config["AttentionLoss"]["smoothing"]) == (0.5, 0.0)
    assert config["AudioToTextDataLayer"]["train"]["max_duration"] == pytest.approx(102.4)
    found = options(file)
    assert (found.num_epochs, found.grad_norm_clip, found.log_freq, found.batch_size) == (100, 50.0, 10, 16)


def test_a_file_without_a_decoder_is_trained_by_ctc_alone(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path, conformer(decoder=None)), ["labels=[a, b]"])
    assert recipe.family == "ctc"
    assert {"TransformerDecoder", "AttentionLoss", "AuxiliaryCTCLoss"}.isdisjoint(recipe.config)


def of_wenetspeech(**of_batch: Any) -> dict[str, Any]:
    """What WeNet's recipe for WenetSpeech has beside those for AISHELL-1."""
    recipe = conformer(save_interval=1000)
    recipe["dataset_conf"] |= {"spec_trim": True, "spec_trim_conf": {"max_t": 30}}
    recipe["dataset_conf"]["filter_conf"] |= {"min_length": 10, "max_output_input_ratio": 0.25}
    recipe["dataset_conf"]["batch_conf"] = {
        "batch_type": "dynamic", "batch_size": 32, "max_frames_in_batch": 36000, **of_batch
    }  # fmt: skip
    return recipe


def test_dynamic_batches_hold_so_many_seconds(tmp_path: Path) -> None:
    """The batch size is that of the shortest utterances: the seconds decide."""
    file = written(tmp_path, of_wenetspeech())
    train = load_labelled(file).config["AudioToTextDataLayer"]["train"]
    assert (train["max_batch_seconds"], train["bucketing"]) == (360, True)
    found = options(file, "--eval_datasets", "dev.json")
    assert (found.batch_size, found.eval_batch_size, found.checkpoint_save_freq) == (3600, 32, 1000)
    given = options(file, "--eval_datasets", "dev.json", "--batch_size", "8", "--eval_batch_size", "4")
    assert (given.batch_size, given.eval_batch_size) == (8, 4)
    assert options(file).eval_batch_size is None
    recipe = of_wenetspeech()
    recipe["dataset_conf"]["filter_conf"]["min_length"] = "short"
    with pytest.raises(ConfigError, match=r'min_length is "short", wanted a number$'):
        load_model_config(written(tmp_path, recipe, "wrong.yaml"))
    static = written(tmp_path, of_wenetspeech(batch_type="static"), "static.yaml")
    assert "max_batch_seconds" not in load_labelled(static).config["AudioToTextDataLayer"]["train"]
    assert options(static).batch_size == 32


def test_texts_are_filtered_by_labels_a_second_and_tails_are_trimmed(tmp_path: Path) -> None:
    recipe = of_wenetspeech()
    train = load_labelled(written(tmp_path, recipe)).config["AudioToTextDataLayer"]["train"]
    assert [*train["augmentor"]] == ["speed", "trim_tail"]
    assert train["augmentor"]["trim_tail"].plain() == {"prob": 1.0, "max_frames": 30}
    assert ("min_label_rate" in train, train["max_label_rate"]) == (False, 25)
    recipe["dataset_conf"]["filter_conf"] |= {"min_output_input_ratio": 0.05, "max_output_input_ratio": 10.0}
    train = load_labelled(written(tmp_path, recipe)).config["AudioToTextDataLayer"]["train"]
    assert ("max_label_rate" in train, train["min_label_rate"]) == (False, 5)


@pytest.mark.parametrize(("input_layer", "factor"), [("conv2d", 4), ("conv2d6", 6), ("conv2d8", 8)])
def test_subsampling_has_the_factor_of_its_name(tmp_path: Path, input_layer: str, factor: int) -> None:
    recipe = conformer()
    recipe["encoder_conf"]["input_layer"] = input_layer
    encoder = load_labelled(written(tmp_path, recipe)).model(with_weights=False).encoder
    assert isinstance(encoder, ConformerEncoder)
    assert encoder.stream_delay().stride == factor


def test_all_that_is_not_known_is_named_at_once_with_its_line(tmp_path: Path) -> None:
    recipe = conformer(max_step=1000, encoder_conf=5, ctc_conf={"ctc_blank_id": 0, "lsm": 1})
    recipe["decoder_conf"]["num_block"] = 3
    recipe["dataset_conf"]["batch_conf"]["batch_type"] = "bucket"
    recipe["dataset_conf"] |= {"list_shuffle": False, "speed_perturb": "yes", "feats_type": "mfcc"}
    file = written(tmp_path, recipe)
    with pytest.raises(ConfigError) as refused:
        load_model_config(file)
    lines = file.read_text().splitlines()
    told = []
    for problem in refused.value.problems:
        place, _, text = problem.partition(": ")
        path, line, column = place.rsplit(":", 2)
        assert path == str(file)
        key = text.split(" is ")[0].rpartition(".")[2]
        assert lines[int(line) - 1][int(column) - 1 :].startswith(f"{key}:")
        told.append(text)
    assert told == [
        "encoder_conf is 5, which is not known here, wanted a mapping",
        "decoder_conf.num_block is 3, which is not known here (did you mean decoder_conf.num_blocks?)",
        "ctc_conf.lsm is 1, which is not known here",
        'dataset_conf.speed_perturb is "yes", wanted true or false',
        'dataset_conf.batch_conf.batch_type is "bucket", wanted "static" or "dynamic"',
        "dataset_conf.list_shuffle is false, wanted true",
        'dataset_conf.feats_type is "mfcc", wanted "fbank"',
        "max_step is 1000, which is not known here",
    ]


@pytest.mark.parametrize(
    ("section", "key", "value", "problem"),
    [
        ("encoder_conf", "attention_heads", "x", r'ConformerEncoder\.n_heads is "x", wanted int'),
        ("encoder_conf", "linear_units", 1000, r"encoder_conf\.linear_units is 1000, wanted a multiple of output_size"),
        ("encoder_conf", "linear_units", True, r"encoder_conf\.linear_units is true, wanted a whole number"),
        ("decoder_conf", "num_blocks", 0, r"TransformerDecoder\.num_blocks is 0, wanted int from 1"),
        ("model_conf", "ctc_weight", 3, r"AuxiliaryCTCLoss\.weight is 3, wanted float from 0"),
        ("cmvn_conf", "cmvn_file", 3, r"cmvn_conf\.cmvn_file is 3, wanted text"),
        ("optim_conf", "lr", "fast", r'optim_conf\.lr is "fast", wanted float from 0'),
        ("", "accum_grad", 0, r"accum_grad is 0, wanted int from 1"),
        ("", "grad_clip", [5], r"grad_clip is \[5\], wanted float above 0"),
        ("", "scheduler", "NoamHoldAnnealing", r'scheduler "NoamHoldAnnealing" is not known'),
    ],
)
def test_a_value_that_does_not_fit_has_the_place_of_wenets_key(
    tmp_path: Path, section: str, key: str, value: Any, problem: str
) -> None:
    recipe = conformer()
    (recipe[section] if section else recipe)[key] = value
    file = written(tmp_path, recipe)
    reads = options if problem.startswith(("optim", "accum", "grad", "scheduler")) else load_labelled
    with pytest.raises(ConfigError, match=rf"train_conformer\.yaml:\d+:\d+: {problem}") as refused:
        reads(file)
    line = re.search(r"yaml:(\d+):", str(refused.value))
    assert line
    assert file.read_text().splitlines()[int(line[1]) - 1].strip().startswith(f"{key}:")


def test_statistics_are_read_where_the_file_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = "data/train/global_cmvn"
    file = written(tmp_path, conformer())
    for _ in range(2):
        assert load_model_config(file)["AudioToKaldiFbankPreprocessor"]["normalize"] == "per_feature"
    assert (
        "".join(capsys.readouterr()).count(
            f"{named}, which {file} names, is not there: features are normalised over each"
        )
        == 1
    )
    (tmp_path / "run" / "data" / "train").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run")
    stored = {"mean_stat": [20.0] * 80, "var_stat": [80.0] * 80, "frame_num": 10}
    Path(named).write_text(json.dumps(stored))
    normalize = load_model_config(file)["AudioToKaldiFbankPreprocessor"]["normalize"]
    assert (normalize["fixed_mean"][:1], normalize["fixed_std"][:1]) == ([2.0], [2.0])
    Path(named).write_text("{}")
    with pytest.raises(CheckpointError, match="these are no CMVN statistics: got 'frame_num'"):
        load_model_config(file)


def test_a_file_of_ours_is_as_it_was() -> None:
    assert load_model_config("conformer_aishell") == load_config(config_path("conformer_aishell"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_docs_have_a_row_for_each_key(language: str) -> None:
    documented: list[str] = []
    section = ""
    for line in (DOCS / language / "wenet.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section = "".join(f"{name}." for name in re.findall(r"`([^`]+)`", line))
        elif line.startswith("| `"):
            documented += [section + key for key in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert sorted(documented) == sorted(KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conformer", "u2pp"])
def test_a_training_starts_from_the_file_and_a_set_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_corpus(tmp_path)
    written(tmp_path, small(conformer() if name == "conformer" else u2pp(), max_epoch=2, log_interval=1))
    finished = run_script("jasper.py", "--model_config", "train_conformer.yaml", "--train_dataset", "train.json")
    assert finished.code == 0, finished.err
    assert "Saved checkpoint STEP-2 in runs/Jasper/checkpoints" in finished.out
    trained = load_model(tmp_path / "runs/Jasper")
    assert (trained.recipe.family, set("abc") <= set(trained.recipe.labels)) == ("ctc_attention", True)
