"""A data layer of one's own, in one file and one line of registration, under the unchanged scripts."""

import json
import re
import shutil
import zipfile

import pytest
from toys import zip_data_layer
from toys.launched import run_as_script
from toys.ranks import on_ranks
from toys.tone_corpus import ASR, CONFIG, TEXTS, read_manifest, record, run_script

pytestmark = pytest.mark.slow  # the model is trained in a fixture

OWN = ("--import", zip_data_layer.__file__)
CONFIG_OF_ZIPS = CONFIG.replace("AudioToTextDataLayer", "ZipDataLayer").replace("shuffle: true", "bucketing: true")


@pytest.fixture(scope="module")
def zips(corpus, tmp_path_factory):
    """``train.zip`` and ``dev.zip`` with what the corpus' manifests hold, and the model's YAML over them."""
    folder = tmp_path_factory.mktemp("zips")
    for name in ("train", "dev"):
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            for number, line in enumerate(read_manifest(corpus / f"{name}.json")):
                archive.write(line["audio_filepath"], f"{number:02}.wav")
                archive.writestr(f"{number:02}.txt", line["text"])
    (folder / "zips.yaml").write_text(CONFIG_OF_ZIPS)
    (folder / "manifests.yaml").write_text(CONFIG.replace("shuffle: true", "bucketing: true"))
    return folder


def training(config, train, dev, *more):
    words = ["jasper.py", "--model_config", config, "--train_dataset", train, "--eval_datasets", dev, *more]
    words += ["--num_epochs", 40, "--eval_freq", 1000]
    return [*words, "--batch_size", 4, "--optimizer", "adam_w", "--lr", 0.02, "--log_freq", 1]


@pytest.fixture(scope="module")
def trained(zips, tmp_path_factory):
    """A run over the archives: options for the other scripts, and how it ended."""
    folder = tmp_path_factory.mktemp("trained")
    archives = zips / "train.zip", zips / "dev.zip"
    finished = run_script(*training(zips / "zips.yaml", *archives, "--checkpoint_dir", folder, *OWN))
    assert finished.code == 0, finished.err
    return ["--model_config", zips / "zips.yaml", "--load_dir", folder, *OWN], finished


@pytest.mark.long
def test_it_trains_to_the_losses_of_the_same_data_in_manifests(trained, zips, corpus):
    _, finished = trained
    manifests = corpus / "train.json", corpus / "dev.json"
    plain = run_script(*training(zips / "manifests.yaml", *manifests))
    assert plain.code == 0, plain.err
    assert finished.losses == plain.losses
    assert float(finished.losses[-1]) < 0.01 * float(finished.losses[0])
    assert re.findall(r"Evaluation WER dev: +(\S+)%", finished.out)[-1] == "0.00"


def test_it_is_planned_without_reading_audio(zips):
    archives = zips / "train.zip", zips / "dev.zip"
    finished = run_script(*training(zips / "zips.yaml", *archives, "--plan", "--work_dir", "runs", *OWN))
    assert finished.code == 0, finished.err
    assert "ZipDataLayer" in finished.out
    assert "3 steps an epoch, 120 steps in all" in finished.out


def test_it_is_evaluated_and_transcribed(trained, zips, tmp_path):
    options, _ = trained
    finished = run_script("jasper_eval.py", *options, "--eval_datasets", zips / "dev.zip", "--out", "out")
    assert finished.code == 0, finished.err
    assert "dev: WER 0.00% (0 insertions, 0 deletions, 0 substitutions in 4 words)" in finished.out
    rows = [json.loads(line) for line in (tmp_path / "out/dev.transcripts.jsonl").read_text().splitlines()]
    assert [(row["place"], row["reference"], row["hypothesis"]) for row in rows] == [
        (f"{zips / 'dev.zip'}: {number:02}", text, text) for number, text in enumerate(TEXTS[:4])
    ]
    record(tmp_path / "new.wav", "bac")
    finished = run_script("jasper_infer.py", *options, "new.wav")
    assert finished.out.splitlines()[-1] == "new.wav: bac", finished.err


def test_a_damaged_member_ends_training_on_two_processes_with_its_place(zips, tmp_path):
    archive = shutil.copy(zips / "train.zip", tmp_path / "bad.zip")
    with zipfile.ZipFile(archive) as members:
        start = members.getinfo("02.wav").header_offset
    with open(archive, "r+b") as file:
        file.seek(start + 1000)
        file.write(b"damaged")
    (tmp_path / "strict.yaml").write_text(CONFIG_OF_ZIPS.replace("train: {", "train: {max_corrupt: 0, "))
    words = [str(word) for word in training("strict.yaml", archive, zips / "dev.zip", *OWN)[1:]]
    ends = on_ranks(2, run_as_script, str(ASR / "jasper.py"), words)
    assert [end.code for end in ends] == [2, 2]
    told = "".join(end.err for end in ends)
    assert f"error: {archive}: 02: the archive cannot be read" in told
    assert "max_corrupt allows 0: mend the members, or raise max_corrupt" in told
