"""Transducers for sherpa-onnx and onnx-asr: the programs give the model's texts, where they are installed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from toys.random_models import CONFORMER, RATE, noise
from toys.random_transducers import (
    BIG_BLANKS,
    FEATURES,
    LSTM,
    ONE_LABEL,
    STATELESS,
    TDT,
    config_of,
    random_transducer,
)

from nemo_asr.decoding.transducer import TorchNetworks
from nemo_asr.export import runner_export
from nemo_asr.export.nemo_networks import Decoder, Joiner, by_index, settings_of, steps_of
from nemo_asr.export.onnx_asr_export import export_onnx_asr
from nemo_asr.export.runner_export import RunnerParts, greedy_texts
from nemo_asr.export.sherpa_export import export_sherpa, export_sherpa_stream
from nemo_asr.run.search.exported_transducer import TransducerSettings
from nemo_asr.run.search.transducer import best_choices
from nemo_lite.base.errors import UsageError

KINDS = {"RNN-T": ("", LSTM), "TDT": (TDT, LSTM), "big blanks": (BIG_BLANKS, STATELESS)}
NEMO = f"{FEATURES}, generation: nemo_2.5"
POVEY = f"{NEMO}, window: povey, highfreq: 7600"


def recordings():
    """50 short ones."""
    return [noise(0.3 + 0.0137 * number, number) for number in range(50)]


def texts_of(model, samples):
    return [" ".join(each.text.split()) for each in model.transcribe(samples, RATE, cutting=None)]


def heard(written, samples):
    """The program's texts."""
    texts = written.hear(samples, RATE)
    if texts is None:
        pytest.skip(f"{written.package} is not installed")
    return texts


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_asr_gives_the_texts_of_a_transducer(tmp_path, kind):
    model = random_transducer(tmp_path, config_of(*KINDS[kind], features=NEMO))
    written = export_onnx_asr(model, tmp_path / "asr")
    files = ["config.json", "decoder_joint-model.onnx", "encoder-model.onnx", "vocab.txt"]
    assert sorted(file.name for file in (tmp_path / "asr").iterdir()) == files
    config = json.loads((tmp_path / "asr" / "config.json").read_text())
    name = "nemo-conformer-rnnt" if kind == "RNN-T" else "nemo-conformer-tdt"
    wanted = {"model_type": name, "features_size": 80, "subsampling_factor": 4, "max_tokens_per_step": 10}
    assert config == wanted
    texts = texts_of(model, recordings())
    assert greedy_texts(model, recordings()) == texts
    assert heard(written, recordings()) == texts
    assert sum(map(bool, texts)) > 40


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sherpa_onnx_gives_the_texts_of_a_transducer_with_its_features(tmp_path, kind):
    joint, prediction = KINDS[kind]
    text = config_of(joint, prediction, features=POVEY)
    if kind != "RNN-T":
        text += "TransducerSearch: {max_symbols: 5}\n"  # as many as sherpa-onnx gives at a frame
    model = random_transducer(tmp_path, text)
    written = export_sherpa(model, tmp_path / "sherpa")
    assert not written.advice
    files = {path.name: path for path in (tmp_path / "sherpa").iterdir()}
    assert sorted(files) == ["decoder.onnx", "encoder.onnx", "joiner.onnx", "tokens.txt"]
    metadata = onnxruntime.InferenceSession(files["encoder.onnx"]).get_modelmeta().custom_metadata_map
    wanted = {"vocab_size": "4", "subsampling_factor": "4", "normalize_type": "", "pred_rnn_layers": "1"}
    assert {name: metadata[name] for name in wanted} == wanted
    assert ("tdt" in metadata["url"]) == (kind != "RNN-T")
    assert files["tokens.txt"].read_text(encoding="utf-8").endswith("c 3\n<blk> 4\n")
    assert "model_type='nemo_transducer'" in str(written)
    assert written.before == 80
    # Both ends of a recording have other features: here there is nothing to hear. The rest differs by rounding.
    samples = [np.pad(each, 1600) for each in recordings()]
    texts = texts_of(model, samples)
    got = heard(written, samples)
    assert sum(map(bool, texts)) > 40
    assert sum(text == other for text, other in zip(got, texts, strict=True)) >= 45


def streaming(joint=""):
    """The configuration of a conformer in chunks."""
    networks = "".join(f"{line}\n" for line in config_of(joint).splitlines() if line.startswith("RNNT"))
    conformer = CONFORMER.replace("n_layers: 2", "n_layers: 1").replace("32", "80, window_size: 0.025")
    return f"family: transducer\n{conformer}{networks}"


