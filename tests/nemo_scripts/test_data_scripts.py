"""NeMo scripts over data at scale: tar shards, and features that Kaldi computed."""

import re

import pytest
from toys.kaldi_folders import make_folder
from toys.nemo_alias import run_script
from toys.tone_corpus import make_corpus

from nemo_asr.data.made_shards import make_shards

pytestmark = pytest.mark.slow  # a model is trained


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("tones"))


def test_a_script_trains_on_tar_shards_and_evaluates_on_them_and_on_loose_files(corpus, tmp_path, capsys):
    made = make_shards(str(corpus / "train.json"), tmp_path / "tarred", num_shards=3, shuffle=True)
    shards = str(tmp_path / "tarred/audio__OP_0..2_CL_.tar")
    arguments = ["--tars", shards, "--tarred_manifest", str(made.manifest)]
    run_script("tarred_training.py", [*arguments, "--dev_manifest", str(corpus / "dev.json")])
    told = capsys.readouterr().out
    assert "12 utterances to train on" in told
    rates = {tag: re.findall(rf"Evaluation WER {tag}: +(\S+)%", told)[-1] for tag in ("tarred", "loose")}
    assert rates == {"tarred": "0.00", "loose": "0.00"}


def test_a_script_trains_on_features_of_a_kaldi_folder(tmp_path, capsys):
    make_folder(tmp_path / "kaldi", speech=True)
    run_script("kaldi_features.py", ["--kaldi_dir", str(tmp_path / "kaldi")])
    assert re.findall(r"Evaluation WER kaldi: +(\S+)%", capsys.readouterr().out)[-1] == "0.00"
