"""classify.py and classify_eval.py: training, evaluation, bad input; and three tasks on recordings of speech."""

import json
import re

import numpy as np
import pytest
from toys.spoken_digits import RATE, activity_sets, digit_sets, needs_digits, speaker_sets
from toys.tone_corpus import record, run_script, run_subcommand, write_manifest

CONFIG = """sample_rate: 16000
AudioToSpeechLabelDataLayer: {shuffle: false}
AudioToMelSpectrogramPreprocessor: {features: 32, n_fft: 512, dither: 0.0}
JasperEncoder:
  activation: relu
  jasper:
    - {filters: 16, repeat: 1, kernel: [11], stride: [2], dilation: [1], dropout: 0.0, residual: false, separable: true}
"""
SPEAKERS = "JasperDecoderForSpkrClass: {emb_sizes: '8,8'}\n"
PLAIN = ["--log_style", "plain"]


def make_tones(folder, name="train.json", times=4, **wrong):
    """Recordings of one tone each; its letter is the class."""
    lines = []
    for number, letter in enumerate("abc" * times):
        path = folder / f"{name}{number}.wav"
        lines.append(
            {"audio_filepath": str(path), "duration": record(path, letter * (2 + number % 2)), "label": letter}
        )
    lines[1] = {**lines[1], **wrong}
    return write_manifest(folder / name, lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tones")
    (made / "tones.yaml").write_text(CONFIG)
    (made / "speakers.yaml").write_text(CONFIG + SPEAKERS)
    make_tones(made)
    make_tones(made, "dev.json", times=2)
    return made


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def training(folder, config="tones.yaml", num_epochs=8):
    sets = ["--train_dataset", folder / "train.json", "--eval_datasets", folder / "dev.json"]
    steps = ["--num_epochs", num_epochs, "--batch_size", 4, "--optimizer", "adam_w", "--lr", 0.03]
    return ["--model_config", folder / config, *sets, *steps]


@pytest.mark.slow
def test_a_trained_classifier_tells_its_classes_and_is_evaluated_by_its_folder(folder, tmp_path):
    trained = run_subcommand("train", *training(folder), "--work_dir", "runs", *PLAIN)
    assert trained.code == 0, trained.err
    assert re.search(r"dev  ERROR 0\.0 %", trained.out)
    assert "Best model (ERROR 0.0 % [0.0 to 45.9] of dev" in trained.out
    assert "Evaluate: nemo-lite eval runs/Jasper --eval_datasets MANIFEST" in trained.out
    card = json.loads((tmp_path / "runs/Jasper/model/model.json").read_text())
    assert (card["task"], card["labels"], card["rates"][0]["error"]) == ("classification", ["a", "b", "c"], 0.0)

    done = run_subcommand("eval", "runs/Jasper", "--eval_datasets", folder / "dev.json", "--out", "results")
    assert done.code == 0, done.err
    assert "dev: accuracy 100.00% (0 errors in 6 recordings)" in done.out
    assert re.search(
        r"^dev: 95 % interval of the accuracy: 54\.07% to 100\.00%, by resampling 6 ", done.out, re.MULTILINE
    )
    lines = [json.loads(line) for line in (tmp_path / "results/dev.classes.jsonl").read_text().splitlines()]
    assert [line["class"] for line in lines] == [line["found"] for line in lines] == list("abcabc")
    assert lines[0]["place"].endswith("dev.json:1")
    assert not (tmp_path / "results/dev.npy").exists()


@pytest.mark.slow
def test_a_model_of_speakers_also_gives_embeddings_and_its_equal_error_rate(folder, tmp_path):
    trained = run_script("classify.py", *training(folder, "speakers.yaml"), "--work_dir", "runs")
    assert trained.code == 0, trained.err
    assert "Evaluation Accuracy Top@1 dev: 100.0000" in trained.out
    assert "training_batch_top@1" in trained.out
    checkpoints = tmp_path / "runs/Jasper/checkpoints"
    done = run_subcommand("eval", checkpoints, "--eval_datasets", folder / "dev.json")
    assert done.code == 0, done.err
    assert re.search(r"dev: equal error rate 0\.00% at a cosine of \S+ \(all pairs of 6 recordings\)", done.out)
    assert np.load("results/Jasper/dev.npy").shape == (6, 8)
    assert np.load("results/Jasper/dev_labels.npy").tolist() == list("abcabc")


def test_a_class_that_is_not_in_labels_is_one_line_and_exit_code_2(folder, tmp_path):
    wrong = make_tones(tmp_path, "wrong.json", label="d")
    done = run_script("classify.py", *training(folder), "--eval_datasets", wrong)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f'{wrong}:2: class "d" is not in labels' in done.err
    assert "wanted a, b, c; add it to labels, or delete the line" in done.err


def test_the_plan_shows_what_would_be_trained(folder):
    done = run_subcommand("plan", *training(folder))
    assert done.code == 0, done.err
    assert "training: 5 nodes" in done.out
    assert "CrossEntropyLossNM" in done.out


def test_options_for_models_that_transcribe_are_refused(folder):
    done = run_script("classify.py", *training(folder), "--eval_metric", "cer")
    assert done.code == 2
    assert "--eval_metric is for models that transcribe; leave it out" in done.err


def test_the_script_for_texts_says_that_the_configuration_is_a_classifier_s(folder):
    config = folder / "with_labels.yaml"
    config.write_text(CONFIG + "labels: [a, b, c]\n")
    done = run_script("jasper.py", *training(folder, config.name))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "the configuration is for another task: got classification, wanted transcription" in done.err


# Shipped configurations on spoken digits: which set, epochs, size of batches.
TASKS = {
    "speech_commands": (digit_sets, 3, 32),
    "voice_activity": (activity_sets, 1, 32),
    "speakers": (speaker_sets, 1, 24),
}


@needs_digits
@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [pytest.param("speech_commands", marks=pytest.mark.long), "voice_activity", "speakers"]
)
def test_a_shipped_classifier_learns_from_real_recordings_and_knows_unseen_takes(config, tmp_path):
    make_sets, num_epochs, batch_size = TASKS[config]
    train, test = make_sets(tmp_path)
    how = ["--num_epochs", num_epochs, "--batch_size", batch_size, "--optimizer", "adam_w", "--lr", 0.006]
    rate = ["--set", f"sample_rate={RATE}"]
    data = ["--train_dataset", train, "--eval_datasets", test]
    trained = run_subcommand(
        "train", "--model_config", config, *data, *how, "--warmup_steps", 10, *rate, "--work_dir", "runs", *PLAIN
    )
    assert trained.code == 0, trained.err
    done = run_subcommand("eval", "runs/Jasper", "--eval_datasets", test, "--out", "results")
    assert done.code == 0, done.err
    accuracy = re.search(r"accuracy (\S+)%", done.out)
    assert accuracy is not None
    assert float(accuracy.group(1)) >= 97.0
    if config == "speakers":
        rate_of_errors = re.search(r"equal error rate (\S+)%", done.out)
        assert rate_of_errors is not None
        assert float(rate_of_errors.group(1)) <= 5.0
