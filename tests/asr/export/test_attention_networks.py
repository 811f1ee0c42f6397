"""Attention decoders for other programs: each is run by its program, if it is installed, and gives torch's texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from toys.prompted_models import write_folder
from toys.random_models import RATE, noise

from nemo_asr.export import runner_export
from nemo_asr.export.attention_networks import Listener, Speaker
from nemo_asr.export.onnx_asr_export import PROMPT, export_onnx_asr
from nemo_asr.export.runner_export import RunnerParts, attention_decoder, greedy_texts
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
            ids = said(speaker, *listener(*features), prompt, at_once)
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
