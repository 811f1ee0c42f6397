"""AN4 manifests from a small corpus of the same layout."""

import json
import os
import tarfile

import numpy as np
import pytest
import soundfile
from toys.hostile_audio import encoded

from nemo_asr.corpora import an4
from nemo_lite.base.errors import DataError, FileInTheWayError
from nemo_lite.base.outputs import RECORD

SAMPLES = (np.sin(np.arange(8000) / 10) * 8000).astype(np.int16)


def sphere(samples, rate=16000):
    """A NIST SPHERE file as the corpus has them: 1,024 bytes of header, then the high byte of each sample first."""
    header = (
        "NIST_1A\n   1024\n"
        "database_id -s3 an4\n"
        "channel_count -i 1\n"
        f"sample_count -i {len(samples)}\n"
        f"sample_rate -i {rate}\n"
        "sample_min -i -8000\nsample_max -i 8000\n"
        "sample_n_bytes -i 2\n"
        "sample_byte_format -s2 10\n"
        "sample_sig_bits -i 16\n"
        "sample_coding -s3 pcm\n"
        "end_head\n"
    )
    return header.encode().ljust(1024) + samples.astype(">i2").tobytes()


@pytest.fixture
def corpus(tmp_path):
    root = tmp_path / "corpus" / "an4"
    listing = {
        "train": [
            ("an4_clstk/fash/an251-fash-b", "<s> YES </s> (an251-fash-b)"),
            ("an4_clstk/fash/an253-fash-b", "<s> GO  ENTER M </s> (an253-fash-b)"),
        ],
        "test": [("an4test_clstk/fcaw/an406-fcaw-b", "RUBOUT T G SEVENTY NINE (an406-fcaw-b)")],
    }
    (root / "etc").mkdir(parents=True)
    for split, items in listing.items():
        (root / f"etc/an4_{split}.fileids").write_text("".join(f"{file_id}\n" for file_id, _ in items))
        (root / f"etc/an4_{split}.transcription").write_text("".join(f"{line}\n" for _, line in items))
        for file_id, _ in items:
            path = root / "wav" / f"{file_id}.sph"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sphere(SAMPLES))
    return root


def manifest(root, split):
    return [json.loads(line) for line in (root / f"{split}_manifest.json").read_text().splitlines()]


def assert_complete(out):
    train, test = manifest(out, "train"), manifest(out, "test")
    assert [entry["text"] for entry in train] == ["yes", "go enter m"]
    assert [entry["text"] for entry in test] == ["rubout t g seventy nine"]
    assert train[0] == {
        "audio_filepath": "wav/an4_clstk/fash/an251-fash-b.wav",
        "duration": 0.5,
        "text": "yes",
        "speaker": "fash",
    }
    for entry in train + test:
        samples, rate = soundfile.read(out / entry["audio_filepath"], dtype="int16")
        assert rate == 16000
        assert np.array_equal(samples, SAMPLES)


@pytest.mark.parametrize("inner", ["", "an4"])
def test_a_folder_becomes_wav_files_and_manifests(corpus, tmp_path, inner):
    an4.make(tmp_path / "out", corpus if inner else corpus.parent)
    assert_complete(tmp_path / "out")


@pytest.mark.parametrize("name", ["train_manifest.json", "wav"])
def test_files_of_others_are_never_replaced_and_own_ones_are(corpus, tmp_path, name):
    out = tmp_path / "out"
    an4.make(out, corpus)
    an4.make(out, corpus)
    file = out / name if name.endswith("json") else next((out / "wav").rglob("*.wav"))
    file.write_bytes(b"mine")
    with pytest.raises(FileInTheWayError, match=rf"{file.name}: .*; choose another folder, or move it away"):
        an4.make(out, corpus)
    assert file.read_bytes() == b"mine"


def test_an_id_that_is_too_long_for_a_file_is_named_with_its_line(corpus, tmp_path):
    (corpus / "etc" / "an4_train.fileids").write_text("an4_clstk/" + "x" * 5000 + "\n")
    with pytest.raises(DataError, match=r"an4_train\.fileids:1: this is no id of an utterance: got 'an4_clstk/xxx"):
        an4.make(tmp_path / "out", corpus)


def test_an_archive_becomes_wav_files_and_manifests_and_leaves_nothing_else(corpus, tmp_path):
    with tarfile.open(tmp_path / "an4_sphere.tar.gz", "w:gz") as tar:
        tar.add(corpus, "an4")
    an4.make(tmp_path / "out", tmp_path / "an4_sphere.tar.gz")
    assert_complete(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        RECORD,
        "test_manifest.json",
        "train_manifest.json",
        "wav",
    ]


def test_what_lies_in_the_data_root_is_used_before_anything_is_downloaded(corpus, monkeypatch):
    monkeypatch.setattr(an4, "download", lambda *_: pytest.fail("downloaded"))
    an4.make(corpus.parent)
    assert_complete(corpus.parent)


