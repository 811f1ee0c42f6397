"""Tables of CSV and TSV, and Common Voice: columns, rows and cells as people write them."""

import re

import pytest
from toys.corpora import common_voice_in, record, written

from nemo_asr.commands.cli.data import main
from nemo_asr.corpora.conversion import kind_of, make
from nemo_asr.corpora.tables import table_utterances
from nemo_asr.run.manifest import Manifest
from nemo_lite.base.errors import DataError


@pytest.fixture
def common_voice(tmp_path):
    return common_voice_in(tmp_path / "cs")


def test_common_voice_becomes_its_three_sets_with_speakers(common_voice):
    made = make(common_voice)
    assert made.kind == "common_voice"
    assert made.problems == []
    assert sorted(path.name for path in made.manifests) == ["dev.json", "test.json", "train.json"]
    first, second = written(common_voice / "train.json")
    assert first == {
        "audio_filepath": "clips/common_voice_cs_0.mp3",
        "duration": 1.0,
        "text": '"Příliš žluťoučký" kůň 0',
        "speaker": "spk0",
    }
    assert second["speaker"] == "spk1"
    assert len(Manifest.open(common_voice / "train.json", strict=True)) == 2, "training reads it"


def test_common_voice_without_the_three_sets_is_what_was_validated(common_voice):
    for name in ("train", "dev", "test"):
        (common_voice / f"{name}.tsv").unlink()
    make(common_voice)
    assert len(written(common_voice / "validated.json")) == 4


def test_missing_damaged_and_wordless_recordings_are_a_line_each_and_others_go_on(common_voice, capsys):
    (common_voice / "clips/common_voice_cs_1.mp3").write_bytes(b"no audio")
    with open(common_voice / "train.tsv", "a", encoding="utf-8") as file:
        file.write("spk\tgone.mp3\tid\tničí\t2\nspk\tcommon_voice_cs_0.mp3\tid\t \t2\nspk\n")
    assert main(["make", str(common_voice)]) == 1
    out, err = capsys.readouterr()
    table = common_voice / "train.tsv"
    lines = err.splitlines()
    assert lines[0].startswith(f"{table}:3: {common_voice}/clips/common_voice_cs_1.mp3 is not a WAV, FLAC")
    assert (
        lines[1]
        == f"{table}:4: the audio file {common_voice}/clips/gone.mp3 cannot be opened (No such file or directory)"
    )
    assert lines[2].startswith(f"{table}:5: the text is empty; ")
    assert lines[3] == f"{table}:6: the line has too few columns: got 1, wanted 5, as in the first line"
    assert len(lines) == 4
    assert f"{common_voice}/train.json: 1 utterance, " in out
    assert out.endswith("4 problems: see above; the other utterances are in the manifests\n")
    assert [line["text"] for line in written(common_voice / "dev.json")] == ['"Příliš žluťoučký" kůň 2']


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,file_name,speaker\nhello,x.wav,me\n"),
        ("a.csv", '\ufeffaudio;transcript;spk\nx;"hello";me\n'),
        ("a.csv", "x|hello\n"),
        ("a.tsv", "Path\tSentence\tClient_ID\nx.wav\thello\tme\n"),
    ],
)
def test_tables_are_read_by_the_names_of_their_columns(tmp_path, name, content):
    audio = record(tmp_path / "wavs/x.wav")
    (tmp_path / name).write_text(content, "utf-8")
    (row,) = table_utterances(tmp_path / name)
    assert (row.audio, row.text) == (audio, "hello")
    assert row.speaker == ("" if "|" in content else "me")
    assert kind_of(tmp_path / name) == kind_of(tmp_path) == "table"


