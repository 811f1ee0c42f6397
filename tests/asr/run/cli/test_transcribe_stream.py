"""nemo-lite transcribe --stream: lines of JSON while audio arrives, and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from toys.onnx_toy import write_toy
from toys.tone_corpus import CONFIG, record
from toys.tone_model import STREAMING, stored_tones

import nemo_asr
from nemo_asr.run.cli.transcribe import main
from nemo_asr.run.transcribe.streaming import _of_bytes
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite.base.errors import CheckpointError, UsageError

CPU = ("--placement", "CPU")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model that streams by frames."""
    folder = tmp_path_factory.mktemp("streams")
    stored_tones(folder, STREAMING)
    return str(folder / "model")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The folder of a model that does not."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "tones.yaml").write_text(CONFIG)
    recipe = nemo_asr.load_recipe(folder / "tones.yaml")
    TrainedModel("here", recipe, recipe.model(), describe(recipe)).save(folder / "model")
    return str(folder / "model")


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    path = tmp_path_factory.mktemp("talk") / "talk.wav"
    record(path, "cababc")
    return str(path)


class Stdin:
    """Samples that come 1,001 bytes at a time, or with ``terminal`` a keyboard."""

    def __init__(self, content, terminal=False):
        self.terminal = terminal
        file = io.BytesIO(content)
        self.buffer = SimpleNamespace(read1=lambda size: file.read(min(size, 1001)))

    def isatty(self):
        return self.terminal


def lines_of(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_the_last_line_is_the_text_of_transcribe_whatever_the_chunks(model, talk, capsys):
    assert main([model, talk, "--segments", "off", "--format", "json", *CPU]) == 0
    (whole,) = lines_of(capsys)
    assert whole["text"] == "cababc"
    for chunk in ("0.01", "0.4", "60"):
        assert main([model, talk, "--stream", "--stream_chunk", chunk, *CPU]) == 0
        *events, done = lines_of(capsys)
        assert done == {"type": "done", "text": whole["text"], "duration": whole["duration"]}
        finals = [event for event in events if event["type"] == "final"]
        assert [event["text"] for event in finals] == [whole["text"]]
        assert finals[0]["words"] == whole["words"]
        assert all(whole["text"].startswith(event["text"]) for event in events)
    assert [event["type"] for event in events] == ["partial", "final"]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["frames", "segments"])
def test_a_stream_is_searched_as_transcribe_searches(model, talk, capsys, tmp_path, by):
    (tmp_path / "words.txt").write_text("cabab\nbc\n")
    search = ("--lexicon", str(tmp_path / "words.txt"), "--hotwords", "bc:3", "--beam_size", "8")
    assert main([model, talk, "--segments", "off", "--format", "json", *search, *CPU]) == 0
    (whole,) = lines_of(capsys)
    assert whole["text"] != "cababc"
    assert main([model, talk, "--stream", by, *search, *CPU]) == 0
    *events, final, done = lines_of(capsys)
    assert done["text"] == final["text"] == whole["text"]
    if by == "frames":
        assert final["words"] == whole["words"]
        assert {event["type"] for event in events} == {"partial"}


@pytest.mark.slow
def test_samples_on_stdin_and_pauses_that_end_parts(model, talk, capsys, monkeypatch):
    samples, _ = soundfile.read(talk, dtype="int16")
    pause = np.random.default_rng(0).integers(-30, 30, 2 * 16000, dtype=np.int16)
    monkeypatch.setattr(sys, "stdin", Stdin(np.concatenate([samples, pause, samples]).tobytes()))
    assert main([model, "-", "--stream", "--pause", "0.8", *CPU]) == 0
    *events, done = lines_of(capsys)
    assert [event["text"] for event in events if event["type"] == "final"] == ["cababc", "cababc"]
    assert done["text"] == 2 * "cababc"
    assert done["duration"] == round(2 * len(samples) / 16000 + 2, 3)
    assert {"partial", "final"} == {event["type"] for event in events}


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("WebM", b"\x1a\x45\xdf\xa3" + bytes(3000)),
        ("OGG", b"OggS" + bytes(3000)),
        ("WAV", b"RIFF\0\0\0\0WAVEfmt " + bytes(3000)),
        ("FLAC", b"fLaC" + bytes(3000)),
        ("MP3", (b"\xff\xfb\x90\0" + bytes(413)) * 8),
        ("MP3", b"ID3" + bytes(3000)),
        ("AAC", (b"\xff\xf1\x60\x40\x20\0" + bytes(250)) * 8),
        ("MP4", b"\0\0\0\x20ftypM4A " + bytes(3000)),
        ("MPEG-TS", (b"\x47" + bytes(187)) * 20),
    ],
)
def test_a_file_on_stdin_is_no_stream_of_samples_and_its_kind_is_named(kind, content):
    with pytest.raises(UsageError, match=f"-: stdin is a file, not a stream: got {kind}, wanted samples of 16 bits"):
        list(_of_bytes(Stdin(content).buffer, 8000))


def test_samples_that_begin_like_a_short_mark_are_samples():
    for mark in (b"\xff\xfb\x90\0", b"\xff\xf1\x60\x40", b"\x0b\x77", b"\xff\xfc", b"\x47" + bytes(187) + b"\x47"):
        content = mark + np.random.default_rng(0).bytes(9001)
        assert sum(map(len, _of_bytes(Stdin(content).buffer, 8000))) == len(content) // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["growing.wav", pytest.param("growing.pcm", marks=pytest.mark.long)])
