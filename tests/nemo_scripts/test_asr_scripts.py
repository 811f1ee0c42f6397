"""NeMo scripts about speech data: loose manifests and configurations, and the parts below the modules."""

import pytest
from toys.manifests import make_set
from toys.nemo_alias import run_script

from nemo_asr.augmentation import perturbation_types


def test_a_script_with_a_loose_manifest_and_configuration_runs_and_is_warned(tmp_path, capsys):
    make_set(tmp_path, 3)
    names = run_script("lenient.py", [str(tmp_path)])
    assert names["sample_counts"] == [3360, 1920, 2400, 3360]
    assert names["text_lengths"] == [0, 0, 0, 2]
    assert names["num_trained"] == 1
    told = capsys.readouterr()
    assert "dropped 2 with a duration of 0 s or less" in told.out
    for warning in (
        "AudioToTextDataLayer: eval_batch_size is not an argument (did you mean batch_size?); it is left out",
        "AudioToMelSpectrogramPreprocessor: feat_type is not an argument",
        "JasperEncoder: jasper[0].seperable is not a key (did you mean separable?); it is left out",
        "optimizer novograd: warmup is not a parameter",
        "highfreq 9000 Hz is above half the sample rate",
        "training leaves these utterances out",
        "; evaluation scores their texts as they are",
    ):
        assert warning in told.err


def test_a_script_reads_perturbs_and_feeds_a_network_by_hand(tmp_path, monkeypatch):
    make_set(tmp_path, 3)
    monkeypatch.setitem(perturbation_types, "louder", perturbation_types["gain"])
    monkeypatch.delitem(perturbation_types, "louder")
    names = run_script("asr_parts.py", [str(tmp_path)])
    assert names["speakers"] == [None] * 3
    assert [one.text_tokens for one in names["utterances"]] == [[1, 2], [1, 2]]
    assert names["segment"].num_samples == 400
    assert names["ratio"] == pytest.approx(10, rel=1e-4)
    audio, lengths, tokens, _ = names["batch"]
    assert (audio.shape, lengths.tolist(), tokens.tolist()) == ((3, 3680), [3360, 3520, 3680], [[1, 2]] * 3)
    assert names["by_hand"].shape == (3, 16, 23)
    assert [value.shape for value in names["read"]] == [(3, 3680), (3,), (3, 2), (3,)]
    assert names["frame_counts"] == [(20, [20]), (10, [10]), (50, [50])]
