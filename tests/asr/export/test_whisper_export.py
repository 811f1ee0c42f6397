"""Whisper for other programs: the networks find torch's texts, onnx-asr too, if it is installed; what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from toys import whisper_models
from toys.random_models import RATE, noise

from nemo_asr.export.onnx_asr_export import export_onnx_asr
from nemo_asr.export.runner_export import RunnerParts, attention_decoder, greedy_texts
from nemo_asr.export.sherpa_export import export_sherpa
from nemo_asr.export.whisper_export import WhisperListener, WhisperSpeaker
from nemo_asr.models.attention.whisper_decoder import WhisperDecoder
from nemo_asr.models.whisper import sinusoids
from nemo_asr.run.text.labels import text_of
from nemo_lite.base.errors import UsageError

START, NO_TIMES, TASKS = whisper_models.START, whisper_models.NO_TIMES, whisper_models.TASKS
RECORDINGS = [noise(1 + seed / 5, seed) for seed in range(3)]


def whisper(folder, name="multilingual", seconds=whisper_models.WINDOW_SECONDS):
    """The model of a case with windows of so many seconds, and its decoder."""
    state, frames = whisper_models.state_of(seed=whisper_models.CASES[name][2]), 50 * seconds
    positions = state["model.encoder.embed_positions.weight"]
    if len(positions) != frames:
        state["model.encoder.embed_positions.weight"] = sinusoids(frames, positions.shape[1])
    whisper_models.write_folder(folder / "whisper", name, {"max_source_positions": frames}, state=state)
    features = {"feature_size": 80, "sampling_rate": RATE, "chunk_length": seconds}
    (folder / "whisper" / "preprocessor_config.json").write_text(json.dumps(features))
    loaded = whisper_models.loaded(folder / "whisper", name)
    decoder = attention_decoder(loaded)
    assert isinstance(decoder, WhisperDecoder)
    return loaded, decoder


@pytest.mark.parametrize("name", ["multilingual", "translating", "tuned"])
@torch.no_grad()
def test_the_networks_find_the_texts_of_the_models_search_with_the_prompt_of_onnx_asr(tmp_path, name):
    loaded, decoder = whisper(tmp_path, name)
    wanted, labels = greedy_texts(loaded, RECORDINGS), loaded.card.labels
    with RunnerParts.attended(loaded).rest() as rest:
        listener, speaker = WhisperListener(rest, decoder).eval(), WhisperSpeaker(decoder).eval()
        for samples, text in zip(RECORDINGS, wanted, strict=True):
            features, _ = loaded.modules.preprocessor.eval()(
                torch.from_numpy(samples)[None], torch.tensor([len(samples)])
            )
            frames, nothing = listener(features), torch.zeros(1, 1, 0, speaker.memory.size)

            def best(tokens, memory, frames=frames):
                scores, memory = speaker(torch.tensor([tokens]), frames, torch.tensor([True]), memory)
                return int(scores[0, -1].argmax()), memory

            language, _ = best([START], nothing)
            assert language in whisper_models.LANGUAGES.values()
            if decoder.language != "auto":
                language = whisper_models.LANGUAGES[str(decoder.language)]
            token, memory = best([START, language, TASKS[str(decoder.task)], NO_TIMES], nothing)
            found = []
            while token != speaker.end:
                found.append(token)
                token, memory = best([token], memory)
            assert " ".join(text_of(found, labels).split()) == text
    assert all(wanted)


@pytest.mark.long
@pytest.mark.slow
def test_onnx_asr_gives_the_texts_of_a_whisper_that_translates(tmp_path):
    onnx_asr = pytest.importorskip("onnx_asr")
    loaded, _ = whisper(tmp_path, "translating", 30)
    written = export_onnx_asr(loaded, tmp_path / "out", RECORDINGS)
    files = ["added_tokens.json", "config.json", "decoder_model_merged.onnx", "encoder_model.onnx", "vocab.json"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == files
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"model_type": "whisper", "num_mel_bins": 80}
    assert written.options == {"language": "de"}
    assert written.difference < 1e-3
    model, wanted = onnx_asr.load_model(**written.arguments), greedy_texts(loaded, RECORDINGS)
    for samples, text in zip(RECORDINGS, wanted, strict=True):
        twice = model.recognize([samples, samples], sample_rate=RATE, language="de")
        assert [" ".join(found.split()) for found in twice] == [text, text]
    assert "loudest" in written.advice[-1]


@pytest.mark.parametrize(
    ("name", "seconds", "problem"),
    [
        ("multilingual", 2, "its features are not 80 or 128 bands at 16000 Hz .*, of windows of 30 s"),
        ("with times", 30, "it is asked for times, which onnx-asr does not take"),
        ("English", 30, "its prompt has no language and task, as onnx-asr's has"),
    ],
)
def test_other_whispers_are_refused_with_the_reason(tmp_path, name, seconds, problem):
    loaded, _ = whisper(tmp_path, name, seconds)
    with pytest.raises(UsageError, match=f"onnx-asr does not run this Whisper: got {problem}; use the model folder"):
        export_onnx_asr(loaded, tmp_path / "out")
    with pytest.raises(UsageError, match="sherpa-onnx gives other texts than this Whisper: got another silence"):
        export_sherpa(loaded, tmp_path / "out")
    assert not (tmp_path / "out").exists()