def test_an_empty_data_root_gets_the_archive_downloaded(corpus, tmp_path, monkeypatch):
    def fetch(url, path, sha256):
        assert url.startswith("https://")
        assert len(sha256) == 64
        with tarfile.open(path, "w:gz") as tar:
            tar.add(corpus, "an4")

    monkeypatch.setattr(an4, "download", fetch)
    an4.make(tmp_path / "out")
    assert_complete(tmp_path / "out")


def test_recordings_without_a_header_are_read_high_byte_first(corpus, tmp_path):
    for path in (corpus / "wav").rglob("*.sph"):
        path.with_suffix(".raw").write_bytes(SAMPLES.astype(">i2").tobytes())
        path.unlink()
    an4.make(tmp_path / "out", corpus)
    assert_complete(tmp_path / "out")


def assert_refused(tmp_path, corpus, problem):
    with pytest.raises(DataError, match=problem):
        an4.make(tmp_path / "out", corpus)
    assert not list((tmp_path / "out").glob("*.json"))


def test_a_missing_recording_is_named_by_the_line_that_lists_it(corpus, tmp_path):
    (corpus / "wav/an4_clstk/fash/an253-fash-b.sph").unlink()
    assert_refused(tmp_path, corpus, r"an4_train\.fileids:2: the recording is missing: wanted .*an253-fash-b\.sph")


def test_a_damaged_recording_is_named(corpus, tmp_path):
    (corpus / "wav/an4_clstk/fash/an253-fash-b.sph").write_bytes(b"NIST_1A\n   1024\nnonsense")
    assert_refused(tmp_path, corpus, r"an4_train\.fileids:2: the recording cannot be read: got .*an253")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (encoded(SAMPLES, "MP3", "MPEG_LAYER_III"), "is of another kind: got MP3, wanted SPHERE"),
        (encoded(SAMPLES, "WAV", "IMA_ADPCM"), "is of another kind: got WAV, wanted SPHERE"),
        (sphere(SAMPLES)[:-2000], "is damaged: 8000 samples promised, 7000 are there"),
    ],
)
def test_a_recording_of_another_kind_or_a_cut_one_is_refused(content, told, corpus, tmp_path):
    (corpus / "wav/an4_clstk/fash/an253-fash-b.sph").write_bytes(content)
    assert_refused(
        tmp_path, corpus, rf"an4_train\.fileids:2: the recording cannot be read: got .*253-fash-b\.sph {told}"
    )


@pytest.mark.parametrize(("size", "told"), [(1, "the recording is not of AN4: got 1 bytes"), (2**27 + 2, "too large")])
def test_a_recording_without_a_header_is_bounded(size, told, corpus, tmp_path):
    path = corpus / "wav/an4_clstk/fash/an253-fash-b.sph"
    path.unlink()
    path.with_suffix(".raw").write_bytes(b"\0")
    os.truncate(path.with_suffix(".raw"), size)
    assert_refused(tmp_path, corpus, rf"an4_train\.fileids:2: .*{told}")


def test_a_recording_at_another_rate_is_refused(corpus, tmp_path):
    (corpus / "wav/an4_clstk/fash/an251-fash-b.sph").write_bytes(sphere(SAMPLES, 8000))
    assert_refused(tmp_path, corpus, "the recording is not of AN4: got 8000 Hz, 8000 samples, 1 channels")


def test_an_utterance_without_transcription_is_named(corpus, tmp_path):
    path = corpus / "etc/an4_train.transcription"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    assert_refused(tmp_path, corpus, r"an4_train\.fileids:2: the utterance has no transcription: got an253-fash-b")


def test_a_line_that_is_no_transcription_is_named(corpus, tmp_path):
    (corpus / "etc/an4_test.transcription").write_text("RUBOUT T G\n")
    assert_refused(tmp_path, corpus, r"an4_test\.transcription:1: this is not a transcription: got 'RUBOUT T G'")


def test_a_file_id_that_leads_out_is_refused(corpus, tmp_path):
    (corpus / "etc/an4_train.fileids").write_text("../../an251-fash-b\n")
    assert_refused(tmp_path, corpus, r"an4_train\.fileids:1: this is no id of an utterance")


def test_a_folder_that_is_not_an4_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    assert_refused(tmp_path, tmp_path / "other", "other: this is not the AN4 corpus")


def test_the_command_line_summarises_and_reports_errors_in_one_line(corpus, tmp_path, capsys):
    an4.main(["--data_root", str(tmp_path / "out"), "--source", str(corpus)])
    assert "train_manifest.json: 2 utterances, 0.0 min, 4 words" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        an4.main(["--nonsense"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit) as ended:
        an4.main(["--data_root", str(tmp_path / "out"), "--source", str(tmp_path / "nothing")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(
        f"error: {tmp_path}/nothing: the archive cannot be opened (No such file or directory); fetch it again\n"
    )
