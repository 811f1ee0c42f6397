"""A transducer that has learnt short words: what it hears with a beam, and when joined sentences are said."""

from __future__ import annotations

import random

import numpy as np
import pytest
import soundfile
from toys.tone_corpus import CONFIG, record, run_subcommand, write_manifest

import nemo_asr
from nemo_asr.run.audio.segments import Span
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.transcribe import driver, gaps
from nemo_asr.tasks.family import search_of

pytestmark = pytest.mark.long  # it is trained for half a minute
TRANSDUCER = f"""family: transducer
{CONFIG}
RNNTDecoder: {{prednet: {{pred_hidden: 32}}}}
RNNTJoint: {{jointnet: {{joint_hidden: 32, pred_hidden: 32}}, durations: [0, 1, 2, 3, 4]}}
"""
PAUSE, RATE = 1.0, 16_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder, drawn, lines = tmp_path_factory.mktemp("corpus"), random.Random(0), []
    for number in range(40):
        text = " ".join("".join(drawn.choices("abc", k=drawn.randint(1, 4))) for _ in range(drawn.randint(1, 4)))
        path = folder / f"{number}.wav"
        lines.append({"audio_filepath": str(path), "duration": record(path, text), "text": text})
    write_manifest(folder / "train.json", lines[:32])
    write_manifest(folder / "dev.json", lines[32:])
    (folder / "model.yaml").write_text(TRANSDUCER)
    return folder, lines


@pytest.fixture(scope="module")
def model(corpus):
    folder, _ = corpus
    trained = run_subcommand(
        *("train", "--model_config", folder / "model.yaml", "--train_dataset", folder / "train.json"),
        *("--work_dir", folder / "runs", "--exp_name", "tdt", "--num_epochs", 40, "--batch_size", 4),
        *("--optimizer", "adam_w", "--lr", 0.01),
    )
    assert trained.code == 0, trained.err
    return nemo_asr.load_model(folder / "runs" / "tdt")


@pytest.mark.parametrize("beam_size", [None, 4])
def test_texts_that_were_learnt_are_heard_with_and_without_a_beam(model, corpus, beam_size):
    _, lines = corpus
    options = SearchOptions(beam_size) if beam_size else None
    decoder = search_of(model.modules, model.card.labels, options)
    heard = model.transcribe([line["audio_filepath"] for line in lines[:12]], decoder=decoder, cutting=None)
    wrong = [one.text for one, line in zip(heard, lines[:12], strict=True) if one.text != line["text"]]
    assert len(wrong) <= 1, wrong


def test_the_sentences_of_a_joined_recording_begin_where_they_were_put(model, corpus):
    _, lines = corpus
    noise = np.random.default_rng(0)
    pieces, starts, seconds = [], [], 0.0
    for line in lines:
        samples, rate = soundfile.read(line["audio_filepath"], dtype="float32")
        starts.append(seconds)
        pieces += [samples, 1e-3 * noise.standard_normal(round(PAUSE * rate)).astype(np.float32)]
        seconds += len(samples) / rate + PAUSE
    text = "\n".join(line["text"] for line in lines)
    for settings, most in (({}, 0.05), ({"cutting": None}, 0.3)):
        (aligned,) = model.align([np.concatenate(pieces)], [text], 16_000, **settings)
        found = [segment.start for segment in aligned.segments]
        assert np.abs(np.subtract(found, starts)).max() < most
        assert [word.text for word in aligned.words] == text.split()


def test_nobody_speaks_for_half_a_second_without_a_word_or_a_mark(model, corpus, monkeypatch):
    """Silence of 0 to 2 s in front, in 41 steps; pauses of 5 s; 30 recordings joined. With -s it prints counts."""
    read_again = list[Span]()

    def with_context(gap, seconds):
        read_again.append(gap)
        return gaps.with_context(gap, seconds)

    monkeypatch.setattr(driver, "with_context", with_context)
    _, lines = corpus
    noise = np.random.default_rng(0)
    spoken = [soundfile.read(line["audio_filepath"], dtype="float32")[0] for line in lines]

    def placed(sentences, before, between=0.0):
        """Sentences behind silence, and where each is."""
        parts, spans, start = [before], [], before
        for samples in sentences:
            spans.append(Span(start, start + len(samples) / RATE))
            parts += [samples, between]
            start = spans[-1].end + between
        silent = [
            1e-4 * noise.standard_normal(round(part * RATE)) if isinstance(part, float) else part for part in parts
        ]
        return np.concatenate(silent).astype(np.float32), spans

    cases = [placed([spoken[step % len(spoken)]], 0.05 * step) for step in range(41)]
    cases += [placed(spoken[:4], 0.0, 5.0), placed(spoken[:30], 0.0)]
    for settings in ({}, {"cutting": None}):
        num_again = num_marked = 0
        for samples, spans in cases:
            read_again.clear()
            (one,) = model.transcribe([samples], RATE, **settings)
            num_again, num_marked = num_again + bool(read_again), num_marked + bool(one.gaps)
            untold = [
                gap
                for gap in gaps.gaps_in(gaps.without_words(one.words, one.duration), spans)
                if not any(t.start < gap.start + 0.2 and gap.end < t.end + 0.2 for t in one.gaps)
            ]
            assert untold == [], one
        print(f"{settings}: of {len(cases)} recordings {num_again} read again in part, {num_marked} marked")
    read_again.clear()
    clean = [model.transcribe([line["audio_filepath"]])[0] for line in lines]
    num_marked = sum(bool(one.gaps) for one in clean)
    print(f"as they are: of {len(clean)} recordings {len(read_again)} parts read again, {num_marked} marked")
    assert num_marked <= 0.01 * len(clean)
