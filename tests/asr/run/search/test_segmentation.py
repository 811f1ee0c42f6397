"""Words of labels without spaces: the search against all texts, all ways to cut each, and an ARPA file read by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from nemo_asr.decoding.beam_search import BeamSearchCTCDecoder
from nemo_asr.run.search.prefix_beam_search import SearchLimits, search
from nemo_asr.run.search.text_search import TextSearch
from nemo_asr.run.search.words import Spelling, Weights, WordScores
from nemo_asr.run.text.labels import text_of
from nemo_lite.base.errors import UsageError

LABELS = ["北", "京", "人"]
BLANK = len(LABELS)
# No word for the second character alone.
ARPA = """\\data\\
ngram 1=8
ngram 2=6
ngram 3=2

\\1-grams:
-1.4\t<unk>\t-0.2
-99\t<s>\t-0.3
-0.9\t</s>
-0.6\t北京\t-0.25
-0.8\t京人\t-0.15
-1.1\t北\t-0.4
-1.3\t人\t-0.1
-1.5\t北京人

\\2-grams:
-0.3\t<s> 北京\t-0.2
-0.4\t北京 人\t-0.1
-0.2\t北 京人
-0.5\t人 </s>
-0.7\t<unk> 人\t-0.05
-0.9\t人 北京

\\3-grams:
-0.1\t<s> 北京 人
-0.15\t北京 人 </s>

