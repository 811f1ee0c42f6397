"""Data folders of Kaldi: recordings, segments, channels, and commands, which are not run."""

import pytest
from toys.corpora import record, written

from nemo_asr.corpora.conversion import make
from nemo_lite.base.errors import DataError


def kaldi(folder, segments=True):
    record(folder / "r.wav", 2.0, channels=2)
    record(folder / "sp ace.flac", 1.0)
    (folder / "wav.scp").write_text(
        f"rec1 sph2pipe -f wav -p -c 2 {folder}/r.wav |\nrec2 flac -c -d -s '{folder}/sp ace.flac' |\n"
        "rec3 sox a.wav -t wav - |\nrec4 r.wav\n"
    )
    if segments:
        (folder / "segments").write_text(
            "u1 rec1 0.5 1.25\nu2 rec2 0.0 -1\nu3 rec3 0 1\nu4 rec4 1.5 9\nu5 rec9 0 1\nu6 rec1 x\nu7 rec1 0 1\n"
        )
    names = [f"u{number}" for number in range(1, 7)] if segments else ["rec1", "rec2", "rec3", "rec4"]
    (folder / "text").write_text("".join(f"{name} 字 {name}\n" for name in names), "utf-8")
    (folder / "utt2spk").write_text("".join(f"{name} spk\n" for name in names[:1]))
    return folder


def test_kaldi_segments_are_parts_of_recordings(tmp_path):
    folder = kaldi(tmp_path)
    made = make(folder)
    assert made.kind == "kaldi"
    assert written(folder / "manifest.json") == [
        {"audio_filepath": "r.wav", "duration": 0.75, "text": "字 u1", "offset": 0.5, "speaker": "spk", "channel": 1},
        {"audio_filepath": "sp ace.flac", "duration": 1.0, "text": "字 u2"},
    ]
    command, beyond, unknown, broken, silent = made.problems
    assert command == (
        f"{folder}/wav.scp:3: the recording is a command, which is not run: got sox a.wav -t wav - |; "
        "run it once, and write the name of the file that it makes"
    )
    assert "segments:4: the part is not in its recording: got 1.5 to 9 s, wanted a part of" in beyond
    assert unknown == f"{folder}/segments:5: rec9 is no recording: wanted a line in {folder}/wav.scp"
    assert broken == f"{folder}/segments:6: this is no segment: got rec1 x, wanted ID RECORDING START END [CHANNEL]"
    assert silent == f"{folder}/segments:7: u7 has no text: wanted a line in {folder}/text"


def test_kaldi_folders_of_sets_are_sets(tmp_path):
    for name in ("train_clean", "dev"):
        kaldi(tmp_path / "data" / name, segments=False)
    made = make(tmp_path / "data", tmp_path / "out")
    assert {path.name: len(entries) for path, entries in made.manifests.items()} == {
        "dev.json": 3,
        "train_clean.json": 3,
    }
    assert written(tmp_path / "out/dev.json")[2]["audio_filepath"] == str(tmp_path / "data/dev/r.wav"), "lies elsewhere"


def test_a_folder_of_kaldi_without_texts_is_told_what_it_lacks(tmp_path):
    (tmp_path / "wav.scp").write_text("a a.wav\n")
    with pytest.raises(DataError, match=r"text: the list is missing: wanted wav\.scp and text, .*; name the folder"):
        make(tmp_path)


def test_kaldi_lists_name_channels_in_three_places(tmp_path):
    for name in ("a", "b", "c"):
        record(tmp_path / f"{name}.wav", channels=2)
    record(tmp_path / "7.flac")
    (tmp_path / "wav.scp").write_text(
        "a a.wav\nb sph2pipe -f wav -p -c2 b.wav |\nc c.wav\nd sph2pipe -t 0:1 c.wav |\ne flac -d -s 7.flac |\n"
        "f flac -d --skip=5 7.flac |\n"
    )
    (tmp_path / "segments").write_text(
        "a0 a 0 0.4 0\na1 a 0 0.4 1\na2 a 0 0.4 -1\nb0 b 0 0.4 0\nc0 c 0 0.4\nd0 d 0 1\ne0 e 0 0.4\nf0 f 0 1\n"
        "a3 a 0 0.4 1 x\n"
    )
    names = ("a0", "a1", "a2", "a3", "b0", "c0", "d0", "e0", "f0")
    (tmp_path / "reco2file_and_channel").write_text("c c B\ne e A\n")
    (tmp_path / "text").write_text("".join(f"{name} {name}\n" for name in names))
    made = make(tmp_path)
    ((*entries,),) = made.manifests.values()
    assert {entry["text"]: entry.get("channel") for entry in entries} == {
        "a0": 0, "a1": 1, "a2": None, "b0": 1, "c0": 1, "e0": None
    }  # fmt: skip
    assert [problem.partition(": ")[2][:44] for problem in made.problems] == [
        "the recording is a command, which is not run",
        "the recording is a command, which is not run",
        "this is no segment: got a 0 0.4 1 x, wanted ",
    ]
