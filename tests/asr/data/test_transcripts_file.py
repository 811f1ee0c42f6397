"""Transcripts of a set: a line for each utterance, with where its audio is."""

import json

import pytest
from toys.tone_corpus import TEXTS, make_corpus

import nemo_asr
from nemo_lite import DataLayerNM
from nemo_lite.errors import UsageError


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = make_corpus(tmp_path_factory.mktemp("tones"))
    return folder, nemo_asr.AudioToTextDataLayer(str(folder / "dev.json"), labels=list(" abc"), batch_size=2)


def test_a_line_has_place_audio_and_texts(dev, tmp_path):
    folder, data_layer = dev
    path = tmp_path / "new" / "dev.transcripts.jsonl"
    nemo_asr.write_transcripts(path, data_layer, [0, 2], ["cab", "bc"], ["cä", ""])
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        {
            **{"place": f"{folder / 'dev.json'}:{row + 1}", "audio_filepath": str(folder / f"dev{row}.wav")},
            **{"offset": None, "duration": pytest.approx(0.17 * len(TEXTS[row]))},
            **{"reference": TEXTS[row], "hypothesis": heard},
        }
        for row, heard in ((0, "cä"), (2, ""))
    ]
    nemo_asr.write_transcripts(path, data_layer, [1], ["abba"], ["a"])
    assert len(path.read_text().splitlines()) == 1, "replaced"


def test_a_data_layer_without_files_gives_places_and_texts(tmp_path):
    class Words(DataLayerNM):
        output_ports = {}

        def __len__(self):
            return 1

        def place_of(self, item):
            return f"word {item}"

    nemo_asr.write_transcripts(tmp_path / "t.jsonl", Words(), [0], ["a"], ["b"])
    assert json.loads((tmp_path / "t.jsonl").read_text()) == {"place": "word 0", "reference": "a", "hypothesis": "b"}


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(dev, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: there is a file where a folder is wanted"):
        nemo_asr.write_transcripts(tmp_path / "file" / "t.jsonl", dev[1], [0], ["a"], ["b"])


def test_references_are_the_texts_of_the_manifest_also_where_the_vocabulary_lacks_their_letters(tmp_path):
    folder = make_corpus(tmp_path)
    lines = [json.loads(line) for line in (folder / "dev.json").read_text().splitlines()]
    lines[0]["text"], lines[1]["text"] = "AB \u0436, c", ""
    (folder / "dev.json").write_text("\n".join(map(json.dumps, lines)))
    data_layer = nemo_asr.AudioToTextDataLayer(str(folder / "dev.json"), labels=list(" abc"), batch_size=2)
    said = nemo_asr.references_in_data(data_layer, [0, 1, 2], ["ab c", "", TEXTS[2]])
    assert said == ["ab \u0436 c", "", TEXTS[2]]
    assert nemo_asr.references_in_data(DataLayerNM(), [0], ["ab"]) == ["ab"]


def test_vowel_marks_are_taken_out_of_references_and_of_what_was_heard(tmp_path):
    folder = make_corpus(tmp_path)
    lines = [json.loads(line) for line in (folder / "dev.json").read_text().splitlines()]
    for line in lines:
        line["text"] = "ك\u0650ت\u064eابـ\u060c"
    (folder / "dev.json").write_text("\n".join(map(json.dumps, lines)))
    for labels, strip_marks, said, heard in [
        (" كتاب", None, "كتاب", "ك\u0650تاب"),
        (" كتاب", False, "ك\u0650ت\u064eابـ", "ك\u0650تاب"),
        (" كتاب\u0650\u064e", None, "ك\u0650ت\u064eاب", "ك\u0650تاب"),
        (" كتاب\u0650\u064e", True, "كتاب", "كتاب"),
    ]:
        settings = {"labels": list(dict.fromkeys(labels)), "batch_size": 2, "strip_marks": strip_marks}
        data_layer = nemo_asr.AudioToTextDataLayer(str(folder / "dev.json"), **settings)
        assert nemo_asr.references_in_data(data_layer, [0], [""]) == [said]
        assert nemo_asr.hypotheses_in_data(data_layer, ["ك\u0650تاب"]) == [heard]
    assert nemo_asr.hypotheses_in_data(DataLayerNM(), ["ab"]) == ["ab"]
