"""Text for a terminal."""

from toys.checked_sets import add, sound, write_set

from nemo_asr.data.check import Finding, as_text, examine, statistics_of


def figures(tmp_path):
    lines = [add(tmp_path, f"{n}.wav", sound(n, 1 + n), text=f"one {n}", speaker="ann") for n in range(3)]
    return statistics_of(examine(write_set(tmp_path, "train.json", *lines)))


def test_the_figures_of_a_set_are_a_block(tmp_path):
    lines = as_text([figures(tmp_path)], None).splitlines()
    assert lines[0] == str(tmp_path / "train.json")
    assert lines[1] == "  3 utterances, 0.00 h, 1 speakers"
    assert "  sample rates  16000 (3)" in lines
    assert any(line.startswith("  seconds       1.00 to 3.00, median 2.00, 95 % below 2.90  |█") for line in lines)
    assert "  characters    7: ' 012eno'" in lines


def test_a_set_that_cannot_be_read_is_not_empty(tmp_path):
    lines = [{"audio_filepath": "none.wav", "duration": 1.0, "text": "a"}] * 2
    found = statistics_of(examine(write_set(tmp_path, "train.json", *lines)))
    assert as_text([found], None).splitlines()[1] == "  0 utterances, 0.00 h, 2 more cannot be used"


def test_problems_come_last_and_long_lists_are_cut():
    findings = [
        Finding("leak", True, "9 leaks", [f"e:{n}" for n in range(9)]),
        Finding("text", False, "4 texts", [f"t:{n}" for n in range(4)]),
    ]
    lines = as_text([], findings).splitlines()
    assert lines.index("Worth knowing") < lines.index("Problems")
    assert "    ... and 1 more (--json has all)" in lines
    assert "    ... and 4 more (--json has all)" in lines
    assert lines[-1] == "1 problem found"
    assert as_text([], []) == "No problem found"
