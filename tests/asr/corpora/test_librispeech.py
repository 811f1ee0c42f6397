"""LibriSpeech manifests from a small set of the same layout."""

import json
import tarfile

import numpy as np
import pytest
import soundfile
from toys.hostile_audio import encoded, speech_like

from nemo_asr.corpora import librispeech
from nemo_lite.base.errors import DataError, FileInTheWayError, UnknownNameError, UsageError
from nemo_lite.base.outputs import RECORD


@pytest.fixture
def library(tmp_path):
    root = tmp_path / "library" / "LibriSpeech"
    for speaker, chapter, lines in (
        ("84", "121123", ["84-121123-0000 GO DO YOU HEAR", "84-121123-0001 BUT IN LESS"]),
        ("174", "50561", ["174-50561-0000 FORGOTTEN TOO THE NAME"]),
    ):
        folder = root / "dev-clean" / speaker / chapter
        folder.mkdir(parents=True)
        (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(f"{line}\n" for line in lines))
        for line in lines:
            soundfile.write(folder / f"{line.split()[0]}.flac", np.zeros(4000), 16000)
    (root / "LICENSE.TXT").write_text("CC BY 4.0")
    return root


def manifest(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def pack(library, path):
    with tarfile.open(path, "w:gz") as tar:
        tar.add(library, "LibriSpeech")
    return path


def test_a_set_in_the_data_root_gets_a_manifest_with_relative_paths(library):
    librispeech.make(library.parent, "dev_clean")
    entries = manifest(library.parent / "dev_clean.json")
    assert [entry["text"] for entry in entries] == ["forgotten too the name", "go do you hear", "but in less"]
    assert entries[1] == {
        "audio_filepath": "LibriSpeech/dev-clean/84/121123/84-121123-0000.flac",
        "duration": 0.25,
        "text": "go do you hear",
        "speaker": "84",
    }
    assert all((library.parent / entry["audio_filepath"]).exists() for entry in entries)


def test_an_archive_is_unpacked_to_where_the_manifest_points(library, tmp_path):
    archive = pack(library, tmp_path / "dev-clean.tar.gz")
    librispeech.make(tmp_path / "out", "dev-clean", archive)
    entries = manifest(tmp_path / "out" / "dev_clean.json")
    assert len(entries) == 3
    assert all((tmp_path / "out" / entry["audio_filepath"]).exists() for entry in entries)
    assert sorted(path.name for path in (tmp_path / "out/LibriSpeech").iterdir()) == ["dev-clean"]
    assert sorted(path.name for path in (tmp_path / "out/LibriSpeech/dev-clean").iterdir()) == [RECORD, "174", "84"]


def test_files_of_others_are_never_replaced_and_own_ones_are(library, tmp_path):
    archive, out = pack(library, tmp_path / "dev-clean.tar.gz"), tmp_path / "out"
    librispeech.make(out, "dev-clean", archive)
    librispeech.make(out, "dev-clean", archive)
    mine = out / "LibriSpeech/dev-clean/84/mine.flac"
    mine.write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"dev-clean: the folder holds files .* got 84/mine\.flac; nothing has been"):
        librispeech.make(out, "dev-clean", archive)
    assert mine.read_bytes() == b"mine"
    (out / "dev_clean.json").write_text("mine")
    with pytest.raises(FileInTheWayError, match=r"dev_clean\.json: the file was changed since nemo-lite data make"):
        librispeech.make(out, "dev-clean")


def test_a_set_elsewhere_is_pointed_to_by_whole_paths(library, tmp_path):
    for source in (library, library.parent, library / "dev-clean"):
        librispeech.make(tmp_path / "out", "dev-clean", source)
        assert manifest(tmp_path / "out" / "dev_clean.json")[0]["audio_filepath"].startswith(str(library))


def test_a_set_that_is_nowhere_is_downloaded(library, tmp_path, monkeypatch):
    def fetch(url, path, sha256):
        assert url == "https://www.openslr.org/resources/12/dev-clean.tar.gz"
        assert len(sha256) == 64
        pack(library, path)

    monkeypatch.setattr(librispeech, "download", fetch)
    assert len(librispeech.make(tmp_path / "out", "dev_clean")) == 3


