"""item_iter: which keys of a line count, where paths lead, and what is refused."""

import json

import pytest

from nemo_asr.parts.manifest import item_iter


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(name, *lines):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return name

    return written


def test_a_line_becomes_a_dictionary_and_its_other_keys_are_dropped(write):
    line = {"audio_filepath": "~/a.wav", "duration": 1.5, "text": "one", "lang": "en"}
    first = write("a.json", line, {**line, "audio_filepath": "b.wav", "offset": 2, "speaker": ["x"]})
    items = list(item_iter(first))
    assert items[0]["audio_file"].startswith("/")
    assert items[1] == {
        **{"audio_file": "b.wav", "duration": 1.5, "text": "one"},
        **{"offset": 2, "speaker": ["x"], "id": 1},
    }


def test_texts_are_looked_for_in_nemos_order(write, tmp_path):
    (tmp_path / "t.txt").write_text("from a\nfile\n")
    line = {"audio_filepath": "a.wav", "duration": 1}
    others = {"text_filepath": "t.txt", "normalized_text": "normal"}
    name = write("a.json", {**line, **others, "text": ""}, {**line, **others}, {**line, "normalized_text": "normal"})
    assert [item["text"] for item in item_iter(name)] == ["", "from afile", "normal"]


def test_ids_go_on_over_the_manifests(write):
    line = {"audio_filepath": "a.wav", "duration": 1, "text": ""}
    assert [item["id"] for item in item_iter([write("a.json", line, line), write("b.json", line)])] == [0, 1, 2]


def test_a_path_that_leads_nowhere_but_beside_the_manifest_starts_there(write, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.wav").touch()
    line = {"duration": 1, "text": ""}
    name = write("set/m.json", {**line, "audio_filepath": "a.wav"}, {**line, "audio_filepath": "none.wav"})
    assert [item["audio_file"] for item in item_iter(name)] == ["set/a.wav", "none.wav"]


def test_a_function_may_read_the_lines(write):
    name = write("a.json", "x", "y")
    found = list(item_iter(name, lambda line, path: {"line": line.strip(), "path": path}))
    assert found == [{"line": '"x"', "path": name, "id": 0}, {"line": '"y"', "path": name, "id": 1}]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"duration": 1, "text": ""}, r"no audio_filepath \(or audio_filename\)"),
        ({"audio_filepath": "a.wav", "text": ""}, "there is no duration"),
        ({"audio_filepath": "a.wav", "duration": 1}, "there is no text, text_filepath or normalized_text; write"),
        (
            {"audio_filepath": "a.wav", "duration": 1, "text_filepath": "no.txt"},
            r"no\.txt: the text file cannot",
        ),
        (["a.wav"], "expected object, got array"),
    ],
)
def test_a_line_without_its_keys_is_a_value_error_with_its_place(line, problem, write):
    with pytest.raises(ValueError, match=rf"^a\.json:1: {problem}"):
        list(item_iter(write("a.json", line)))
