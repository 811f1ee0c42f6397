"""A model of subwords from its manifest to its words: trained, saved, moved, gone on with, begun with other labels."""

from __future__ import annotations

import itertools
import json
import re
import shutil

import pytest
from toys.tone_corpus import CONFIG, Finished, record, run_script, run_subcommand, write_manifest

import nemo_asr
from nemo_asr.models.losses import ctc_frames_needed
from nemo_asr.run.text.subwords import load_subwords
from nemo_asr.trained.folder import read_model
from nemo_lite.backends.pytorch.checkpoint.folder import read_checkpoint
from nemo_lite.base.errors import CheckpointError, ConfigError, UsageError

TEXTS = ["cab ab", "ab cab bc", "bc", "cab bc ab", "ab bc", "bc cab", "cab", "ab ab cab", "bc ab", "cab cab bc"]
PIECES = 8
# Pieces are longer than letters: a frame has to see a whole word of half a second.
WITHOUT_LABELS = CONFIG.partition("labels:")[0].replace("kernel: [11]", "kernel: [51]")
LEARNS = ("--optimizer", "adam", "--lr", "0.02", "--batch_size", "5", "--num_epochs", "40", "--random_seed", "0")


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
    """A folder with the corpus, its tokenizers, the configuration and a trained run."""
    folder = tmp_path_factory.mktemp("subwords")
    lines = []
    for number, text in enumerate(TEXTS):
        seconds = record(folder / f"{number}.wav", text)
        lines.append({"audio_filepath": f"{number}.wav", "duration": seconds, "text": text})
    write_manifest(folder / "train.json", lines)
    make_tokenizer(folder, PIECES, "large.model")
    make_tokenizer(folder, PIECES - 1, "small.model")
    (folder / "tones.yaml").write_text(f"{WITHOUT_LABELS}tokenizer: large.model\n")
    done = train(folder, *LEARNS, "--exp_name", "first")
    assert done.code == 0, done.err
    return folder


def make_tokenizer(folder, size, name):
    words = ("data", "tokenizer", folder / "train.json", "--vocab_size", size, "--out", folder / name)
    done = run_subcommand(*words)
    assert done.code == 0, done.err
    assert f"{size} pieces (unigram)" in done.out


def train(folder, *options: object, config: object = "tones.yaml") -> Finished:
    data = ("--train_dataset", folder / "train.json", "--eval_datasets", folder / "train.json", "--eval_freq", 1000)
    return run_script(
        "jasper.py", "--model_config", folder / str(config), *data, "--work_dir", folder / "runs", *options
    )


@pytest.mark.slow
def test_training_learns_the_words_and_the_folder_works_in_another_place(run, tmp_path):
    moved = tmp_path / "model"
    shutil.copytree(run / "runs" / "first" / "model", moved)
    model = nemo_asr.load_model(moved)
    (rate,) = model.card.rates
    assert rate.wer is not None
    assert rate.wer < 0.2
    tokenizer = load_subwords(run / "large.model")
    assert model.card.labels == list(tokenizer)
    assert model.card.tokenizer is not None
    assert model.card.tokenizer.sha256 == tokenizer.sha256
    assert load_subwords(moved / model.card.tokenizer.name) == tokenizer
    heard = model.transcribe([run / f"{number}.wav" for number in range(len(TEXTS))])
    assert sum(one.text == text for one, text in zip(heard, TEXTS, strict=True)) >= 7
    whole = next(one for one, text in zip(heard, TEXTS, strict=True) if one.text == text and " " in text)
    assert [word.text for word in whole.words] == whole.text.split()
    assert all(word.start < word.end <= whole.duration for word in whole.words)
    assert all(a.end <= b.start + 1e-3 for a, b in zip(whole.words, whole.words[1:], strict=False))
    saved = model.save(tmp_path / "again")
    assert saved.tokenizer == model.card.tokenizer


@pytest.mark.slow
def test_eval_cuts_and_scores_texts_with_the_tokenizer_of_the_folder(run, tmp_path):
    moved = tmp_path / "model"
    shutil.copytree(run / "runs" / "first" / "model", moved)
    write_manifest(
        tmp_path / "dev.json",
        [{"audio_filepath": str(run / "0.wav"), "duration": 1.0, "text": "Cab  ab z"}],
    )
    done = run_subcommand("eval", "--load_dir", moved, "--eval_datasets", tmp_path / "dev.json", "--out", tmp_path)
    assert done.code == 0, done.err
    assert '1 character outside the vocabulary: "z" x1' in done.out + done.err


def test_a_damaged_tokenizer_in_the_folder_is_named(run, tmp_path):
    moved = tmp_path / "model"
    shutil.copytree(run / "runs" / "first" / "model", moved)
    (file,) = moved.glob("tokenizer-*.model")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{file.name}: a file of the model is missing or damaged"):
        nemo_asr.load_model(moved)
    file.unlink()
    with pytest.raises(CheckpointError, match=rf"{file.name}: .*got lacks"):
        nemo_asr.load_model(moved)