@pytest.mark.parametrize(
    "head",
    [
        "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccent",
        "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccents\tvariant\tlocale\tsegment",
        "client_id\tpath\tsentence_id\tsentence\tsentence_domain\tup_votes\tdown_votes\tage\tgender\taccents\tvariant"
        "\tlocale\tsegment",
    ],
)
def test_common_voice_of_every_release_is_read(tmp_path, head):
    for name in ("a", "b"):
        record(tmp_path / f"clips/{name}.mp3")
    columns = head.split("\t")
    values = {"client_id": "me", "path": "a.mp3", "sentence": '"Ano", řekla', "sentence_id": "7"}
    rows = [values, {**values, "path": "b", "sentence": "it's"}, {**values, "sentence": ""}]
    lines = ["\t".join(row.get(column, "") for column in columns) for row in rows]
    (tmp_path / "validated.tsv").write_text("\n".join([head, *lines, ""]), "utf-8")
    (tmp_path / "invalidated.tsv").write_text("\n".join([head, *lines, ""]), "utf-8")
    (tmp_path / "train.tsv").write_text(head + "\n")
    (tmp_path / "validated_sentences.tsv").write_text("sentence_id\tsentence\n7\tAno\n")
    (tmp_path / "reported.tsv").write_text("sentence_id\tsentence\tlocale\treason\n7\tAno\tcs\tspelling\n", "utf-8")
    made = make(tmp_path)
    assert [(line["text"], line["speaker"]) for line in written(tmp_path / "validated.json")] == [
        ('"Ano", řekla', "me"),
        ("it's", "me"),
    ]
    assert [path.name for path in made.manifests] == ["validated.json"]
    assert made.problems == [f"{tmp_path}/validated.tsv:4: the text is empty; write the words, or remove the recording"]


def test_a_list_of_ljspeech_is_read_in_words_with_its_quotation_marks(tmp_path):
    audio = record(tmp_path / "wavs/LJ001-0001.wav")
    line = '"LJ001-0001|Printing, in 5, then, of "type", is|"Printing, in five, then, of ""type"", is\n'
    (tmp_path / "metadata.csv").write_text(line.removeprefix('"'))
    (row,) = table_utterances(tmp_path / "metadata.csv")
    assert (row.audio, row.text) == (audio, '"Printing, in five, then, of ""type"", is')


def test_a_table_without_such_columns_names_those_it_has(tmp_path):
    (tmp_path / "a.csv").write_text("id,words\n1,hello\n")
    with pytest.raises(DataError, match=r"a\.csv:1: the first line names no columns .*: got id,words, wanted one of"):
        make(tmp_path / "a.csv", kind="table")


def table(folder, *rows, name="t.csv", head="path,sentence", encoding="utf-8"):
    """A folder with six recordings and a table of these rows: what was made of it."""
    for number in range(6):
        record(folder / f"wav/r{number}.wav", 0.2 + number / 10)
    (folder / name).write_bytes(("\n".join([*([head] if head else []), *rows]) + "\n").encode(encoding))
    made = make(folder, overwrite=True)
    texts = [entry["text"] for entries in made.manifests.values() for entry in entries]
    return texts, [problem.removeprefix(f"{folder}/") for problem in made.problems]


@pytest.mark.parametrize(
    ("rows", "texts", "problem"),
    [
        (["wav/r1.wav,stop, go, stop"], [], "t.csv:3: the line has too many columns: got 4, wanted 2, as in the first"),
        (['wav/r1.wav, "stop, go"'], ["stop, go"], ""),
        (['wav/r1.wav,"stop, ""go"""'], ['stop, "go"'], ""),
        (["wav/r1.wav,stop,,", "", "wav/r2.wav,go"], ["stop", "go"], ""),
        (['wav/r1.wav,"two', 'lines"', "wav/r2.wav,go"], ["two lines", "go"], ""),
        (['wav/r1.wav,"seven', "wav/r2.wav,go"], ["go"], "t.csv:3: a quotation mark is opened and not closed in this"),
        (
            ['wav/r1.wav,"seven', 'wav/r2.wav,go"', "wav/r3.wav,up"],
            ['go"', "up"],
            "t.csv:3: a quotation mark is opened",
        ),
        (['wav/r1.wav,"seven', 'wav/r2.wav,"stop, go"'], ["stop, go"], "t.csv:3: a quotation mark is opened and not"),
        (['wav/r1.wav,5" long', 'wav/r2.wav,5" or "6"'], ['5" long', '5" or "6"'], ""),
        (['wav/r1.wav,"5" long'], [], "t.csv:3: the row cannot be read: got"),
        (['wav/r1.wav,"a" "b"'], [], "t.csv:3: the row cannot be read: got \"',' expected after '\"'\"; a cell in"),
        (["wav/r1.wav"], [], "t.csv:3: the line has too few columns: got 1, wanted 2, as in the first line"),
    ],
)
def test_rows_of_csv_are_read_whole_or_named(tmp_path, rows, texts, problem):
    got, problems = table(tmp_path, "wav/r0.wav,first", *rows)
    assert got == ["first", *texts]
    assert [line[: len(problem)] for line in problems] == [problem] * len(problems)
    assert bool(problems) == bool(problem)


