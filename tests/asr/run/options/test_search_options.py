"""The options of decoding: which search they mean, and those that would have no effect."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from nemo_asr.run.options import SearchArguments, SearchOptions, WeightSearch, check_search_options, search_options
from nemo_lite.base.errors import DataError
from nemo_lite.base.options import OneLineParser


def parsed(*words: str) -> Namespace:
    parser = OneLineParser(prog="eval")
    parser.add_argument("--eval_datasets", nargs="+", default=["test.json"])
    parser.add_options(SearchArguments, WeightSearch)
    args = parser.parse_args(list(words))
    check_search_options(parser, args)
    return args


def test_what_is_given_says_the_search() -> None:
    assert search_options(parsed()) is None
    assert search_options(parsed("--decoder", "beam")) == SearchOptions()
    found = parsed("--lexicon", "words.txt", "--hotwords", "one", "two", "--beta", "2")
    assert found.decoder == "beam"
    assert search_options(found) == SearchOptions(lexicon="words.txt", hotwords=("one", "two"), beta=2.0)


def test_weights_come_from_a_file(tmp_path) -> None:
    path = tmp_path / "weights.json"
    path.write_text(json.dumps({"alpha": 0.75, "beta": -1, "set": "dev.json"}))
    found = search_options(parsed("--lm", "a.arpa", "--weights", str(path)))
    assert found == SearchOptions(lm="a.arpa", alpha=0.75, beta=-1.0)
    for content in ("{}", "no", '{"alpha": null, "beta": 1}', "[]"):
        path.write_text(content)
        with pytest.raises(DataError, match=r"weights\.json: the(re are no| file of) weights"):
            parsed("--lm", "a.arpa", "--weights", str(path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--decoder greedy --lm a.arpa", "--lm has no effect with --decoder greedy"),
        ("--decoder lexicon", "--decoder lexicon needs the words; give --lexicon FILE"),
        ("--decoder beam --alpha 1", "--alpha has no effect without --lm"),
        ("--search_weights dev.json", "--search_weights has no effect without --lm"),
        ("--lexicon a.txt --hotword_weight 1", "--hotword_weight has no effect without --hotwords"),
        ("--lm a.arpa --search_weights dev.json --beta 1", "--search_weights contradicts --beta"),
        ("--lm a.arpa --search_weights ./test.json", "--search_weights is one of --eval_datasets"),
        ("--beam_size 0", "beam_size"),
    ],
)
def test_what_would_have_no_effect_is_refused_in_one_line(words: str, message: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        parsed(*words.split())
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
