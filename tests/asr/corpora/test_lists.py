"""Folders of recordings with texts beside them, and lists of ids and texts."""

import pytest
from toys.corpora import record, written

from nemo_asr.corpora.conversion import make
from nemo_lite.base.errors import DataError


def test_a_folder_of_recordings_with_texts_beside_them(tmp_path):
    for name, text in (("早/你好.wav", "你好,世界"), ("早/b.flac", "two\nlines\n"), ("c.ogg", "\ufeffMarke")):
        record(tmp_path / name)
        (tmp_path / name).with_suffix(".txt").write_text(text, "utf-8")
    (tmp_path / "README.txt").write_text("about")
    (tmp_path / "._c.ogg").write_bytes(b"of another system")
    made = make(tmp_path)
    assert (made.kind, made.problems) == ("folder", [])
    lines = written(tmp_path / "manifest.json")
    assert {line["audio_filepath"]: line["text"] for line in lines} == {
        "c.ogg": "Marke",
        "早/b.flac": "two lines",
        "早/你好.wav": "你好,世界",
    }


def test_endings_in_capitals_as_of_a_memory_card_are_found(tmp_path):
    record(tmp_path / "a.wav")
    (tmp_path / "a.wav").rename(tmp_path / "A.WAV")
    (tmp_path / "A.TXT").write_text("words")
    made = make(tmp_path)
    assert (made.kind, made.problems) == ("folder", [])
    assert [line["text"] for line in written(tmp_path / "manifest.json")] == ["words"]


def test_texts_and_recordings_without_the_other_are_named(tmp_path):
    record(tmp_path / "a.wav")
    record(tmp_path / "b.wav")
    record(tmp_path / "b.mp3")
    (tmp_path / "b.txt").write_text("words")
    (tmp_path / "c.txt").write_text("no sound")
    record(tmp_path / "d.wav")
    (tmp_path / "d.txt").write_bytes("мир".encode("cp1251"))
    made = make(tmp_path)
    assert made.problems == [
        f"{tmp_path}/a.wav: the recording has no text beside it: wanted a.txt",
        f"{tmp_path}/b.mp3: two recordings have one text: b.wav is used; give it another name, or remove it",
        f"{tmp_path}/d.txt:1: the text is not UTF-8: got the byte 0xec; save it as UTF-8 text",
        f"{tmp_path}/c.txt: the text has no recording beside it: wanted c.wav or the like",
    ]
    assert len(written(tmp_path / "manifest.json")) == 1


def test_of_recordings_that_share_a_text_the_one_without_loss_is_used(tmp_path):
    record(tmp_path / "memo.wav")
    (tmp_path / "memo.m4a").write_bytes(b"\0\0\0\x1cftypM4A \0\0\2\0M4A isomiso2" + b"\0" * 200)
    record(tmp_path / "memo.mp3")
    (tmp_path / "memo.txt").write_text("words")
    problem = "two recordings have one text: memo.wav is used; give it another name, or remove it"
    assert make(tmp_path).problems == [f"{tmp_path}/memo.{end}: {problem}" for end in ("m4a", "mp3")]
    assert [line["audio_filepath"] for line in written(tmp_path / "manifest.json")] == ["memo.wav"]


def test_a_recording_that_needs_a_missing_decoder_is_told_and_not_overlooked(tmp_path):
    record(tmp_path / "a.wav")
    (tmp_path / "b.m4a").write_bytes(b"\0\0\0\x1cftypM4A \0\0\2\0M4A isomiso2" + b"\0" * 200)
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("words")
    (problem,) = make(tmp_path).problems
    assert problem.startswith(f"{tmp_path}/b.txt: {tmp_path}/b.m4a ")


def test_folders_named_as_sets_become_sets(tmp_path):
    for name in ("train/s1/a", "train/s2/b", "test/c"):
        record(tmp_path / f"{name}.wav")
        (tmp_path / f"{name}.txt").write_text("x")
    made = make(tmp_path)
    assert {path.name: len(entries) for path, entries in made.manifests.items()} == {"test.json": 1, "train.json": 2}


