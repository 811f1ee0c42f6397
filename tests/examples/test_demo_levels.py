"""The demo's model at each level of precision, to its error rate. It takes an hour, so it runs only when asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from toys.tone_corpus import ASR

from nemo_lite.core.tracking import read_metrics

ASKED = "NEMO_LITE_LONG_TESTS"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ASKED not in os.environ, reason=f"trains for about an hour: set {ASKED}=1"),
]
# The demo ends at 3.3 and 8.5 %; other types and other numbers of threads round otherwise. O3 loses small updates:
# after 8 epochs it was at 1.4 times the rate of O0.
HIGHEST_WER = {"val_seen_voices": 0.06, "val_unseen_voices": 0.20}
OF_O3 = 1.5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    pytest.importorskip("espeakng_loader")
    folder = tmp_path_factory.mktemp("synth")
    subprocess.run([sys.executable, "-m", "nemo_asr.corpora.synth", str(folder)], check=True)
    return folder


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_the_demos_model_reaches_its_error_rate_at_each_level(level, corpus, tmp_path):
    options = [
        *("--model_config", "demo", "--train_dataset", str(corpus / "train.json")),
        *("--eval_datasets", *(str(corpus / f"{name}.json") for name in HIGHEST_WER)),
        *("--num_epochs", "28", "--batch_size", "16", "--eval_batch_size", "64", "--eval_freq", "250"),
        *("--optimizer", "novograd", "--lr", "0.02", "--beta2", "0.5", "--warmup_steps", "100"),
        *("--placement", "CPU", "--amp_opt_level", level, "--work_dir", str(tmp_path), "--exp_name", level),
    ]
    subprocess.run([sys.executable, str(ASR / "jasper.py"), *options], check=True)
    records = list(read_metrics(tmp_path / level / "metrics.jsonl"))
    best = [record for record in records if record["kind"] == "model"][-1]["step"]
    rates = {r["set"]: r["wer"] for r in records if r["kind"] == "evaluation" and r["step"] == best}
    share = OF_O3 if level == "O3" else 1.0
    assert all(rates[name] <= share * highest for name, highest in HIGHEST_WER.items()), rates