\\end\\
"""


@pytest.fixture
def arpa(tmp_path):
    (tmp_path / "words.arpa").write_text(ARPA, encoding="utf-8")
    return tmp_path / "words.arpa"


def table_of(text):
    """(log10 of the probability, log10 of the weight) by n-gram."""
    lines = [line.split("\t") for line in text.splitlines() if "\t" in line]
    return {tuple(line[1].split()): (float(line[0]), float([*line, "0"][2])) for line in lines}


def log10_of(table, words):
    """The probability of a sentence, with back-off, word by word."""
    known = [word if (word,) in table else "<unk>" for word in words]
    total, history = 0.0, ["<s>"]
    for word in [*known, "</s>"]:
        before = tuple(history[-2:])
        while (*before, word) not in table:
            total += table[before][1] if before in table else 0.0
            before = before[1:]
        total += table[*before, word][0]
        history.append(word)
    return total


def all_cuts(text):
    """The ways to cut a text into words."""
    for places in itertools.product([False, True], repeat=max(len(text) - 1, 0)):
        ends = [place for place, is_end in enumerate(places, 1) if is_end]
        yield [text[a:b] for a, b in itertools.pairwise([0, *ends, len(text)])] if text else []


def acoustic(log_probs, ids):
    """The log-probability of all paths of some labels together, as the loss computes it."""
    frames, target = torch.from_numpy(log_probs)[:, None], torch.tensor([ids], dtype=torch.int64)
    lengths = torch.tensor([len(log_probs)]), torch.tensor([len(ids)])
    return -float(torch.nn.functional.ctc_loss(frames, target, *lengths, blank=BLANK, reduction="none"))


def drawn(seed, frames=5):
    values = np.random.default_rng(seed).normal(scale=2.0, size=(frames, BLANK + 1))
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


def expected_texts(log_probs, weights, table=None, lexicon=None, hot=()):
    """Each text that the words can write, with its score: the sounds, the hot phrases, and the best of all cuts."""
    scores = {}
    for ids in itertools.chain.from_iterable(
        itertools.product(range(BLANK), repeat=length) for length in range(len(log_probs) + 1)
    ):
        text = "".join(LABELS[label] for label in ids)
        best = -math.inf
        for cut in all_cuts(text):
            allowed = set(lexicon or [*LABELS, *hot]) | ({name for (name, *_) in table or ()} if not lexicon else set())
            if set(cut) <= allowed:
                worth = weights.beta * len(cut)
                if table:
                    worth += weights.alpha * math.log(10) * log10_of(table, cut)
                    worth += weights.unknown_score * sum((w,) not in table and w not in hot for w in cut)
                best = max(best, worth)
        found = sum(weights.hotword_weight * text.startswith(phrase, at) for phrase in hot for at in range(len(text)))
        if (score := acoustic(log_probs, list(ids)) + best + found) > -math.inf:
            scores[text] = score
    return scores


@pytest.mark.long
@pytest.mark.parametrize("most_dense", [1 << 25, 0], ids=["a table", "sorted keys"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("has_model", [True, False], ids=["model", "no model"])
@pytest.mark.parametrize("lexicon", [None, ["北京", "北", "人", "京人"], ["北京人", "北", "京"]])
@pytest.mark.parametrize("hot", [(), ("京人", "人北京")], ids=["", "hot"])
def test_each_text_has_the_score_of_its_best_cut_into_words(
    seed, has_model, lexicon, hot, most_dense, arpa, tmp_path, monkeypatch
):
    monkeypatch.setattr("nemo_asr.run.search.words._MOST_DENSE", most_dense)
    if not (has_model or lexicon):
        pytest.skip("no words")
    if hot and lexicon and "北京人" in lexicon:
        hot = ("京北", "人北京")
    log_probs, weights = drawn(seed), Weights(0.7, 0.5, 1.5, -2.0)
    expected = expected_texts(log_probs, weights, table_of(ARPA) if has_model else None, lexicon, hot)
    best = sorted(expected, key=expected.__getitem__, reverse=True)[:5]
    if lexicon:
        (tmp_path / "words.txt").write_text("\n".join(lexicon), encoding="utf-8")
    given = {
        "lexicon": str(tmp_path / "words.txt") if lexicon else None,
        "lm": str(arpa) if has_model else None,
        "hotwords": hot,
        **{name: getattr(weights, name) for name in ("alpha", "beta", "hotword_weight", "unknown_score")},
    }
    options = {"beam_size": 400, "min_log_prob": -100.0, **given}
    for found in (
        TextSearch(LABELS, **options).hypotheses(log_probs[None], np.array([5]), 5)[0],  # of ONNX engines
        BeamSearchCTCDecoder(LABELS, **options).search(torch.from_numpy(log_probs)[None], nbest=5)[0],
    ):
        assert [text_of(one.ids, LABELS) for one in found] == best
        assert [one.score for one in found] == pytest.approx([expected[text] for text in best], abs=1e-4)


def test_an_utterance_does_not_depend_on_its_neighbours_also_where_it_ends_first(arpa):
    log_probs = np.stack([drawn(seed, 20) for seed in range(6)])
    search = TextSearch(LABELS, 4, lm=arpa)
    ends = np.array([20, 3, 11, 0, 20, 7])
    together = search.hypotheses(log_probs, ends, 3)
    assert together == [search.hypotheses(log_probs[[row]], ends[[row]], 3)[0] for row in range(6)]


def test_no_more_than_the_best_ways_are_kept_and_the_result_stays(arpa, monkeypatch):
    """In few ways of few words the best is among those that are kept."""
    log_probs, found = np.stack([drawn(seed, 20) for seed in range(6)]), []
    for most in (16, 4):
        monkeypatch.setattr("nemo_asr.run.search.word_beams._MOST_WAYS", most)
        found.append(TextSearch(LABELS, 8, lm=arpa).hypotheses(log_probs, np.full(6, 20)))
    assert found[0] == found[1]


def test_a_word_that_the_audio_cuts_off_is_left_out():
    log_probs = np.full((1, 4, 4), -40.0)
    log_probs[0, range(4), [0, 1, 2, 0]] = 0.0
    words = WordScores(Spelling(LABELS), ["北京", "人", "北京人人"])
    ((found, *_),) = search(log_probs, [4], SearchLimits(4), words)
    assert text_of(found.ids, LABELS) == "北京人"


def test_longer_labels_are_words_that_end_behind_labels():
    """Pinyin: a word of two syllables, and one syllable that begins as another one."""
    labels = ["xi", "an", "xian"]
    log_probs = np.log(np.full((1, 2, 4), 1e-3))
    log_probs[0, 0, 0] = log_probs[0, 1, 1] = np.log(0.99)
    for lexicon, text in ((["xian", "an"], "xian"), (["an"], "an")):
        (one,) = search(log_probs, [2], SearchLimits(8, -20.0), WordScores(Spelling(labels), lexicon), labels=labels)
        assert text_of(one[0].ids, labels) == text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"lexicon": "words.txt"},
            r"words\.txt: the model's labels cannot spell .*: got '北平', 'a' \(no label has a 平\)",
        ),
        ({"lexicon": "good.txt", "hotwords": ["人北", "京北"]}, r"the lexicon lacks hot words: got 京北; add them"),
        ({"lm": "other.arpa"}, r"the language model is of another vocabulary: got 1 words such as '上海', which"),
    ],
)
def test_words_that_cannot_be_used_are_refused_in_one_line(given, message, tmp_path):
    (tmp_path / "words.txt").write_text("北京\n北平\na\n", encoding="utf-8")
    (tmp_path / "good.txt").write_text("北\n京人\n", encoding="utf-8")
    (tmp_path / "other.arpa").write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-1\t</s>\n-1\t上海\n\n\\end\\\n", encoding="utf-8"
    )
    paths = {name: value if name == "hotwords" else str(tmp_path / value) for name, value in given.items()}
    with pytest.raises(UsageError, match=message) as raised:
        TextSearch(LABELS, **paths)
    assert "\n" not in str(raised.value)