def test_lists_of_ids_and_texts_find_their_recordings(tmp_path):
    layouts = {
        "libri": ("dev-clean/84/121123/84-121123.trans.txt", "84-121123-0000 GO ON\n84-121123-0009 NO\n",
                  "dev-clean/84/121123/84-121123-0000.flac"),
        "mls": ("dev/transcripts.txt", "84_121123_000000\tgo on\n", "dev/audio/84/121123/84_121123_000000.ogg"),
        "voxforge": ("ann-2008-x/etc/PROMPTS", "ann-2008-x/mfc/a01 GO ON\n", "ann-2008-x/wav/a01.wav"),
    }  # fmt: skip
    for name, (file, content, audio) in layouts.items():
        root = tmp_path / name
        record(root / audio, rate=16000)
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(content)
        made = make(root)
        assert made.kind == "lists"
        ((path, (entry,)),) = made.manifests.items()
        assert path.name == {"libri": "dev-clean.json", "mls": "dev.json", "voxforge": "manifest.json"}[name]
        assert (entry["audio_filepath"], entry["text"].lower()) == (audio, "go on")
        assert entry["speaker"] == ("ann-2008-x" if name == "voxforge" else "84")
        assert len(made.problems) == (name == "libri")
    assert (
        "84-121123-0009 has no recording: wanted 84-121123-0009.flac or the like in "
        in make(tmp_path / "libri", overwrite=True).problems[0]
    )


def test_a_folder_whose_texts_are_elsewhere_is_refused_in_a_few_lines(tmp_path):
    for number in range(30):
        record(tmp_path / f"wav48/p225/p225_{number:03}.wav")
    with pytest.raises(DataError) as error:
        make(tmp_path)
    assert "p225_000.wav: the recording has no text beside it: wanted p225_000.txt" in str(error.value)
    assert str(error.value).count("\n") <= 11


def test_ids_that_occur_twice_are_named_and_equal_lines_are_one(tmp_path):
    folder = tmp_path / "kaldi"
    for number in range(4):
        record(folder / f"r{number}.wav")
    (folder / "wav.scp").write_text("r0 r0.wav\nr1 r1.wav\nr2 r2.wav\nr3 r3.wav\nr0 r0.wav\nr2 r1.wav\n")
    (folder / "text").write_text("r0 yes\nr1 no\nr2 up\nr3 go\nr3 stop\nr0 yes\n\u3000\n")
    made = make(folder)
    assert [entry["text"] for entries in made.manifests.values() for entry in entries] == ["yes", "no"]
    text, scp = made.problems
    assert text == (
        f"{folder}/text:5: r3 occurs a second time: got stop, wanted what line 4 has: go; "
        "keep the right line; both are left out"
    )
    assert scp.startswith(f"{folder}/wav.scp:6: r2 occurs a second time: got r1.wav, wanted what line 3 has: r2.wav")
    lists = tmp_path / "lists"
    for name in ("a/1", "a/2", "b/2", "wav/3"):
        record(lists / f"{name}.wav")
    record(lists / "ogg/3.ogg")  # the same in another format
    (lists / "transcripts.txt").write_text("1 yes\n1 yes\n2 no\n3 up\n\u00a0\n1b x\n3 up\n")
    made = make(lists)
    assert [entry["text"] for entries in made.manifests.values() for entry in entries] == ["yes", "up"]
    assert made.problems[0].startswith(
        f"{lists}/transcripts.txt:3: two recordings are called 2: got {lists}/a/2.wav and"
    )
    (lists / "transcripts.txt").write_text("1 yes\n3 up\n1 no\n")
    made = make(lists, overwrite=True)
    assert [problem.rpartition("txt:")[2][1:26] for problem in made.problems] == [": 1 occurs with two texts"] * 2
