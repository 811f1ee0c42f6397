"""Files, folders, manifests and stdin as recordings."""

import io
import sys

import numpy as np
import pytest
import soundfile
from toys.tone_corpus import record, write_manifest

from nemo_asr.run.transcribe.inputs import Recording, recordings_of
from nemo_lite.base.errors import DataError, UsageError


class Stdin(io.TextIOWrapper):
    """What a pipe, or with ``terminal`` a terminal, gives."""

    def __init__(self, content, terminal=False):
        super().__init__(io.BytesIO(content))
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def test_folders_are_searched_for_audio_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks/inner").mkdir(parents=True)
    for name in ("talks/b.WAV", "talks/inner/a.flac", "talks/c.mp3", "talks/notes.txt", "talks/d.opus"):
        (tmp_path / name).touch()
    found = recordings_of(["one.wav", "talks"])
    assert [each.source for each in found] == [
        "one.wav",
        *("talks/b.WAV", "talks/c.mp3", "talks/d.opus", "talks/inner/a.flac"),
    ]


def test_manifests_need_no_text_and_may_name_parts(tmp_path):
    record(tmp_path / "a.wav", "ab")
    lines = [{"audio_filename": "a.wav"}, {"audio_filepath": "a.wav", "offset": 0.1, "duration": 0.1, "text": "x"}]
    path = write_manifest(tmp_path / "dev.json", lines)
    whole, part = recordings_of([str(path)])
    assert {each.source for each in (whole, part)} == {whole.audio, part.audio} == {str(tmp_path / "a.wav")}
    assert [(each.offset, each.duration) for each in (whole, part)] == [(None, None), (0.1, 0.1)]


def test_paths_of_a_manifest_may_start_at_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifests").mkdir()
    record(tmp_path / "a.wav", "ab")
    path = write_manifest(tmp_path / "manifests/dev.json", [{"audio_filepath": "a.wav"}])
    assert [each.audio for each in recordings_of([str(path)])] == ["a.wav"]


def test_stdin_is_read_whole(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin(b"RIFF"))
    assert [(each.source, each.audio) for each in recordings_of(["-"])] == [("stdin", b"RIFF")]


def test_too_much_on_stdin_is_refused_before_all_of_it_is_read(monkeypatch):
    monkeypatch.setattr("nemo_asr.run.transcribe.inputs.MAX_CONTENT_BYTES", 1000)
    monkeypatch.setattr(sys, "stdin", Stdin(bytes(10_000)))
    with pytest.raises(
        UsageError, match=r"^-: there is too much on stdin: wanted at most 1000 bytes; name a file instead"
    ):
        recordings_of(["-"])
    assert len(sys.stdin.buffer.read()) == 10_000 - 1001


@pytest.mark.parametrize(
    ("stdin", "names", "told"),
    [
        (Stdin(b""), ["-"], "-: there is no audio on stdin: got 0 bytes; pipe the content of an audio file"),
        (Stdin(b"x", terminal=True), ["-"], "-: stdin is a terminal, not audio; pipe the content"),
        (Stdin(b"x"), ["-", "-"], "-: stdin holds one recording: got - 2 times"),
    ],
)
def test_stdin_without_audio_is_said_in_one_line(stdin, names, told, monkeypatch):
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(UsageError) as raised:
        recordings_of(names)
    assert str(raised.value).startswith(told)


def test_a_folder_without_audio_and_bad_manifests_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"there is no audio in this folder: wanted files ending in .*\.aif, "):
        recordings_of([str(tmp_path)])
    for lines, told in (
        ([], "the manifest is empty; it needs one JSON object a line"),
        ([{"audio_filepath": "a.wav"}, {"text": "a"}], r"m\.json:2: no audio_filepath \(or audio_filename\); name the"),
        (["{"], r"m\.json:1: invalid JSON"),
    ):
        with pytest.raises(DataError, match=told):
            recordings_of([str(write_manifest(tmp_path / "m.json", lines))])
    with pytest.raises(DataError, match=r"none\.json: the manifest cannot be opened \(No such file"):
        recordings_of([str(tmp_path / "none.json")])


def test_few_samples_of_a_high_rate_are_one_at_a_low_one(tmp_path):
    for num_samples in (1, 10):
        soundfile.write(tmp_path / "a.wav", np.full(num_samples, 0.3), 768_000)
        for recording in (
            Recording("a", str(tmp_path / "a.wav")),
            Recording("a", np.full(num_samples, 0.3, np.float32), 768_000),
        ):
            assert recording.read(16_000).samples.tolist() == [0.0]
