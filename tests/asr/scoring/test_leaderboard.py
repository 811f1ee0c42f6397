"""Rates of the public leaderboard: by a checkout of its code, or a stand-in with the same names."""

import json
import os
import subprocess

import pytest
from ruamel.yaml import YAML
from toys.leaderboard_texts import STORED, VERSION, texts

from nemo_asr.scoring.leaderboard import (
    LeaderboardRate,
    check_leaderboard,
    leaderboard_rate,
    load_leaderboard,
    results_yaml,
)
from nemo_asr.scoring.normalize import score_normalizer
from nemo_lite.base.errors import UsageError

LINES = [json.loads(line) for line in STORED.read_text(encoding="utf-8").splitlines()]
STAND_IN = (
    "class EnglishTextNormalizer:\n    def __call__(self, text):\n        return text.lower().replace('-', ' ')\n"
)


def checkout(folder, code=STAND_IN):
    (folder / "normalizer").mkdir(parents=True)
    (folder / "normalizer/normalizer.py").write_text(code)
    (folder / "normalizer/__init__.py").write_text("from .normalizer import EnglishTextNormalizer\n")
    return str(folder)


def test_the_stored_lines_are_of_our_texts():
    assert [tuple(line["texts"]) for line in LINES] == texts()
    assert len(LINES) == 200


def test_the_rate_of_200_texts_is_that_of_the_leaderboards_code():
    pytest.importorskip("kaldialign")
    said, heard = zip(*(line["normalized"] for line in LINES), strict=True)
    rate = leaderboard_rate(said, heard)
    scored = [line for line in LINES if line["normalized"][0] not in ("", "ignore time segment in scoring")]
    expected = [sum(line["errors"][place] for line in scored) for place in range(3)]
    assert [rate.insertions, rate.deletions, rate.substitutions] == expected
    assert rate.rate == sum(expected) / sum(len(line["normalized"][0].split()) for line in scored)
    assert rate.num_utterances == len(scored) == 198


def test_words_that_were_split_or_joined_are_no_errors():
    pytest.importorskip("kaldialign")
    assert leaderboard_rate(["white paper", "wifi"], ["whitepaper", "wi fi"]).rate == 0.0
    assert leaderboard_rate(["white paper", "", "a"], ["whitepapers", "x", "a"]).num_utterances == 2
    with pytest.raises(UsageError, match="leaves no words of the references"):
        leaderboard_rate([" "], ["a"])


@pytest.mark.skipif("LEADERBOARD_SOURCE" not in os.environ, reason=f"LEADERBOARD_SOURCE: a checkout at {VERSION}")
def test_a_checkout_normalises_as_it_did_when_the_lines_were_stored():
    board = load_leaderboard(os.environ["LEADERBOARD_SOURCE"])
    for line in LINES:
        assert list(map(board.normalize, line["texts"])) == line["normalized"]


def test_a_checkout_is_run_and_named_by_its_commit(tmp_path):
    folder = checkout(tmp_path / "board")
    assert score_normalizer(f"leaderboard:{folder}")("Wi-Fi") == "wi fi"
    assert load_leaderboard(folder).version.startswith("sha256:")

    def git(*words):
        line = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    git("add", "-A")
    git("commit", "-m", "x")
    load_leaderboard.cache_clear()
    assert load_leaderboard(folder).version == git("rev-parse", "--short=7", "HEAD")
    (tmp_path / "board/normalizer/normalizer.py").write_text(STAND_IN + "\n")
    load_leaderboard.cache_clear()
    assert load_leaderboard(folder).version.endswith("-dirty")


def test_what_is_no_checkout_or_does_not_run_is_refused_in_a_line(tmp_path):
    with pytest.raises(UsageError, match=r"this is no checkout .* wanted .*normalizer; give a checkout: git clone"):
        check_leaderboard(str(tmp_path))
    lacking = checkout(tmp_path / "a", "import no_such_package")
    with pytest.raises(UsageError, match=r"no_such_package is not installed.*; pip install kaldialign regex"):
        check_leaderboard(lacking)
    for name, code in (("b", "x ="), ("c", "EnglishTextNormalizer = None")):
        told = r"normaliser of the leaderboard does not run: got (Syntax|Type)Error.*; look at it, or give a checkout:"
        with pytest.raises(UsageError, match=told):
            check_leaderboard(checkout(tmp_path / name, code))


def test_the_file_has_what_hugging_face_asks_of_it():
    rates = {"ami": LeaderboardRate(0.101, 1, 1, 1, 9), "librispeech_clean": LeaderboardRate(0.0161, 0, 0, 1, 9)}
    rows = YAML(typ="safe").load(results_yaml(rates, "abc1234"))
    values = {row["dataset"]["task_id"]: row["value"] for row in rows}
    assert values == {"mean_wer": round((10.1 + 1.61) / 2, 2), "ami_wer": 10.1, "librispeech_clean_wer": 1.61}
    assert {row["dataset"]["id"] for row in rows} == {"hf-audio/open-asr-leaderboard"}
    assert {tuple(row) for row in rows} == {("dataset", "value", "date", "notes")}
    assert all(isinstance(row["date"], str) and "abc1234" in row["notes"] for row in rows)
    assert "2 sets: ami, librispeech_clean" in rows[0]["notes"]
    (row,) = YAML(typ="safe").load(results_yaml({"a: b": rates["ami"]}, "x"))
    assert row["dataset"]["task_id"] == "a: b_wer"