def test_an_open_quotation_mark_before_the_recording_is_named(tmp_path):
    got, (problem,) = table(
        tmp_path, '"seven,wav/r1.wav', 'go",wav/r2.wav', '"two', 'lines",wav/r3.wav', head="sentence,path"
    )
    assert got == ['go"', "two lines"]
    assert problem.startswith('t.csv:2: a quotation mark is opened and not closed in this row: got "seven,wav/r1.wav;')


@pytest.mark.parametrize(
    ("name", "head", "rows", "texts", "problem"),
    [
        ("t.tsv", "path\tsentence", ["wav/r1.wav\tstop\tgo", 'wav/r2.wav\t"up'], ['"up'], "too many"),
        ("t.tsv", "path\tsentence\tup", ["wav/r1.wav\tstop", "go\t1", "wav/r2.wav\tup\t2"], ["up"], "too few"),
        ("t.csv", "", ["wav/r1.wav|yes, 1|yes, one", "wav/r2.wav|yes | no|yes no"], ["yes, one"], "too many"),
        ("t.csv", "", ["wav/r1.wav|a | b|a b", *["wav/r2.wav|no 1|no one"] * 2], ["no one"] * 2, "too many"),
    ],
)  # fmt: skip
def test_rows_by_tabs_and_bars_are_read_whole_or_named(tmp_path, name, head, rows, texts, problem):
    got, problems = table(tmp_path, *rows, name=name, head=head)
    assert got == texts
    assert re.match(rf"{re.escape(name)}:[12]: the line has {problem}", problems[0])


def test_parts_and_channels_of_tables_are_read(tmp_path):
    record(tmp_path / "a.wav", 2.0, channels=2)
    (tmp_path / "t.csv").write_text(
        "path,start,end,channel,text\na.wav,0.5,1.5,1,yes\na.wav,1,,A,no\na.wav,x,,,up\na.wav,,,2,go\na.wav,,,,all\n"
    )
    made = make(tmp_path)
    ((first, second, whole),) = made.manifests.values()
    assert (first["offset"], first["duration"], first["channel"]) == (0.5, 1.0, 1)
    assert (second["offset"], second["duration"], second["channel"]) == (1.0, 1.0, 0)
    assert whole == {"audio_filepath": "a.wav", "duration": 2.0, "text": "all"}
    assert "t.csv:4: the row has no times of a part: got \"could not convert string to float: 'x'\"" in made.problems[0]
    assert "a.wav has no such channel: got channel 2, counted from 0, wanted one of its 2" in made.problems[1]
    assert made.notes == [
        f"1 utterance of recordings with several channels, and none is named: their average is heard ({tmp_path}/a.wav)"
    ]


def test_tables_of_excel_and_in_other_encodings_are_read_or_told_as_such(tmp_path):
    assert table(tmp_path / "sep", "path;sentence", "wav/r1.wav;stop, go", head="sep=;") == (["stop, go"], [])
    got, (problem,) = table(tmp_path / "latin", "wav/r1.wav,caf\u00e9", "wav/r2.wav,go", encoding="latin-1")
    assert got == ["go"]
    assert problem == "t.csv:2: the line is not UTF-8: got the byte 0xe9; save it as UTF-8"
    with pytest.raises(
        DataError, match=r"can be used; a list there is not read: .*t\.csv: the table is UTF-16 \(save it"
    ):
        table(tmp_path / "wide", "wav/r1.wav,go", encoding="utf-16")
    (tmp_path / "sep/other.csv").write_bytes("path,text\n".encode("utf-16"))
    (tmp_path / "sep/third.csv").write_text("id,words\n1,go\n")
    (tmp_path / "sep/t.tsv").write_text("path\ttext\nwav/r2.wav\tgo\n")
    made = make(tmp_path / "sep", overwrite=True)
    assert sorted(path.name for path in made.manifests) == ["t_csv.json", "t_tsv.json"]
    assert made.problems[0] == f"{tmp_path}/sep/other.csv: the table is UTF-16; save it as UTF-8"
    (note,) = made.notes
    assert note.startswith(f"{tmp_path}/sep/third.csv is not read: the first line names no columns of audio and text")


def test_a_recording_with_two_texts_is_told(tmp_path):
    record(tmp_path / "a.wav", 1.0)
    (tmp_path / "t.csv").write_text("path,start,end,text\na.wav,,,one\na.wav,,,two\na.wav,,,one\na.wav,0.5,,three\n")
    (note,) = make(tmp_path).notes
    assert note == (
        f"1 utterance with the recording of another one and another text ({tmp_path}/t.csv:3): nemo-lite data check "
        "lists them"
    )
