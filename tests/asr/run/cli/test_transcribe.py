"""nemo-lite transcribe: results on stdout, everything else on stderr, and exit codes."""

import io
import json
import os
import re
import sys
from argparse import Namespace
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import numpy as np
import pytest
import soundfile
import torch
from toys.ranks import on_ranks
from toys.tone_corpus import CONFIG, record, write_manifest
from toys.tone_model import train_tones

import nemo_asr
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.run.cli.transcribe import _warn_of_doubt, _write, file_names, main
from nemo_asr.run.transcribe.domain import Domain
from nemo_asr.run.transcribe.inputs import recordings_of
from nemo_asr.run.transcribe.transcript import Transcript, Word
from nemo_asr.trained.folder import Rate
from nemo_asr.trained.model import TrainedModel, describe, load_model, trained_modules
from nemo_lite.base import dispatch
from nemo_lite.base.errors import CheckpointError, DataError, FileInTheWayError, UsageError

CPU = ("--placement", "CPU")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder."""
    recipe, modules = train_tones(tmp_path_factory.mktemp("corpus"))
    folder = tmp_path_factory.mktemp("model")
    TrainedModel("here", recipe, modules, describe(recipe)).save(folder)
    return str(folder)


@pytest.fixture
def talks(tmp_path, monkeypatch):
    """The working directory, with a folder of recordings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks/inner").mkdir(parents=True)
    record(tmp_path / "talks/a.wav", "cab")
    record(tmp_path / "talks/b.mp3", "abba", rate=22050, channels=2)
    record(tmp_path / "bc.wav", "bc", rate=48000)
    samples, rate = soundfile.read(tmp_path / "bc.wav")
    soundfile.write(tmp_path / "talks/inner/a.opus", samples, rate, format="OGG", subtype="OPUS")
    record(tmp_path / "talks/c.flac", "acb", rate=8000)
    return tmp_path


class Stdin(io.TextIOWrapper):
    def __init__(self, content):
        super().__init__(io.BytesIO(content))


@pytest.mark.slow
def test_one_recording_is_its_text_and_the_rest_goes_to_stderr(model, talks, capsys):
    assert main([model, "talks/a.wav", *CPU]) == 0
    told = capsys.readouterr()
    assert told.out == "cab\n"
    assert re.search(rf"Loaded {re.escape(model)}: step \d+", told.err)
    assert re.search(r"\n1 recording, 0\.5 s of audio in \d+\.\d s: real-time factor \S+\n$", told.err)


