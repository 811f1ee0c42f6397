"""STM files: segments, channels in all spellings, and the notation of NIST."""

import pytest
from toys.corpora import record, written

from nemo_asr.commands.cli.data import main
from nemo_asr.corpora.conversion import make
from nemo_asr.corpora.stm import words_of


def test_segments_of_stm_are_parts_of_recordings_beside_their_folder(tmp_path):
    record(tmp_path / "train/sph/talk.wav", 3.0)
    (tmp_path / "train/stm").mkdir(parents=True)
    lines = [
        ";; comment",
        "talk 1 ann 0.50 1.25 <o,f0,female> it 's on",
        "talk 1 inter_segment_gap 1.25 2.00 <o,,> ignore_time_segment_in_scoring",
        "talk 1 ann 2.00 2.50 no labels",
        "other 1 ann 0 1 <o> lost",
        "talk 1 ann zero 1 <o> lost",
    ]
    (tmp_path / "train/stm/talk.stm").write_text("\n".join(lines))
    made = make(tmp_path)
    assert made.kind == "stm"
    assert [(line["text"], line["offset"], line["duration"]) for line in written(tmp_path / "train.json")] == [
        ("it 's on", 0.5, 0.75),
        ("no labels", 2.0, 0.5),
    ]
    lost, broken = made.problems
    assert "talk.stm:5: other has no recording: wanted other.sph or the like in " in lost
    assert "talk.stm:6: this is no segment: got talk 1 ann zero 1 <o> lost, wanted RECORDING CHANNEL" in broken


@pytest.mark.parametrize(
    ("lines", "channels"),
    [
        ("r A ann 0 0.4 yes\nr B bob 0 0.4 no", [0, 1]),
        ("r a ann 0 0.4 yes\nr b bob 0 0.4 no", [0, 1]),
        ("r 1 ann 0 0.4 yes\nr 2 bob 0 0.4 no", [0, 1]),
        ("r 0 ann 0 0.4 yes\nr 1 bob 0 0.4 no", [0, 1]),
        ("r ch1 ann 0 0.4 yes\nr ch2 bob 0 0.4 no", [0, 1]),
        ("r left ann 0 0.4 yes\nr R bob 0 0.4 no", [0, 1]),
    ],
)
def test_channels_of_stm_stay_apart_in_all_their_spellings(tmp_path, lines, channels):
    record(tmp_path / "r.wav", channels=2)
    (tmp_path / "r.stm").write_text(lines)
    made = make(tmp_path)
    assert [entry["channel"] for entries in made.manifests.values() for entry in entries] == channels
    assert made.problems == made.notes == []


def test_a_channel_that_nobody_understands_or_that_is_not_there_is_named(tmp_path):
    record(tmp_path / "two.wav", channels=2)
    record(tmp_path / "one.wav")
    (tmp_path / "r.stm").write_text(
        "two main ann 0 0.4 yes\ntwo 3 bob 0 0.4 no\none main ann 0 0.4 up\none 1 ann 0 0.4 go\none B bob 0 0.4 x\n"
        "two 1 ann 0.0.1 0.4 no\n"
    )
    made = make(tmp_path)
    assert [entry["text"] for entries in made.manifests.values() for entry in entries] == ["up", "go"]
    unknown, third, second, broken = made.problems
    assert "two.wav has no such channel: got 'main', wanted one of its 2" in unknown.partition("r.stm:1: ")[2]
    assert "got channel 2, counted from 0, wanted one of its 2" in third.partition("r.stm:2: ")[2]
    assert "one.wav has no such channel: got channel 1, counted from 0" in second.partition("r.stm:5: ")[2]
    assert "r.stm:6: this is no segment: got two 1 ann 0.0.1 0.4 no, wanted RECORDING CHANNEL" in broken


@pytest.mark.parametrize(
    ("written", "words", "notation"),
    [
        ("zero two(2) <unk> {NOISE}", "zero two <unk> {NOISE}", ["(2)"]),
        ("{ going to / gonna } go", "going to go", ["{ going to / gonna }"]),
        ("{ @ / uh } { a / { b / c } }", "uh a", ["{ @ / uh }", "{ b / c }", "{ a / b }"]),
        ("oh (zero) (%hesitation) @ five", "oh zero five", ["(zero)", "(%hesitation)", "%hesitation", "@"]),
        ("%10 and 5 % a{b", "%10 and 5 % a{b", []),
    ],
)
def test_words_of_stm_are_read_as_nist_has_them(written, words, notation):
    assert words_of(written) == (words, tuple(notation))


def test_marks_and_notation_of_stm_are_named_and_counted(tmp_path, capsys):
    record(tmp_path / "r.wav", 2.0)
    (tmp_path / "r.stm").write_text("r 1 ann 0 1 <o> one two(2) <unk> {NOISE}\nr 1 ann 1 2 <o> <unk> (zero) five\n")
    assert main(["make", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-2] == (
        'marks in the texts that are no words: "<unk>" x2 "{NOISE}" x1; training leaves them out and counts them, '
        "unless they are labels"
    )
    assert out[-1].startswith('notation of NIST in the texts: "(2)" x1 "(zero)" x1; of alternatives the first is taken')
    assert [line["text"] for line in written(tmp_path / "manifest.json")] == [
        "one two <unk> {NOISE}",
        "<unk> zero five",
    ]


def test_segments_of_stm_that_are_not_scored_are_no_text_in_any_case(tmp_path):
    record(tmp_path / "r.wav", 2.0)
    (tmp_path / "r.stm").write_text("r 1 x 0 1 IGNORE_TIME_SEGMENT_IN_SCORING\nr 1 ann 1 2 yes\n")
    assert [entry["text"] for entries in make(tmp_path).manifests.values() for entry in entries] == ["yes"]