def test_checkpoints_carry_the_tokenizer(run):
    stored = read_model(run / "runs" / "first" / "checkpoints")
    assert stored.tokenizer == load_subwords(run / "large.model")
    found = read_checkpoint(run / "runs" / "first" / "checkpoints")
    assert json.loads(json.dumps(dict(found.about)))["model"]["tokenizer"]["sha256"] == stored.tokenizer.sha256
    assert nemo_asr.load_model(run / "runs" / "first" / "checkpoints").recipe.tokenizer == stored.tokenizer


@pytest.mark.slow
def test_a_tokenizer_that_is_not_the_models_is_one_line(run):
    folder = run / "runs" / "first" / "model"
    with pytest.raises(CheckpointError) as caught:
        nemo_asr.load_model(folder, overrides=[f"tokenizer={run / 'small.model'}"])
    assert "the labels are not the model's: got 7 labels" in str(caught.value)
    assert "--set tokenizer=" in str(caught.value)
    assert "\n" not in str(caught.value)
    resumed = train(run, *LEARNS, "--exp_name", "first", "--set", f"tokenizer={run / 'small.model'}")
    assert resumed.code == 2
    assert "the labels are not the model's" in resumed.err


@pytest.mark.long
@pytest.mark.slow
def test_another_vocabulary_takes_over_the_rows_of_equal_pieces(run):
    (run / "chars.yaml").write_text(f'{WITHOUT_LABELS}labels: [" ", "a", "b", "c"]\n')
    options = ("--init_from", run / "runs" / "first", "--max_steps", 1, "--batch_size", 5)
    done = train(run, *options, "--exp_name", "chars", config="chars.yaml")
    assert done.code == 0, done.err
    assert "labels: 4 kept with the blank (space a b c), 0 new, 4 left" in done.out + done.err
    wider = ("--init_from", run / "runs" / "first" / "model", "--set", f"tokenizer={run / 'small.model'}")
    done = train(run, *wider, "--max_steps", 1, "--batch_size", 5, "--exp_name", "small")
    assert done.code == 0, done.err
    assert re.search(r"labels: \d+ kept with the blank", done.out + done.err)


def test_a_callback_without_the_tokenizer_of_its_card_is_refused_before_training(run):
    recipe = nemo_asr.load_recipe(run / "tones.yaml")
    card, config = nemo_asr.describe(recipe), recipe.config.as_yaml()
    with pytest.raises(UsageError, match=r"not the one that the model's card names: wanted recipe\.tokenizer"):
        nemo_asr.BestModelCallback(run / "none", recipe.model(), card, config, {})


@pytest.mark.slow
def test_labels_beside_a_tokenizer_must_be_its_pieces(run):
    pieces = json.dumps(list(load_subwords(run / "large.model")))
    assert nemo_asr.load_recipe(run / "tones.yaml", [f"labels={pieces}"]).tokenizer is not None
    with pytest.raises(ConfigError) as caught:
        nemo_asr.load_recipe(run / "tones.yaml", ["labels=[a, b]"])
    assert str(caught.value) == (
        "--set labels=[a, b]: labels is not the 8 pieces of tokenizer (line 13); "
        "leave one of the two out (--set labels=null or --set tokenizer=null)"
    )


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("tokenizer=none.model", "tokenizer: none.model: the tokenizer cannot be opened (No such file"),
        ("tokenizer=3", "tokenizer is 3"),
        ("JasperDecoderForCTC.num_classes=4", "num_classes is 4, wanted 8"),
    ],
)
def test_a_configuration_whose_tokenizer_cannot_be_used_is_one_line(run, setting, told):
    with pytest.raises(ConfigError) as caught:
        nemo_asr.load_recipe(run / "tones.yaml", [setting])
    assert len(caught.value.problems) == 1
    assert told in str(caught.value)


def test_a_text_that_repeats_a_piece_needs_a_frame_more_for_each_repetition(run):
    write_manifest(run / "tight.json", [{"audio_filepath": "0.wav", "duration": 0.2, "text": "ab ab ab ab"}])
    layer = nemo_asr.load_recipe(run / "tones.yaml").data_layer(str(run / "tight.json"), training=True, batch_size=1)
    assert isinstance(layer, nemo_asr.AudioToTextDataLayer)
    subwords = load_subwords(run / "large.model")
    ids, _ = subwords.ids_of("ab ab ab ab")
    needed = len(ids) + sum(a == b for a, b in itertools.pairwise(ids))
    assert [each.needed for each in layer.infeasible(lambda samples: 1, ctc_frames_needed)] == [needed]