def test_a_file_is_followed_while_it_grows(model, talk, capsys, tmp_path, name):
    with open(talk, "rb") as file:
        content = file.read()[0 if name.endswith("wav") else 44 :]
    (tmp_path / name).write_bytes(content[:3001])
    writer = threading.Timer(1.0, lambda: (tmp_path / name).open("ab").write(content[3001:]))
    writer.start()
    assert main([model, str(tmp_path / name), "--stream", "--follow", "4", *CPU]) == 0
    writer.join()
    assert lines_of(capsys)[-1]["text"] == "cababc"


def interrupt_when_all_is_heard():
    """Press Ctrl-C while the main thread waits for more samples."""
    main_thread, times_seen = threading.main_thread().ident, 0
    while times_seen < 10:
        is_waiting = sys._current_frames()[main_thread].f_code.co_name == "<genexpr>"
        times_seen = times_seen + 1 if is_waiting else 0
        time.sleep(0.05)
    signal.pthread_kill(main_thread, signal.SIGINT)


@pytest.mark.slow
def test_a_microphone_is_heard_until_it_is_switched_off(model, talk, capsys, monkeypatch):
    samples, _ = soundfile.read(talk, dtype="float32")

    @contextlib.contextmanager
    def opened(samplerate, blocksize, channels, dtype, callback):
        assert (samplerate, blocksize, channels, dtype) == (16000, 1600, 1, "float32")
        for first in range(0, len(samples), blocksize):
            callback(samples[first : first + blocksize, None], None, None, None)
        threading.Thread(target=interrupt_when_all_is_heard, daemon=True).start()
        yield

    monkeypatch.setitem(sys.modules, "sounddevice", SimpleNamespace(InputStream=opened, PortAudioError=OSError))
    assert main([model, "microphone", "--stream", *CPU]) == 0
    *_, final, done = lines_of(capsys)
    assert (final["type"], final["text"], done["text"]) == ("final", "cababc", "cababc")


@pytest.mark.slow
def test_a_model_that_cannot_stream_says_why_and_streams_in_segments(other, talk, capsys):
    with pytest.raises(UsageError, match=r"by frames: .*of the whole utterance.*; --stream segments"):
        main([other, talk, "--stream", *CPU])
    assert main([other, talk, "--stream", "segments", *CPU]) == 0
    assert lines_of(capsys)[-1]["type"] == "done"


@pytest.mark.slow
def test_bad_input_is_one_line(model, talk, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"a chunk is shorter than a frame.*0\.005 s, wanted at least 0\.01 s"):
        main([model, talk, "--stream", "--stream_chunk", "0.005", *CPU])
    with pytest.raises(UsageError, match=r"att_context_size is for attention.*JasperEncoder.*ConformerEncoder"):
        main([model, talk, "--stream", "--att_context_size", "8", "3", *CPU])
    for name in ("a.wav", "b.wav"):
        record(tmp_path / name, "a")
    with pytest.raises(UsageError, match="a stream is one recording"):
        main([model, str(tmp_path), "--stream", *CPU])
    monkeypatch.setattr(sys, "stdin", Stdin(b"", terminal=True))
    with pytest.raises(UsageError, match="-: stdin is a terminal, not audio; pipe samples of 16 bits into the command"):
        main([model, "-", "--stream", *CPU])
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(UsageError, match="pip install sounddevice"):
        main([model, "microphone", "--stream", *CPU])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--stream", "--nbest", "2"], "--nbest has no effect with --stream frames"),
        (["--stream", "--decoder", "greedy", "--lm", "x.arpa"], "--lm has no effect with --decoder greedy"),
        (["--stream", "segments", "--pause", "2"], "--pause has no effect with --stream segments"),
        (["--pause", "2"], "--pause has no effect without --stream"),
        (["b.wav", "--stream"], "--stream takes one recording, got 2"),
        (["--follow"], "--follow has no effect without --stream"),
        (["--stream", "words"], "invalid choice"),
    ],
)
def test_options_that_contradict_a_stream_are_refused(words, problem, capsys):
    with pytest.raises(SystemExit):
        main(["model", "a.wav", *words])
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("name", ["-", "microphone"])
def test_only_a_file_is_followed(name, capsys):
    with pytest.raises(SystemExit):
        main(["model", name, "--stream", "--follow"])
    assert f"--follow is for a file, got {name}; leave it out" in capsys.readouterr().err


def test_files_that_take_whole_recordings_stream_in_segments(talk, tmp_path, capsys):
    toy = str(write_toy(tmp_path / "toy.onnx"))
    with pytest.raises(CheckpointError, match=r"toy\.onnx: this ONNX file is used otherwise.*--stream segments"):
        main([toy, talk, "--stream"])
    assert main([toy, talk, "--stream", "segments"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main([toy, talk]) == 0
    assert done["type"] == "done"
    assert done["text"] == capsys.readouterr().out.strip()
    with pytest.raises(UsageError, match=r"runs as it is, in one process on the CPU: got --placement"):
        main([toy, talk, "--stream", "segments", "--placement", "GPU"])
