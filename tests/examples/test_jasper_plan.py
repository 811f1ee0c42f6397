"""jasper.py --plan: what will be run, before any audio is read."""

import re
from typing import Any

import pytest
from toys.tone_corpus import ASR, read_manifest, run_script, write_manifest

import nemo_asr

TRANSCRIBERS = sorted(
    config
    for config in (ASR / "configs").glob("*.yaml")
    if "AudioToSpeechLabelDataLayer" not in config.read_text()  # of a classifier: test_classify.py trains each
)


@pytest.fixture
def garbage(corpus, tmp_path):
    """A manifest whose audio files are there, and no audio."""
    (tmp_path / "garbage.wav").write_bytes(b"no audio" * 100)
    lines = read_manifest(corpus / "train.json")
    write_manifest(tmp_path / "train.json", [{**line, "audio_filepath": "garbage.wav"} for line in lines])
    return "train.json"


def plan(*args):
    finished = run_script("jasper.py", *args, "--plan")
    assert finished.code == 0, finished.err
    return finished.out


def test_all_dags_their_shapes_and_the_schedule_are_printed_and_saved_and_no_audio_is_read(
    garbage, corpus, tmp_path, monkeypatch
):
    def read(*_, **__):
        raise AssertionError("audio was read")

    monkeypatch.setattr("nemo_asr.data.dataset.read_audio", read)
    printed = plan(
        *("--model_config", corpus / "tones.yaml", "--train_dataset", garbage, "--eval_datasets", garbage),
        *("--num_epochs", 10, "--batch_size", 5, "--iter_per_step", 2, "--lr", 0.5, "--work_dir", "runs"),
    )
    assert "training: 5 nodes, 3,941 parameters" in printed
    assert "evaluation_train: 6 nodes, 3,941 parameters" in printed
    assert "B samples -> B 32 T" in printed
    assert re.search(r"JasperEncoder +B 32 T -> B 64 T/2 +3,616", printed)
    assert re.search(r"log_probs +<- \[3\] output +B T/2 5  Logprobs", printed)
    assert "2 steps an epoch, 20 steps in all" in printed
    assert "learning rate 0.5 at step 0, 0.397 at step 6, 0.137 at step 13, 0.00308 at step 19" in printed
    saved = {path.name: path.read_text() for path in (tmp_path / "runs/Jasper").iterdir()}
    assert saved.keys() == {".nemo_lite_outputs", "plan.txt", "training.svg", "evaluation_train.svg"}
    assert saved["plan.txt"].strip() in printed
    assert "JasperEncoder" in saved["training.svg"]


def test_a_file_of_the_users_is_not_replaced_by_a_plan(corpus, tmp_path):
    (tmp_path / "runs/Jasper").mkdir(parents=True)
    (tmp_path / "runs/Jasper/training.svg").write_text("mine")
    arguments = ["--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json", "--max_steps", 3]
    refused = run_script("jasper.py", *arguments, "--plan", "--work_dir", "runs")
    told = "training.svg: the file was not written by nemo-lite plan; move it away, or choose another folder"
    assert (refused.code, told in refused.err) == (2, True)
    assert (tmp_path / "runs/Jasper/training.svg").read_text() == "mine"


@pytest.mark.parametrize("policy", ["WarmupPolicy", "InverseSquareRootAnnealing", "SquareAnnealing"])
def test_the_policy_and_its_warm_up_show_in_the_schedule(policy, corpus):
    arguments = ["--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json", "--max_steps", 30]
    rates = re.compile(r"learning rate (\S+) at step 0, (\S+) at step 10, (\S+) at step 20, (\S+) at step 29")
    first, *then = map(float, rates.search(plan(*arguments, "--lr_policy", policy, "--warmup_steps", 4)).groups())
    assert first == pytest.approx(0.02 / 5)
    assert then == sorted(then, reverse=True)
    assert policy == "WarmupPolicy" or then[0] > then[-1]


def test_a_plan_counts_without_the_texts_that_do_not_fit(corpus, tmp_path):
    lines = read_manifest(corpus / "train.json")
    write_manifest(tmp_path / "long.json", [{**line, "text": "abc" * 30} for line in lines[:2]] + lines[2:])
    printed = plan(
        *("--model_config", corpus / "tones.yaml", "--train_dataset", "long.json"),
        *("--num_epochs", 1, "--batch_size", 1),
    )
    assert "10 steps an epoch, 10 steps in all" in printed


def test_the_plan_of_a_large_model_draws_no_weights(corpus, tmp_path, monkeypatch):
    models: list[Any] = []
    make = nemo_asr.Recipe.model

    def recording(self, **options):
        model = make(self, **options)
        models.append(model.encoder)
        return model

    monkeypatch.setattr(nemo_asr.Recipe, "model", recording)
    lines = [{**line, "text": "ab"} for line in read_manifest(corpus / "train.json")]
    write_manifest(tmp_path / "train.json", lines)
    printed = plan(
        *("--model_config", ASR / "configs" / "jasper10x5dr.yaml", "--train_dataset", "train.json"),
        *("--num_epochs", 1, "--batch_size", 2),
    )
    assert {parameter.device.type for parameter in models[0].parameters()} == {"meta"}
    assert re.search(r"JasperEncoder +B 64 T -> B 1024 T/2 +332,602,624", printed)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("config", TRANSCRIBERS, ids=lambda config: config.stem)
def test_every_configuration_of_a_transcriber_that_is_shipped_has_a_plan(config, corpus, tmp_path):
    labels = ["a"] if "\nlabels: auto" in config.read_text() else nemo_asr.load_recipe(config).labels
    texts = "".join(label for label in labels if label.strip())[:1]
    write_manifest(tmp_path / "one.json", [{**read_manifest(corpus / "train.json")[0], "text": texts}])
    assert "1 step in all" in plan("--model_config", config, "--train_dataset", "one.json", "--max_steps", 1)


def test_a_learning_rate_of_a_module_that_is_not_there_is_told_as_training_tells_it(corpus):
    finished = run_script(
        *("jasper.py", "--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json", "--plan"),
        *("--max_steps", 3, "--module_lr", "JasperEncodr=0.1"),
    )
    assert finished.code == 2
    assert '--module_lr: module "JasperEncodr" is not known; known: ' in finished.err
    assert "(did you mean JasperEncoder?)" in finished.err


def test_the_weight_of_a_set_is_no_fault_of_the_configuration(corpus):
    sets = f"{corpus / 'train.json'}:0,{corpus / 'dev.json'}:1"
    finished = run_script(
        *("jasper.py", "--model_config", corpus / "tones.yaml", "--train_dataset", sets, "--plan", "--max_steps", 3)
    )
    assert finished.code == 2
    assert "train.json:0: a set's weight, behind the colon, is out of range: got '0', wanted" in finished.err
    assert "tones.yaml" not in finished.err


def test_a_key_of_another_toolkit_names_the_option(corpus, tmp_path):
    keys = "accumulate_grad_batches: 4\nlog_every_n_steps: 100\n"
    (tmp_path / "lightning.yaml").write_text((corpus / "tones.yaml").read_text() + keys)
    finished = run_script(
        *("jasper.py", "--model_config", "lightning.yaml", "--train_dataset", corpus / "train.json", "--plan"),
        *("--max_steps", 3),
    )
    assert finished.code == 2
    assert re.search(
        r"accumulate_grad_batches is no key of a model; the command line has it: --iter_per_step", finished.err
    )
    assert re.search(r"log_every_n_steps is no key of a model; the command line has it: --log_freq", finished.err)
