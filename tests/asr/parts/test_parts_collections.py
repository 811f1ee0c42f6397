"""NeMo's lists: what is kept, in which order, and their fields."""

import json

import pytest

from nemo_asr.parts.collections import ASRAudioText, ASRSpeechLabel, AudioText, FromFileText, SpeechLabel, Text
from nemo_asr.parts.parsers import CharParser

PARSER = CharParser([" ", "a", "b"])


@pytest.fixture
def manifest(tmp_path):
    lines = [
        {"audio_filepath": f"x/{number}.wav", "duration": number, "text": text, "label": text or "no"}
        for number, text in enumerate(["b", "a", "", "ab"], start=1)
    ]
    (tmp_path / "m.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(tmp_path / "m.json")


def test_texts_that_the_parser_refuses_are_left_out_and_empty_ones_stay():
    assert [entity.tokens for entity in Text(["ab", 3, ""], PARSER)] == [[1, 2], []]


@pytest.mark.parametrize(
    ("name", "content"), [("t.txt", "a\nb a\n"), ("t.csv", "wav,transcript\n1.wav,a\n2.wav,b a\n")]
)
def test_texts_come_from_lines_columns_and_manifests(name, content, tmp_path, manifest):
    (tmp_path / name).write_text(content)
    assert [entity.tokens for entity in FromFileText(tmp_path / name, PARSER)] == [[1], [2, 0, 1]]
    assert [entity.tokens for entity in FromFileText(manifest, PARSER)] == [[2], [1], [], [1, 2]]


def test_utterances_are_filtered_sorted_and_counted(manifest, capsys):
    found = ASRAudioText(manifest, parser=PARSER, min_duration=2, max_duration=3)
    assert "ASRAudioText: 2 utterances kept (0.00 h), 2 left out" in capsys.readouterr().out
    assert [(one.id, one.audio_file, one.text_tokens, one.text_raw) for one in found] == [
        (1, "x/2.wav", [1], "a"),
        (2, "x/3.wav", [], ""),
    ]
    assert len(ASRAudioText([manifest, manifest], parser=PARSER, max_number=3)) == 3
    columns = [[0, 1], ["b.wav", "a.wav"], [2.0, 1.0], ["a", "b"], [None, None], [None, "s"]]
    found = AudioText(*columns, parser=PARSER, do_sort_by_duration=True)
    assert [one.duration for one in found] == [1.0, 2.0]
    assert found.OUTPUT_TYPE._fields == ("id", "audio_file", "duration", "text_tokens", "offset", "text_raw", "speaker")


def test_utterances_are_found_by_the_base_name_of_their_file(manifest):
    found = ASRAudioText(manifest, parser=PARSER, index_by_file_id=True)
    assert found.mapping == {"1": 0, "2": 1, "3": 2, "4": 3}


def test_classes_are_listed_sorted(manifest):
    found = ASRSpeechLabel(manifest, max_duration=3)
    assert found.uniq_labels == ["a", "b", "no"]
    assert found[0]._asdict() == {"audio_file": "x/1.wav", "duration": 1, "label": "b", "offset": None}
    assert SpeechLabel(["a"], [1.0], ["x"], [0.5])[0].offset == 0.5


def test_a_line_without_a_class_is_refused(tmp_path):
    (tmp_path / "m.json").write_text('{"audio_filepath": "a.wav", "duration": 1}\n')
    with pytest.raises(ValueError, match="a line has no class: wanted command, target or label"):
        ASRSpeechLabel(str(tmp_path / "m.json"))