@pytest.mark.long
@pytest.mark.slow
def test_sherpa_onnx_streams_an_rnn_t_in_chunks(tmp_path):
    model = random_transducer(tmp_path, streaming())
    joint: Any = model.modules.others["joint"]
    with torch.no_grad():
        joint.joint_net[-1].bias[joint.blank] -= 2.0  # it says more
    written = export_sherpa_stream(model, tmp_path / "stream")
    files = ["decoder.onnx", "encoder.onnx", "joiner.onnx", "tokens.txt"]
    assert sorted(path.name for path in (tmp_path / "stream").iterdir()) == files
    session = onnxruntime.InferenceSession(tmp_path / "stream" / "encoder.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    wanted = {"window_size": "16", "chunk_shift": "16", "vocab_size": "4", "subsampling_factor": "8"}
    assert {name: metadata[name] for name in wanted} == wanted
    samples = noise(3)
    (got,) = heard(written, [samples])
    padded = np.concatenate([samples, np.zeros(written.behind, np.float32)])
    (whole,), (own,) = (greedy_texts(model, [signal]) for signal in (padded, samples))
    assert len(own) > 40
    assert got[:30] == whole[:30]  # later a random model has ties, which rounding decides
    assert len(got) == pytest.approx(len(whole), rel=0.1)


def test_a_stream_with_durations_is_refused(tmp_path):
    model = random_transducer(tmp_path, streaming(TDT))
    told = (
        "no stream for sherpa-onnx: got durations, with which sherpa-onnx has no streams; stream the file of --format"
    )
    with pytest.raises(UsageError, match=told):
        export_sherpa_stream(model, tmp_path / "stream")
    assert [path.name for path in tmp_path.iterdir()] == ["model.yaml"]


@pytest.mark.long
@pytest.mark.slow
def test_nothing_is_written_where_the_program_gives_another_text(tmp_path, monkeypatch):
    model = random_transducer(tmp_path, config_of(features=NEMO))
    monkeypatch.setattr(runner_export.Written, "hear", lambda self, signals, rate: ["else"] * len(signals))
    told = r"onnx-asr gives other texts for 2 of 2 recordings, so nothing is written \(number 1\): got 'else', wanted '"
    with pytest.raises(UsageError, match=told):
        export_onnx_asr(model, tmp_path / "asr", [noise(0.5), noise(0.4)])
    assert [path.name for path in tmp_path.iterdir()] == ["model.yaml"]


def test_features_and_the_waveform_that_sherpa_onnx_has_not_are_refused(tmp_path, monkeypatch):
    model = random_transducer(tmp_path, config_of(features=NEMO))
    told = (
        r"features for transducers, whose texts may differ: got a Hann window .*, wanted recordings .*; "
        r"give --audio, train with window: povey and highfreq: 7600, or export for onnx-asr or to onnx$"
    )
    with pytest.raises(UsageError, match=told):
        export_sherpa(model, tmp_path / "sherpa")
    with pytest.raises(UsageError, match="gives features to transducers: got waveform; leave out the waveform"):
        export_sherpa(model, tmp_path / "sherpa", waveform=True)
    other = random_transducer(tmp_path, config_of(features="features: 80, pad_to: 0"))
    told = r"other features: got windows have 0\.02 s .*; train with .*povey and highfreq: 7600, or export to onnx$"
    with pytest.raises(UsageError, match=told):
        export_sherpa(other, tmp_path / "sherpa", recordings=[noise(1)])
    with pytest.raises(UsageError, match=r"onnx-asr computes other features: got windows have 0\.02 s"):
        export_onnx_asr(other, tmp_path / "asr")
    not_normalised = random_transducer(tmp_path, config_of(features=f"{NEMO}, normalize: null"))
    with pytest.raises(UsageError, match=r"povey and highfreq: 7600, or export to onnx$"):
        export_sherpa(not_normalised, tmp_path / "sherpa")
    with pytest.raises(UsageError, match=r"got they are not normalised per_feature; train with .*normalize: per_fea"):
        export_onnx_asr(not_normalised, tmp_path / "asr")
    assert [path.name for path in tmp_path.iterdir()] == ["model.yaml"]


@pytest.mark.parametrize("kind", [*KINDS, "one label"])
def test_the_networks_of_programs_choose_as_the_model_does_from_memories_of_zeros(tmp_path, kind):
    model = random_transducer(tmp_path, config_of(*KINDS.get(kind, (TDT, ONE_LABEL))))
    own = TorchNetworks(model.modules.others["prediction"], model.modules.others["joint"])
    parts = RunnerParts.of(model, "a program", "transducer")
    random = np.random.default_rng(0)
    with steps_of(parts) as (decoder, joiner):
        assert isinstance(decoder, Decoder)
        assert isinstance(joiner, Joiner)
        states = [torch.zeros(1, 1, decoder.size) for _ in range(2)]
        memory, label = own.beginning(1), 4
        for _ in range(40):
            state, _, *states = decoder(torch.tensor([[label]], dtype=torch.int32), torch.ones(1), *states)
            np.testing.assert_allclose(state[:, :, 0].numpy(), memory[0], atol=1e-5)
            frame = random.normal(0, 2, (1, 24)).astype(np.float32)
            chosen = best_choices(own, frame, memory)
            scores = joiner(torch.from_numpy(frame)[:, :, None], state)[0, 0, 0]
            output, step = int(scores[:5].argmax()), int(scores[5:].argmax()) if len(scores) > 5 else 0
            assert output == min(int(chosen.outputs[0]), 4)
            if kind != "RNN-T":
                assert (step or int(output == 4)) == int(chosen.steps[0])
            label = int(random.integers(4))
            memory = own.after(np.array([label]), memory)


def test_a_duration_is_the_index_of_its_score():
    scores = torch.randn(50, 5 + 4, generator=torch.Generator().manual_seed(0))
    settings = TransducerSettings([0, 1, 3, 8], [], 10, [])
    written = by_index(scores, settings, 4)
    assert written.shape == (50, 5 + 9)
    assert written[:, 5:].argmax(1).tolist() == [settings.durations[k] for k in scores[:, 5:].argmax(1)]
    assert by_index(scores, TransducerSettings([], [], 10, []), 8) is scores


def test_settings_are_those_of_the_first_file(tmp_path):
    model = random_transducer(tmp_path, config_of(TDT, STATELESS))
    settings = settings_of(RunnerParts.of(model, "a program", "transducer"))
    assert (settings.durations, settings.max_symbols) == ([0, 1, 2, 4], 10)
    assert [(each.shape, each.fill, each.is_labels) for each in settings.memory] == [([1], 4.0, True)]