@pytest.mark.slow
def test_folders_are_searched_and_each_text_has_its_name(model, talks, capsys):
    assert main([model, "talks", "--batch_size", "2", "--num_workers", "1", *CPU]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["talks/a.wav: cab", "talks/b.mp3: abba", "talks/c.flac: acb", "talks/inner/a.opus: bc"]


@pytest.mark.slow
def test_an_nbest_is_lines_of_score_and_text_or_json(model, talks, capsys):
    assert main([model, "talks/a.wav", "bc.wav", "--nbest", "2", *CPU]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0].split(": ")[0] for line in lines] == ["talks/a.wav"] * 2 + ["bc.wav"] * 2
    assert [lines[0][1], lines[2][1]] == ["cab", "bc"]
    assert float(lines[0][0].split(": ")[1]) > float(lines[1][0].split(": ")[1])
    assert main([model, "talks/a.wav", "--nbest", "3", "--format", "json", *CPU]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["text"], [each["text"] for each in line["hypotheses"]][:1]) == ("cab", ["cab"])
    assert len(line["hypotheses"]) == 3
    assert sorted(line["hypotheses"][0]) == ["score", "text"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--nbest 2 --format srt", "--nbest has no effect with --format srt; leave it out"),
        ("--nbest 2 --decoder greedy", "--nbest has no effect with --decoder greedy; leave one out"),
        ("--nbest 20", "--nbest 20 is more than --beam_size 16; raise that one"),
        ("--nbest 0", "argument --nbest"),
    ],
)
def test_an_nbest_that_cannot_be_is_refused_in_one_line(words, told, model, talks, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([model, "talks/a.wav", *words.split(), *CPU])
    assert (stopped.value.code, told in capsys.readouterr().err) == (2, True)


def test_stdin_is_a_recording(model, talks, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin((talks / "talks/c.flac").read_bytes()))
    assert main([model, "-", "--format", "json", *CPU]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["audio_filepath"], line["text"], line["words"][0]["text"]) == ("stdin", "acb", "acb")


def test_the_lines_of_a_manifest_may_be_parts_and_json_goes_to_a_file(model, talks, capsys):
    parts = [{"audio_filepath": "talks/a.wav", "offset": 0.17, "duration": 0.34}, {"audio_filepath": "talks/a.wav"}]
    write_manifest(talks / "dev.json", parts)
    assert main([model, "dev.json", "--format", "json", "--out", "out/found.json", *CPU]) == 0
    assert capsys.readouterr().out == ""
    lines = [json.loads(line) for line in (talks / "out/found.json").read_text().splitlines()]
    assert [(line["audio_filepath"], line.get("offset"), line["text"], line["duration"]) for line in lines] == [
        ("talks/a.wav", 0.17, "ab", 0.34),
        ("talks/a.wav", None, "cab", 0.51),
    ]
    assert main([model, "dev.json", *CPU]) == 0
    assert capsys.readouterr().out == "talks/a.wav@0.17: ab\ntalks/a.wav: cab\n"


@pytest.fixture
def call(talks):
    """The two sides of a call."""
    record(talks / "one.wav", "cab")
    record(talks / "two.wav", "abb")
    sides = [soundfile.read(talks / name)[0] for name in ("one.wav", "two.wav")]
    soundfile.write(talks / "call.wav", np.stack(sides, axis=1), 16000)
    return "call.wav"


def test_each_channel_of_a_call_has_its_transcript(model, call, talks, capsys):
    assert main([model, call, "--channel", "each", *CPU]) == 0
    assert capsys.readouterr().out == "call.wav channel 0: cab\ncall.wav channel 1: abb\n"
    assert main([model, call, "--channel", "1", *CPU]) == 0
    assert capsys.readouterr().out == "abb\n"
    assert main([model, call, "talks/a.wav", "--channel", "each", "--format", "json", "--out", "found.json", *CPU]) == 0
    lines = [json.loads(line) for line in (talks / "found.json").read_text().splitlines()]
    assert [(line["channel"], line["text"]) for line in lines] == [(0, "cab"), (1, "abb"), (0, "cab")]
    assert main([model, "found.json", *CPU]) == 0  # a manifest again
    assert capsys.readouterr().out == ("call.wav channel 0: cab\ncall.wav channel 1: abb\ntalks/a.wav channel 0: cab\n")
    assert main([model, call, "--channel", "each", "--format", "srt", "--out", "subtitles", *CPU]) == 0
    assert sorted(path.name for path in Path("subtitles").glob("*.srt")) == ["call_channel0.srt", "call_channel1.srt"]
    assert Path("subtitles/call_channel1.srt").read_text().endswith("\nabb\n")


@pytest.mark.slow
def test_python_takes_the_channel_that_the_option_takes(model, call):
    loaded, (both, rate) = nemo_asr.load_model(model), soundfile.read(call)

    def texts(audio, channel):
        return [found.text for found in loaded.transcribe([audio], sample_rate=rate, channel=channel)]

    for audio in (call, both, both.T):
        assert texts(audio, "each") == ["cab", "abb"]
        assert texts(audio, 1) == ["abb"]
        assert texts(audio, "mix") == texts(audio, None)
    for value in ("left", -1, True, 1.5):
        with pytest.raises(UsageError, match="is no channel: give 0 for the first, 1 for the second, mix or each"):
            texts(call, value)
    with pytest.raises(DataError, match="has no channel 2"):
        texts(call, 2)


def test_a_channel_in_a_line_comes_before_the_option(model, call, talks, capsys):
    write_manifest(talks / "dev.json", [{"audio_filepath": call, "channel": 1}, {"audio_filepath": call}])
    assert main([model, "dev.json", "--channel", "0", *CPU]) == 0
    assert capsys.readouterr().out == "call.wav channel 1: abb\ncall.wav channel 0: cab\n"
    assert main([model, "dev.json", "--channel", "each", *CPU]) == 0
    assert capsys.readouterr().out.count("channel") == 3


def test_without_the_option_channels_are_averaged(model, talks, capsys):
    for arguments in ([], ["--channel", "mix"]):
        assert main([model, "talks/b.mp3", "--format", "json", *arguments, *CPU]) == 0
        line = json.loads(capsys.readouterr().out)
        assert (line["text"], "channel" in line) == ("abba", False)


def test_a_channel_that_is_not_there_is_one_line_and_the_others_go_on(model, call, talks, capsys):
    assert main([model, "talks/a.wav", call, "none.wav", "--channel", "1", *CPU]) == 1
    told = capsys.readouterr()
    assert told.out == "call.wav channel 1: abb\n"
    assert "error: talks/a.wav has no channel 1: wanted channel 0, or mix for the average of all\n" in told.err
    assert main([model, call, "none.wav", "--channel", "each", *CPU]) == 1
    assert capsys.readouterr().out.startswith("call.wav channel 0: cab\ncall.wav channel 1: ")
    for value in ("left", "-1", "1.0", "99999"):
        with pytest.raises(SystemExit):
            main([model, call, f"--channel={value}", *CPU])
        assert "is no channel: give 0 for the first, 1 for the second, mix or each" in capsys.readouterr().err


def test_equal_channels_are_transcribed_once_and_one_line_says_so(model, call, talks, capsys):
    samples, rate = soundfile.read(talks / "one.wav")
    soundfile.write(talks / "same.wav", np.stack([samples, samples], axis=1), rate)
    assert main([model, "same.wav", call, "--channel", "each", *CPU]) == 0
    told = capsys.readouterr()
    assert told.out == "same.wav channel 0: cab\ncall.wav channel 0: cab\ncall.wav channel 1: abb\n"
    assert told.err.count("same.wav: its 2 channels are the same; channel 0 is taken for all") == 1
    assert "call.wav: its" not in told.err
    both = np.stack([samples, samples], axis=1)
    found = nemo_asr.load_model(model).transcribe([both, both * [1, -1]], sample_rate=rate, channel="each")
    assert [each.text for each in found] == ["cab"] * 3
    soundfile.write(talks / "late.wav", np.concatenate([both, both * [1, 0.5]]), rate)  # equal at first
    assert len(recordings_of(["late.wav"], "each")) == 2


def test_channels_that_cancel_each_other_are_told_with_what_to_do(model, call, talks, capsys):
    samples, rate = soundfile.read(talks / "one.wav")
    soundfile.write(talks / "opposite.wav", np.stack([samples, -0.9 * samples], axis=1), rate)
    assert main([model, "opposite.wav", call, *CPU]) == 0
    told = capsys.readouterr().err
    assert "opposite.wav: its channels cancel each other when they are averaged (opposite phases); take one" in told
    assert "call.wav: its" not in told
    assert main([model, "opposite.wav", "--channel", "0", *CPU]) == 0
    told = capsys.readouterr()
    assert told.out == "cab\n"
    assert "cancel" not in told.err


def test_a_folder_with_one_recording_gets_a_folder_of_subtitles(model, call, talks):
    (talks / "single").mkdir()
    record(talks / "single/only.wav", "cab")
    assert main([model, "single", "--format", "srt", "--out", "subs", *CPU]) == 0
    assert [path.name for path in (talks / "subs").glob("*.srt")] == ["only.srt"]
    assert main([model, "talks/a.wav", "--channel", "each", "--format", "vtt", "--out", "sides", *CPU]) == 0
    assert [path.name for path in (talks / "sides").glob("*.vtt")] == ["a_channel0.vtt"]


def test_subtitles_of_several_recordings_go_to_a_folder(model, talks, capsys):
    assert main([model, "talks", "--format", "srt", "--out", "subtitles", *CPU]) == 0
    assert sorted(path.name for path in (talks / "subtitles").glob("*.srt")) == ["a.srt", "a_2.srt", "b.srt", "c.srt"]
    assert re.fullmatch(
        r"1\n00:00:00,\d{3} --> 00:00:01,\d{3}\nabba\n", (talks / "subtitles/b.srt").read_text(encoding="utf-8")
    )
    assert main([model, "talks/a.wav", "--format", "vtt", "--out", "subtitles", *CPU]) == 0
    assert (talks / "subtitles/a.vtt").is_file()  # one recording, and a folder that is there
    capsys.readouterr()
    assert main([model, "talks/a.wav", "--format", "vtt", *CPU]) == 0
    assert capsys.readouterr().out.startswith("WEBVTT\n\n00:00:00.")
    assert main([model, "talks/a.wav", "--format", "vtt", "--out", "one.vtt", *CPU]) == 0
    assert (talks / "one.vtt").read_text().endswith("\ncab\n")


@pytest.mark.slow
def test_a_model_that_hears_nothing_says_so_once(talks, tmp_path, capsys):
    (tmp_path / "tones.yaml").write_text(CONFIG)
    recipe = nemo_asr.load_recipe(tmp_path / "tones.yaml")
    modules = recipe.model()
    with torch.no_grad():
        weight, bias = trained_modules(modules)["JasperDecoderForCTC"].parameters()
        weight.zero_()
        bias[-1] = bias.abs().max() + 1.0  # of the blank
    TrainedModel("deaf", recipe, modules, describe(recipe)).save(tmp_path / "deaf")
    assert main([str(tmp_path / "deaf"), "talks", "--format", "srt", "--out", "subtitles", *CPU]) == 0
    told = capsys.readouterr().err
    names = "talks/a.wav, talks/b.mp3, talks/c.flac, ..."
    assert told.count(f"nemo-lite transcribe: warning: the model heard nothing in 4 of 4 recordings: {names}\n") == 1


def test_a_recording_in_which_nobody_speaks_says_so_in_one_line(model, talks, capsys):
    soundfile.write(talks / "zeros.wav", np.zeros(16000), 16000)
    assert main([model, "talks/a.wav", "zeros.wav", *CPU]) == 0
    told = capsys.readouterr()
    assert told.out == "talks/a.wav: cab\nzeros.wav: \n"
    remedy = "--segments off takes all of them"
    assert f"warning: no speech was found by levels in 1 of 2 recordings: zeros.wav; {remedy}\n" in told.err
    assert "the model heard nothing" not in told.err


def test_a_bad_file_is_named_and_does_not_end_the_others(model, talks, capsys):
    (talks / "talks/bad.wav").write_text("no audio")
    assert main([model, "talks/bad.wav", "talks/a.wav", "none.wav", *CPU]) == 1
    told = capsys.readouterr()
    assert told.out == "talks/a.wav: cab\n"
    assert "\nnemo-lite transcribe: error: talks/bad.wav is not a WAV, FLAC, OGG, MP3" in told.err
    assert "\nnemo-lite transcribe: error: the audio file none.wav cannot be opened (No such" in told.err
    assert "\n1 recording (2 more could not be read), 0.5 s of audio" in told.err


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_stdout_may_be_named_as_the_place_of_results(out, model, talks, capsys):
    assert main([model, "talks/a.wav", "--out", out, *CPU]) == 0
    assert capsys.readouterr().out == "cab\n"
    assert not (talks / "-").exists()


def test_names_that_are_no_utf8_are_escaped(model, talks, capsys):
    os.rename(b"bc.wav", b"talks/\xff.wav")
    assert main([model, "talks/a.wav", "talks/\udcff.wav", "--format", "json", "--out", "found.json", *CPU]) == 0
    _, line = (talks / "found.json").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["audio_filepath"] == "talks/\udcff.wav"
    assert main([model, "talks/a.wav", "talks/\udcff.wav", *CPU]) == 0
    assert capsys.readouterr().out == "talks/a.wav: cab\ntalks/\\udcff.wav: bc\n"


def test_a_name_with_line_ends_is_one_line_of_text(tmp_path, capsys):
    transcripts = [Transcript("a b", (), 1.0, str(tmp_path / name)) for name in ("a\nb.wav", "c\r\u2028.wav")]
    _write(Namespace(format="text", out=None), transcripts, is_one=False)
    assert capsys.readouterr().out.splitlines() == [f"{tmp_path}/a\\nb.wav: a b", f"{tmp_path}/c\\r\\u2028.wav: a b"]
    _write(Namespace(format="json", out=None), transcripts, is_one=False)
    assert json.loads(capsys.readouterr().out.splitlines()[0])["audio_filepath"] == str(tmp_path / "a\nb.wav")


@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("talks/a.wav", "talks/a.wav: this is the name of a recording: wanted the name of a text file; a shell makes"),
        ("new.M4A", "new.M4A: this is the name of a recording"),
        ("list.json", "list.json: this is an input of the command, which is never overwritten; give another name"),
        ("talks/../list.json", "this is an input of the command (list.json), which is never overwritten"),
        ("hard", "hard: this is an input of the command (list.json), which"),
        ("soft", "soft: this is an input of the command (list.json), which"),
        ("sound", "sound: this is an input of the command (talks/a.wav), which"),
        ("empty/model.onnx", "empty/model.onnx: this is an input of the command, which"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_an_input_is_never_overwritten_whatever_it_is_called(out, told, more, talks):
    (talks / "empty").mkdir()
    (talks / "empty/model.onnx").write_bytes(b"model")
    (talks / "list.json").write_text('{"audio_filepath": "talks/a.wav", "duration": 1.0, "text": "mine"}\n')
    os.link("list.json", "hard")
    (talks / "soft").symlink_to("list.json")
    (talks / "sound").symlink_to("talks/a.wav")
    before = {path: path.read_bytes() for path in talks.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=re.escape(told)):
        main(["empty", "list.json", "--format", "json", "--out", out, *more, *CPU])
    assert {path: path.read_bytes() for path in talks.rglob("*") if path.is_file()} == before


def test_a_file_of_the_users_is_replaced_with_overwrite_alone_and_one_of_ours_without(model, talks, capsys):
    line = [model, "talks/a.wav", "--out", "a.txt", *CPU]
    (talks / "a.txt").write_text("mine")
    with pytest.raises(FileInTheWayError, match=r"a\.txt: the file was not written by nemo-lite .*--overwrite"):
        main(line)
    assert (talks / "a.txt").read_text() == "mine"
    assert main([*line, "--overwrite"]) == 0
    assert main(line) == 0
    with (talks / "a.txt").open("a") as file:
        file.write("corrected")
    with pytest.raises(FileInTheWayError, match=r"a\.txt: the file was changed since nemo-lite transcribe wrote it"):
        main(line)
    assert (talks / "a.txt").read_text() == "cab\ncorrected"


def test_subtitles_of_the_users_are_told_before_any_work(talks):
    (talks / "talks" / "b.srt").write_text("mine")
    (talks / "empty").mkdir()
    with pytest.raises(FileInTheWayError, match=r"talks/b\.srt: the file was not written by nemo-lite transcribe"):
        main(["empty", "talks", "--format", "srt", "--out", "talks", *CPU])
    assert (talks / "talks" / "b.srt").read_text() == "mine"


def test_names_that_a_shell_has_put_behind_out_are_told(talks, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["empty", "talks/a.wav", "--format", "json", "--out", "x.json", "talks/b.wav", *CPU])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert "unrecognized arguments: talks/b.wav" in told
    assert "AUDIO comes before the options; a shell makes several names of a pattern such as *.wav" in told


def test_nothing_but_bad_files_is_exit_code_2(model, talks, capsys):
    assert main([model, "none.wav", "--out", "found.txt", *CPU]) == 2
    told = capsys.readouterr()
    assert (told.out, "real-time factor" in told.err) == ("", False)
    assert not (talks / "found.txt").exists()


@pytest.mark.parametrize(
    ("args", "error", "told"),
    [
        (("talks",), CheckpointError, "empty: there is no model in this folder"),
        (("missing.d",), CheckpointError, "empty: there is no model"),
        (("inner",), UsageError, "inner: there is no audio in this folder: wanted files ending in ."),
        (("talks", "--format", "vtt"), UsageError, "vtt files of several recordings need a folder: got 4 recordings"),
        (("talks", "--out", "talks"), UsageError, "talks: this is a folder: wanted the name of a file"),
        (("talks", "--out", "pipe"), UsageError, "pipe: this is a pipe or a device: wanted the name of a file"),
        (("talks", "--out", "talks/a.wav/x"), UsageError, "there is a file where a folder is wanted"),
    ],
)
def test_what_cannot_be_done_is_said_before_any_work(args, error, told, talks):
    (talks / "empty").mkdir()
    os.mkfifo(talks / "pipe")
    (talks / "inner").mkdir()
    with pytest.raises(error, match=re.escape(told)):
        main(["empty", *args, *CPU])


def test_errors_are_one_line_and_exit_code_2_in_the_command(model, talks, capsys, monkeypatch):
    point = EntryPoint("transcribe", "nemo_asr.run.cli.transcribe:main", dispatch.GROUP)
    monkeypatch.setattr(dispatch, "entry_points", lambda group: [point])
    monkeypatch.setattr(sys, "stdin", Stdin(b""))
    with pytest.raises(SystemExit) as stopped:
        dispatch.main(["transcribe", model, "-"])
    assert stopped.value.code == 2
    remedy = "pipe the content of an audio file into the command, or name a file"
    told = "nemo-lite transcribe: error: -: there is no audio on stdin: got 0 bytes"
    assert capsys.readouterr().err == f"{told}; {remedy}\n"
    with pytest.raises(SystemExit) as stopped:
        main([model, "a.wav", "--fromat", "srt"])
    assert stopped.value.code == 2
    told = "nemo-lite transcribe: error: unrecognized arguments: --fromat srt (did you mean --format?)\n"
    assert capsys.readouterr().err == told
    with pytest.raises(SystemExit):
        main([model, "a.wav", "--format", "jso"])
    assert capsys.readouterr().err.endswith("(did you mean json?)\n")


def _transcribe(arguments: list[str]) -> int:
    return main(arguments)


@pytest.mark.slow
def test_two_ranks_give_the_same_transcripts_as_one(model, talks, capsys):
    (talks / "talks/cut.flac").write_bytes((talks / "talks/c.flac").read_bytes()[:3000])
    arguments = [model, str(talks / "talks"), "--format", "json", "--nbest", "3", *CPU]
    assert main(arguments) == 1
    alone = capsys.readouterr().out
    assert alone.count('"hypotheses"') == 4
    first, second = on_ranks(2, _transcribe, arguments)
    assert (first.result, second.result, first.out, second.out) == (1, 1, alone, "")
    assert "cut.flac is damaged" in first.err


def test_files_have_the_names_of_their_recordings():
    alike = [Transcript("", (), 0.0, source) for source in ("a/memo.m4a", "a/memo.wav", "b/memo.wav", "b/memo.wav")]
    assert file_names(alike) == ["memo.m4a", "memo.wav", "memo", "memo_2"]
    sources = ["a/one.wav", "b/one.mp3", "one_2.wav", "stdin"]
    found = file_names([Transcript("", (), 0.0, source) for source in sources])
    assert found == ["one", "one_2", "one_2_2", "stdin"]
    assert len(set(found)) == len(sources)
    assert Path(found[0]).suffix == ""


@pytest.mark.slow
def test_a_recording_in_the_place_of_the_model_is_told(model, talks):
    with pytest.raises(UsageError, match=r"the model comes first, then the recordings: got talks/a\.wav, wanted MODEL"):
        main(["talks/a.wav", model, *CPU])


def test_a_model_that_is_an_option_is_told_its_place(capsys):
    with pytest.raises(SystemExit):
        main(["--model", "runs/a", "a.wav"])
    assert "in place of --model: MODEL without an option, before the recordings" in capsys.readouterr().err


def sure_of(model, folder, confidence):
    """A copy of the model that says how sure it is of words of its own set."""
    copy = load_model(model)
    rates = [Rate(set="dev", wer=0.0, confidence=confidence)]
    TrainedModel("here", copy.recipe, copy.modules, msgspec.structs.replace(copy.card, rates=rates)).save(folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("as_onnx", [False, True], ids=["folder", "onnx"])
def test_much_less_confidence_than_on_its_own_set_is_told(model, talks, capsys, monkeypatch, as_onnx):
    monkeypatch.setattr("nemo_asr.run.cli.transcribe._LEAST_WORDS", 1)
    path = sure_of(model, talks / "sure", 1.0)
    if as_onnx:
        export_onnx(load_model(path), talks / "sure.onnx")
        path = str(talks / "sure.onnx")
    assert main([path, "talks/a.wav", *CPU]) == 0
    assert "mean confidence" not in capsys.readouterr().err
    noise = np.random.default_rng(0).normal(0, 0.2, 16000).astype(np.float32)
    soundfile.write("noise.wav", noise, 16000)
    assert main([path, "noise.wav", "--segments", "off", *CPU]) == 0
    told = capsys.readouterr().err
    assert re.search(
        r"warning: the words have a mean confidence of 0\.\d+, those of dev 1\.00: the model may not", told
    )


@pytest.mark.slow
@pytest.mark.parametrize("as_onnx", [False, True], ids=["folder", "onnx"])
def test_what_the_model_does_not_know_is_marked_with_the_reason(model, talks, capsys, as_onnx):
    copy = load_model(model)
    domain = Domain(set="dev", ranges={"bandwidth": (7000.0, 8000.0), "confidence": (0.0, 1.0)})
    card = msgspec.structs.replace(copy.card, domain=domain)
    TrainedModel("here", copy.recipe, copy.modules, card).save(talks / "knows")
    path = str(talks / "knows")
    if as_onnx:
        path = str(talks / "knows.onnx")
        export_onnx(load_model(talks / "knows"), path)
    noise = np.random.default_rng(0).normal(0, 0.2, 16000) * np.repeat([1, 0, 1, 1], 4000)
    for rate in (16000, 8000):
        soundfile.write(f"{rate}.wav", noise[:rate], rate)
    capsys.readouterr()
    assert main([path, "16000.wav", "8000.wav", "--format", "json", *CPU]) == 0
    out, err = capsys.readouterr()
    wide, narrow = map(json.loads, out.splitlines())
    assert "unfamiliar" not in wide
    assert narrow["unfamiliar"] == ["bandwidth 4000 Hz, on dev 7000 to 8000"]
    told = [line for line in err.splitlines() if "may not know what it hears" in line]
    assert told == [
        "nemo-lite transcribe: warning: the model may not know what it hears in 8000.wav: bandwidth 4000 Hz, on dev "
        "7000 to 8000"
    ]
    assert main([path, "8000.wav", "--stream", "segments", *CPU]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("unfamiliar") for line in lines if line["type"] == "final"] == [narrow["unfamiliar"]]


@pytest.mark.parametrize(("confidence", "is_told"), [(0.91, False), (0.88, False), (0.85, True)])
def test_one_short_recording_of_the_models_own_kind_is_not_told_as_unknown(capsys, confidence, is_told):
    words = [Word(text, 0.0, 0.1, confidence) for text in "lwalls"]
    _warn_of_doubt([Transcript("l w a l l s", tuple(words), 1.0, "a.wav")], "dev", 0.944)
    assert ("mean confidence" in capsys.readouterr().err) == is_told


@pytest.mark.slow
def test_a_model_that_says_nothing_of_its_confidence_warns_of_none(model, talks, capsys, monkeypatch):
    monkeypatch.setattr("nemo_asr.run.cli.transcribe._LEAST_WORDS", 0)
    assert main([model, "talks/a.wav", *CPU]) == 0
    assert "mean confidence" not in capsys.readouterr().err
