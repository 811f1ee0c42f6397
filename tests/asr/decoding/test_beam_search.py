"""Prefix beam search as a module: in a DAG, from a configuration, under NeMo's name."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import nemo_asr
from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder, BeamSearchDecoderWithLM
from nemo_asr.decoding.greedy import post_process_predictions
from nemo_asr.run.search.words import Weights
from nemo_lite.base.errors import DataError, NemoLiteError, UsageError

LABELS = ["a", "b", " "]
ARPA = """\\data\\
ngram 1=5
ngram 2=1

\\1-grams:
-1.0	<unk>
-99	<s>	-0.3
-1.0	</s>
-0.5	ab	-0.2
-0.9	b

\\2-grams:
-0.1	ab b

\\end\\
"""


def spoken(*labels):
    """(1, T, 4) log-probabilities with an improbable rest; each is a probability by label."""
    frames = np.full((1, len(labels), 4), 1e-6)
    for frame, shares in zip(frames[0], labels, strict=True):
        for label, share in shares.items():
            frame[("a", "b", " ", "").index(label)] = share
    return torch.from_numpy(np.log(frames / frames.sum(axis=2, keepdims=True))).float()


# What sounds most like "aa b", and could be "ab b".
SPOKEN = spoken({"a": 1}, {"": 1}, {"a": 0.6, "b": 0.4}, {" ": 1}, {"b": 1})


@pytest.fixture
def files(tmp_path):
    (tmp_path / "lm.arpa").write_text(ARPA, encoding="utf-8")
    (tmp_path / "words.txt").write_text("ab\nb\n", encoding="utf-8")
    return tmp_path


def texts_of(decoder, log_probs=SPOKEN, lengths=None):
    return post_process_predictions([decoder(log_probs, lengths)], LABELS)


def test_a_lexicon_a_language_model_and_hot_words_change_what_is_found(files):
    assert texts_of(BeamSearchCTCDecoder(LABELS)) == ["aa b"]
    assert texts_of(BeamSearchCTCDecoder(LABELS, lexicon=str(files / "words.txt"))) == ["ab b"]
    assert texts_of(BeamSearchCTCDecoder(LABELS, lm=str(files / "lm.arpa"))) == ["ab b"]
    assert texts_of(BeamSearchCTCDecoder(LABELS, hotwords=["ab"])) == ["ab b"]
    weightless = Weights(alpha=0, unknown_score=0)
    decoder = BeamSearchCTCDecoder(LABELS, lm=str(files / "lm.arpa"))
    decoder.use(weightless)
    assert texts_of(decoder) == ["aa b"]


def test_equal_labels_side_by_side_stay_two_and_frames_beyond_a_length_do_not_count():
    decoder = BeamSearchCTCDecoder(LABELS)
    assert decoder(SPOKEN).tolist() == [[0, 3, 0, 2, 1]]
    both = torch.cat([SPOKEN, SPOKEN])
    assert texts_of(decoder, both, torch.tensor([5, 1])) == ["aa b", "a"]
    assert texts_of(decoder, both, torch.tensor([0, 0])) == ["", ""]


def test_the_scores_of_the_best_are_those_of_sounds_and_words(files):
    decoder = BeamSearchCTCDecoder(LABELS, lm=str(files / "lm.arpa"), alpha=0.5, beta=0.25)
    (found,) = decoder.search(SPOKEN, nbest=3)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert len({tuple(one.ids) for one in found}) == 3
    words = 0.5 * math.log(10) * (-0.3 - 0.5 - 0.1 - 1.0) + 2 * 0.25  # <s> and b back off
    assert found[0].score - found[0].acoustic_score == pytest.approx(words, abs=1e-6)


def test_words_are_found_in_subwords_too_and_the_classes_of_another_model_are_refused(files):
    pieces = ["\u2581a", "b", "\u2581b"]
    decoder = BeamSearchCTCDecoder(pieces, lexicon=str(files / "words.txt"))
    assert post_process_predictions([decoder(SPOKEN[:, [0, 2, 3]])], pieces) == ["ab b"]
    with pytest.raises(UsageError, match="other labels than the model: got 4 classes, wanted 3: the labels"):
        BeamSearchCTCDecoder(pieces[:2])(SPOKEN)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"lexicon": "other.txt"}, DataError, r"other\.txt: the list of words cannot be opened"),
        (
            {"lexicon": "upper.txt"},
            UsageError,
            r"upper\.txt: the model's labels cannot .*: got 'AB' \(no label has A B\); write",
        ),
        ({"lm": "upper.arpa"}, UsageError, "the language model is of another vocabulary: got 2 words such as 'AB'"),
        ({"lm": "none.arpa"}, DataError, r"none\.arpa"),
        ({"beam_size": 0}, UsageError, "beam_size"),
        ({"alpha": -1.0}, UsageError, "alpha is -1.0, wanted float from 0 to 20"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(given, error, message, files, monkeypatch):
    monkeypatch.chdir(files)
    (files / "upper.txt").write_text("AB\n", encoding="utf-8")
    (files / "upper.arpa").write_text(ARPA.replace("ab", "AB").replace("b", "B"), encoding="utf-8")
    with pytest.raises(error, match=message) as raised:
        BeamSearchCTCDecoder(LABELS, **given)
    assert isinstance(raised.value, NemoLiteError)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_nemos_decoder_gives_scores_and_texts_for_a_tensor_and_for_arrays(files):
    """As scripts of NeMo read them: result[wire][batch][utterance][0][1]."""
    decoder = BeamSearchDecoderWithLM(LABELS, 8, 0.5, 0.25, str(files / "lm.arpa"), 2)
    found = decoder(SPOKEN, torch.tensor([5]))
    assert found[0][0][1] == "ab b"
    assert [score for score, _ in found[0]] == sorted((score for score, _ in found[0]), reverse=True)
    assert len({text for _, text in found[0]}) == len(found[0]) > 3
    arrays = BeamSearchDecoderWithLM(LABELS, 8, 0.5, 0.25, str(files / "lm.arpa"), 2, input_tensor=False)
    assert arrays([SPOKEN[0].numpy()], torch.tensor([5])) == found
    without = BeamSearchDecoderWithLM(vocab=LABELS, beam_width=8, alpha=0, beta=0, lm_path=None, num_cpus=1)
    assert without(SPOKEN, torch.tensor([5]))[0][0][1] == "aa b"


def test_both_connect_to_the_log_probabilities_of_a_model(files):
    recipe = nemo_asr.load_recipe("demo", [f"BeamSearchCTCDecoder.lexicon={files / 'words.txt'}"])
    assert isinstance(recipe.search(), BeamSearchCTCDecoder)