def test_an_archive_of_another_set_leaves_nothing_behind(library, tmp_path):
    archive = pack(library, tmp_path / "a.tar.gz")
    with pytest.raises(DataError, match=r"a\.tar\.gz: the archive is of another set: wanted LibriSpeech/test-clean"):
        librispeech.make(tmp_path / "out", "test_clean", archive)
    assert not list((tmp_path / "out/LibriSpeech").iterdir())


def test_an_unknown_set_gets_the_known_ones(tmp_path):
    with pytest.raises(UnknownNameError, match=r'data set "dev_cleen" is not known; known: dev-clean, .*did you mean'):
        librispeech.make(tmp_path, "dev_cleen")


def test_a_missing_recording_is_named_by_the_line_that_lists_it(library):
    (library / "dev-clean/84/121123/84-121123-0001.flac").unlink()
    with pytest.raises(DataError, match=r"84-121123\.trans\.txt:2: the recording cannot be read: got .*0001\.flac"):
        librispeech.make(library.parent, "dev_clean")
    assert not (library.parent / "dev_clean.json").exists()


@pytest.mark.parametrize(
    ("kind", "subtype", "told"),
    [
        ("MP3", "MPEG_LAYER_III", r"0001\.flac is of another kind: got MP3, wanted FLAC"),
        ("WAV", "IMA_ADPCM", r"0001\.flac is of another kind: got WAV, wanted FLAC"),
        ("WAV", "GSM610", r"0001\.flac has the codec GSM610"),
    ],
)
def test_a_recording_of_another_kind_under_the_name_of_flac_is_refused(kind, subtype, told, library):
    if kind not in soundfile.available_formats():
        pytest.skip(f"this libsndfile has no {kind}")
    path = library / "dev-clean/84/121123/84-121123-0001.flac"
    path.write_bytes(encoded(speech_like(3000), kind, subtype))
    with pytest.raises(DataError, match=rf"84-121123\.trans\.txt:2: the recording cannot be read: got .*{told}"):
        librispeech.make(library.parent, "dev_clean")
    assert not (library.parent / "dev_clean.json").exists()


def test_a_recording_whose_head_disagrees_with_its_samples_is_refused(library):
    path = library / "dev-clean/84/121123/84-121123-0001.flac"
    content = encoded(speech_like(3000, 2), "FLAC")
    path.write_bytes(content[:30] + content[32:])
    with pytest.raises(DataError, match=r"trans\.txt:2: .*0001\.flac is damaged: no frame of samples follows the head"):
        librispeech.make(library.parent, "dev_clean")


def test_a_line_that_is_no_transcript_is_named(library):
    (library / "dev-clean/84/121123/84-121123.trans.txt").write_text("84-121123-0000\n")
    with pytest.raises(DataError, match=r"84-121123\.trans\.txt:1: this is not a transcript: got '84-121123-0000'"):
        librispeech.make(library.parent, "dev_clean")


def test_a_folder_without_transcripts_is_refused(tmp_path):
    (tmp_path / "LibriSpeech/dev-clean").mkdir(parents=True)
    with pytest.raises(DataError, match=r"dev-clean: the folder has no transcripts"):
        librispeech.make(tmp_path, "dev_clean")


def test_the_command_line_takes_sets_by_commas_and_reports_errors_in_one_line(library, capsys):
    librispeech.main(["--data_root", str(library.parent), "--data_sets", "dev_clean,dev-clean"])
    assert capsys.readouterr().out.count("dev_clean.json: 3 utterances, 0.0 min, 11 words") == 2
    with pytest.raises(SystemExit) as ended:
        librispeech.main(["--nonsense"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit) as ended:
        librispeech.main(["--data_root", str(library.parent), "--data_sets", "dev"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(
        'python -m nemo_asr.corpora.librispeech: error: data set "dev" is not known'
    )
