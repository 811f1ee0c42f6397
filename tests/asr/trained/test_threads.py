"""One loaded model in several threads gives the texts of one thread, and leaves the generators alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import nn
from toys.tone_corpus import record
from toys.tone_model import train_tones

import nemo_asr
import nemo_lite as nemo
from nemo_asr.trained.model import TrainedModel, describe, load_model

TEXTS = ["cab", "abba", "bc", "caca"]
Ways = dict[str, Callable[[int], object]]


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    recipe, modules = train_tones(folder)
    TrainedModel("here", recipe, modules, describe(recipe)).save(folder / "model")
    for text in TEXTS:
        record(folder / f"{text}.wav", text)
    return folder


def ways_of(model: TrainedModel, folder: Path) -> Ways:
    """What gives something of the recording of a number."""
    labels, files = model.card.labels, [str(folder / f"{text}.wav") for text in TEXTS]
    beam = nemo_asr.BeamSearchCTCDecoder(labels, beam_size=4)
    hot = nemo_asr.BeamSearchCTCDecoder(labels, beam_size=4, hotwords=["cab", "abc", "caca"])

    def inferred(number: int) -> list[list[int]]:
        factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
        layer = nemo_asr.AudioToTextDataLayer(
            manifest_filepath=str(folder / "dev.json"),
            labels=labels,
            batch_size=1 + number,
            sample_rate=16000,
            num_workers=0,
            shuffle=False,
        )
        values = factory.infer([nemo_asr.connect(model.modules, layer).predictions])
        assert values is not None
        return [row.tolist() for row in values[0]]

    def streamed(number: int) -> str:
        stream = model.stream()
        samples, _ = soundfile.read(files[number], dtype="float32")
        for first in range(0, len(samples), 1600):
            stream.accept(samples[first : first + 1600])
        stream.finish()
        return stream.text

    return {
        "greedy": lambda number: model.transcribe([files[number]])[0].text,
        "beam": lambda number: model.transcribe([files[number]], decoder=beam)[0].text,
        "hot words": lambda number: model.transcribe([files[number]], decoder=hot)[0].text,
        "aligned": lambda number: model.align([files[number]], [TEXTS[number]])[0].segments,
        "streamed": streamed,
        "inferred": inferred,
    }


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [2, 8])
def test_threads_get_what_one_thread_gets_of_a_model_in_every_way(folder: Path, num_threads: int) -> None:
    ways = ways_of(load_model(folder / "model"), folder)
    calls = [(way, number) for number in range(len(TEXTS)) for way in ways]
    right = {call: ways[call[0]](call[1]) for call in calls}
    assert [right["greedy", number] for number in range(len(TEXTS))] == TEXTS
    ways = ways_of(load_model(folder / "model"), folder)  # as a program that begins with threads
    calls = calls * 3
    random.Random(num_threads).shuffle(calls)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    with ThreadPoolExecutor(num_threads) as pool:
        results = list(pool.map(lambda call: ways[call[0]](call[1]), calls))
    assert [(call, result) for call, result in zip(calls, results, strict=True) if result != right[call]] == []
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_models_can_be_loaded_in_several_threads_at_once(folder: Path) -> None:
    def text(number: int) -> str:
        return load_model(folder / "model").transcribe([str(folder / f"{TEXTS[number]}.wav")])[0].text

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(text, range(4))) == TEXTS


def test_a_loaded_model_is_in_evaluation_mode_and_training_puts_it_into_training_mode(folder: Path) -> None:
    model = load_model(folder / "model")
    modules = [module for module in model.modules.modules.values() if isinstance(module, nn.Module)]
    parts = [part for module in modules for part in module.modules()]
    assert not any(part.training for part in parts)
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    layer = model.recipe.data_layer(str(folder / "train.json"), training=True, batch_size=4)
    loss = nemo_asr.connect(model.modules, layer, training=True).loss
    assert loss is not None
    factory.train([loss], optimizer="sgd", optimization_params={"max_steps": 1, "lr": 0.0})
    weighted = [part for module in modules if module.state_dict() for part in module.modules()]
    assert weighted
    assert all(part.training for part in weighted)
