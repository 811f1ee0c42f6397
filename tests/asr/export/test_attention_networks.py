"""Attention decoders for other programs: each is run by its program, if it is installed, and gives torch's texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from toys import nemo_prompted
from toys.prompted_models import write_folder
from toys.random_models import RATE, noise

from nemo_asr.export import runner_export
from nemo_asr.export.attention_networks import Listener, Speaker
from nemo_asr.export.onnx_asr_export import PROMPT, export_onnx_asr
from nemo_asr.export.runner_export import RunnerParts, attention_decoder, greedy_texts
from nemo_asr.export.sherpa_export import export_sherpa
from nemo_asr.models.attention.prompted import PromptedDecoder
from nemo_asr.trained.model import load_model
from nemo_lite.base.errors import UsageError

RECORDINGS = [noise(1.7, 1), noise(4, 2), noise(2.2, 3)]


def prompted(folder, model_type):
    """The model, and its decoder."""
    loaded = load_model(write_folder(folder / model_type, model_type))
    decoder = attention_decoder(loaded)
    assert isinstance(decoder, PromptedDecoder)
    return loaded, decoder


def said(speaker: Speaker, frames: Any, mask: Any, prompt: list[int], at_once: int) -> list[int]:
    """Label ids of a text, as programs find them: the prompt in parts of so many labels, then label after label."""
    memory, ids = torch.zeros(1, 0, speaker.memory.size), list(prompt)
    for start in range(0, len(prompt), at_once):
        scores, memory = speaker(torch.tensor([prompt[start : start + at_once]]), frames, mask, memory)
    while (label := int(scores[0, 0].argmax())) != speaker.end:
        ids.append(label)
        scores, memory = speaker(torch.tensor([[label]]), frames, mask, memory)
    return ids[len(prompt) :]


@pytest.mark.parametrize("model_type", ["canary", "cohere_asr"])
@pytest.mark.parametrize(("num_prompt", "at_once"), [(10, 10), (9, 1)])
@torch.no_grad()
def test_the_networks_find_the_texts_of_the_models_search_with_any_programs_prompt(
    tmp_path, model_type, num_prompt, at_once
):
    loaded, decoder = prompted(tmp_path, model_type)
    decoder.set_language("de")
    labels = loaded.card.labels
    prompt = [decoder.start[-9 + place] for place in range(9)]
    if num_prompt == 10:
        prompt = [labels.index("\u2581"), *prompt]
    texts, wanted = [], greedy_texts(loaded, RECORDINGS)
    parts = RunnerParts.attended(loaded)
    with parts.rest() as rest:
        listener, speaker = Listener(rest, decoder).eval(), Speaker(decoder, num_prompt).eval()
        for samples in RECORDINGS:
            features = loaded.modules.preprocessor.eval()(torch.from_numpy(samples)[None], torch.tensor([len(samples)]))
            frames, mask = listener(*features)
            ids = said(speaker, frames, mask, prompt, at_once)
            texts.append("".join(labels[label] for label in ids if label < speaker.end).replace("\u2581", " ").split())
    assert [" ".join(text) for text in texts] == wanted
    assert len(wanted[0]) > 40 > len(wanted[1]) > 0  # one that is ended by its number of labels, and one by itself


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["canary", "cohere_asr"])
def test_onnx_asr_gives_the_texts_of_prompted_models_alone_and_in_batches(tmp_path, model_type, monkeypatch):
    onnx_asr = pytest.importorskip("onnx_asr")
    loaded, decoder = prompted(tmp_path, model_type)
    decoder.set_language("de")
    decoder.set_target_language("fr")
    decoder.set_punctuation(False)
    written = export_onnx_asr(loaded, tmp_path / "out", RECORDINGS)
    files = ["config.json", "decoder-model.onnx", "encoder-model.onnx", "vocab.txt"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == files
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "nemo-conformer-aed"
    assert written.options == {"language": "de", "target_language": "fr", "pnc": False}
    assert written.advice == [
        "call recognize(..., language='de', target_language='fr', pnc=False): it asks for another prompt by itself"
    ]
    assert written.difference < 1e-3
    wanted = greedy_texts(loaded, RECORDINGS)
    model = onnx_asr.load_model(**written.arguments)
    assert model.recognize(RECORDINGS, sample_rate=RATE, **written.options) == wanted
    assert model.recognize(RECORDINGS[0], sample_rate=RATE) != wanted[0]  # in English
    monkeypatch.setattr(runner_export, "greedy_texts", lambda *_: ["other", *wanted[1:]])
    with pytest.raises(UsageError, match="onnx-asr gives other texts for 1 of 3 recordings, so nothing is written"):
        runner_export.refuse_other_texts(written, loaded, RECORDINGS)


@pytest.mark.long
@pytest.mark.slow
def test_sherpa_onnx_gives_the_texts_of_canary_with_bands_to_7600_hz(tmp_path):
    pytest.importorskip("sherpa_onnx")
    preprocessor = {**nemo_prompted.config_of("canary2")["preprocessor"], "highfreq": 7600}
    loaded = load_model(nemo_prompted.write_case(tmp_path / "small.nemo", "canary2", preprocessor=preprocessor))
    decoder = attention_decoder(loaded)
    assert isinstance(decoder, PromptedDecoder)
    decoder.set_language("de")
    decoder.set_target_language("fr")
    decoder.set_punctuation(False)
    recordings = [noise(3 + seed / 4, seed) for seed in range(6)]
    written = export_sherpa(loaded, tmp_path / "out", recordings=recordings)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["decoder.onnx", "encoder.onnx", "tokens.txt"]
    assert str(written).startswith("sherpa_onnx.OfflineRecognizer.from_nemo_canary(encoder='")
    assert str(written).endswith("src_lang='de', tgt_lang='fr')")
    assert (written.before, written.behind) == (80, 0)
    wanted = greedy_texts(loaded, recordings)
    assert written.hear(recordings, RATE) == wanted
    assert len({*wanted}) > 2


def test_sherpa_onnx_gets_features_to_8000_hz_only_with_recordings(tmp_path):
    loaded, _ = prompted(tmp_path, "canary")
    problem = (
        r"sherpa-onnx computes other features for Canary, whose texts may differ: got .*; give --audio, train with"
    )
    with pytest.raises(UsageError, match=problem + " highfreq: 7600, or export for onnx-asr"):
        export_sherpa(loaded, tmp_path / "out")
    with pytest.raises(UsageError, match="sherpa-onnx gives features to Canary: got waveform; leave out"):
        export_sherpa(loaded, tmp_path / "out", waveform=True, recordings=RECORDINGS)


def test_models_with_other_prompts_or_decoders_are_refused_with_the_reason(tmp_path):
    loaded, decoder = prompted(tmp_path, "canary")
    decoder.special_labels[decoder.special_labels.index("<|en|>")] = "<|it|>"
    with pytest.raises(UsageError, match=r"has not all labels of onnx-asr's prompt: got no '<\|en\|>'"):
        export_onnx_asr(loaded, tmp_path / "out")
    decoder.prompt.name = "canary"
    with pytest.raises(UsageError, match="onnx-asr has no prompts of the first Canary models: got prompt canary"):
        export_onnx_asr(loaded, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert PROMPT[0] == " "
    assert len(PROMPT) == 10
