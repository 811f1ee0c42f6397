"""The demo's speech."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.random import default_rng

from nemo_asr.corpora import synth
from nemo_asr.corpora.espeak import Synthesizer, Voice
from nemo_asr.corpora.synth import VOCABULARY, new_sentence, sentence
from nemo_lite.base.errors import UsageError

# The synthesiser: the same words and voice give the same samples; voices, rates and places.


pytest.importorskip("espeakng_loader", reason="the speech synthesiser is not installed")


def test_what_was_spoken_before_does_not_change_an_utterance():
    with Synthesizer() as synthesizer:
        voice = Voice("en-us+f1", rate=150, pitch=40)
        alone = synthesizer.speak("november five", voice)
        synthesizer.speak("something else at length", Voice("en+m3", rate=200, pitch=80))
        assert np.array_equal(synthesizer.speak("november five", voice), alone)


@pytest.mark.slow
def test_what_the_memory_held_does_not_change_any_voice_of_the_corpus():
    code = """
import hashlib
from nemo_asr.corpora.synth import Synthesizer, Voice
from nemo_asr.corpora.synth import SEEN_VOICES, UNSEEN_VOICES
with Synthesizer() as synthesizer:
    for name in SEEN_VOICES + UNSEEN_VOICES:
        print(name, hashlib.sha256(synthesizer.speak("zero oh six five", Voice(name))).hexdigest())
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "MALLOC_PERTURB_": fill},  # glibc fills fresh memory with it
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        for fill in ("50", "150")
    ]
    assert len(outputs[0]) == len(synth.SEEN_VOICES) + len(synth.UNSEEN_VOICES)
    assert outputs[0] == outputs[1]


def test_rate_and_pitch_act():
    with Synthesizer() as synthesizer:
        slow, fast = (synthesizer.speak("november five", Voice("en-us", rate=rate)) for rate in (110, 190))
        low, high = (synthesizer.speak("november five", Voice("en-us", pitch=pitch)) for pitch in (20, 80))
    assert len(slow) > 1.3 * len(fast)
    assert not np.array_equal(low[:10000], high[:10000])


@pytest.mark.parametrize("name", ["fr", "en-us+nobody"])
def test_an_unknown_voice_is_named(name):
    with Synthesizer() as synthesizer, pytest.raises(UsageError, match=rf"no such voice: got {name.replace('+', '.')}"):
        synthesizer.speak("hello", Voice(name))


@pytest.mark.parametrize(("name", "text"), [("cmn", "今天天气很好"), ("de", "schöne Grüße"), ("ru", "добрый день")])
def test_voices_of_other_languages_speak_their_script(name, text):
    with Synthesizer(languages=[name]) as synthesizer:
        whole, half = (synthesizer.speak(spoken, Voice(name)) for spoken in (text, text[: len(text) // 2]))
    assert len(whole) > 1.2 * len(half) > 4000


@pytest.mark.parametrize(("name", "text"), [("ru", "добрый day"), ("nb", "god day"), ("pt-br", "bom day")])
def test_a_voice_reads_no_dictionaries_but_that_of_its_language_and_the_english_one(name, text):
    with Synthesizer(languages=[name]) as synthesizer:
        alone = synthesizer.speak(text, Voice(name))
        linked = {path.name for path in synthesizer._home.glob("*_dict")}
        for path in synthesizer._data.glob("*_dict"):
            if path.name not in linked:
                (synthesizer._home / path.name).symlink_to(path)
        assert np.array_equal(synthesizer.speak(text, Voice(name)), alone)
    assert len(linked) == 2


def test_the_letter_a_is_not_read_as_the_article():
    with Synthesizer() as synthesizer:
        article, letter = (synthesizer.speak(text, Voice("en-us")) for text in ("a b", synth._spoken("a b")))
    assert len(letter) > len(article) + 1000


def test_packages_in_a_deep_folder_are_found(tmp_path, monkeypatch):
    import espeakng_loader

    deep = tmp_path / ("deep" * 40)
    deep.mkdir()
    (deep / "espeak-ng-data").symlink_to(espeakng_loader.get_data_path())
    monkeypatch.setattr(espeakng_loader, "get_data_path", lambda: str(deep / "espeak-ng-data"))
    with Synthesizer() as synthesizer:
        assert len(synthesizer.speak("yes", Voice("en-us"))) > 2000


# Sentences of the synthetic corpus.


def test_sentences_use_the_whole_vocabulary_and_nothing_else():
    rng = default_rng(0)
    words = {word for _ in range(2000) for word in sentence(rng).split()}
    assert words == set(VOCABULARY)
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 93


def test_a_new_sentence_is_not_a_known_one():
    known = {"go", "no"}
    assert new_sentence(default_rng(3), known) not in known


def test_dates_are_said_as_people_do():
    rng = default_rng(5)
    texts = {sentence(rng) for _ in range(3000)}
    dates = [text.split() for text in texts if "nineteen" in text.split()[2:]]
    assert any(len(date) == 6 for date in dates)
    assert all(word not in ("zero", "oh") for date in dates for word in date)
