"""jasper.py with what it cannot use: one line that names the place and the remedy, exit code 2, nothing left behind."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
from toys.tone_corpus import CONFIG, read_manifest, run_process, run_script, write_manifest

from nemo_lite.base.errors import DataError


@pytest.fixture
def lines(corpus):
    """The training manifest's lines."""
    return read_manifest(corpus / "train.json")


def refusal(corpus, *args, **options):
    """The one line that the script says."""
    options = {
        "model_config": corpus / "tones.yaml",
        "train_dataset": corpus / "train.json",
        "max_steps": 2,
        "batch_size": 4,
        "work_dir": "runs",
        **options,
    }
    given = [part for name, value in options.items() if value is not None for part in (f"--{name}", value)]
    finished = run_script("jasper.py", *given, *args)
    assert finished.code == 2, finished
    # What is warned of before: sets that are evaluated and trained on, and texts that evaluation would take as empty.
    warned = ("are in the training set as well", "evaluation scores their texts as they are")
    told = "".join(line for line in finished.err.splitlines(True) if not any(each in line for each in warned))
    assert told.count("\n") == 1, finished.err
    return told


# Manifests: what is wrong is known before the run's folder is made


def broken(index=2, **changes):
    """The lines, with the third changed; a value of None takes the key out."""

    def change(lines):
        line = {key: value for key, value in {**lines[index], **changes}.items() if value is not None}
        return [*lines[:index], line, *lines[index + 1 :]]

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: [], r"bad\.json: the manifest is empty; it needs one JSON object a line"),
        (lambda lines: [*lines, '{"audio_filepath": '], r"bad\.json:13: invalid JSON .*one JSON object a line"),
        (lambda lines: ["[]", *lines], r"bad\.json:1: expected object, got array; .*one JSON object a line"),
        (
            broken(audio_filepath="none.wav"),
            r"bad\.json:3: the audio file \S+ cannot be opened .*mend the path",
        ),
        (broken(audio_filepath="."), r"bad\.json:3: the audio file \S+ is a folder; mend the path"),
        (broken(audio_filepath="void.wav"), r"bad\.json:3: the audio file \S*void\.wav is empty \(0 bytes\); make it"),
        (broken(audio_filepath=None), r"bad\.json:3: no audio_filepath .*; name the audio file"),
        (broken(text=5), r"bad\.json:3: text: expected str"),
        (broken(duration=None), r"bad\.json:3: no duration; write the seconds of audio"),
        (lambda lines: [{**line, "duration": -1} for line in lines], r"no utterance is left: 12 with a duration of 0"),
        (
            lambda lines: [{**line, "offset": 0.0, "duration": 0.01} for line in lines],
            r"no utterance is left: 12 shorter than",
        ),
    ],
)
def test_a_manifest_that_cannot_be_used_is_named_by_line_before_a_folder_is_made(change, told, lines, corpus, tmp_path):
    (tmp_path / "void.wav").write_bytes(b"")
    write_manifest(tmp_path / "bad.json", change(lines))
    assert re.search(told, refusal(corpus, train_dataset=tmp_path / "bad.json"))
    assert re.search(told, refusal(corpus, "--eval_datasets", "bad.json"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (broken(text=None), r"bad\.json:3: text is missing or empty; write the words, or delete the line"),
        (broken(text="  "), r"bad\.json:3: text is missing or empty; write the words, or delete the line"),
    ],
)
def test_a_training_set_without_texts_is_named_by_line_before_a_folder_is_made(change, told, lines, corpus, tmp_path):
    write_manifest(tmp_path / "bad.json", change(lines))
    assert re.search(told, refusal(corpus, train_dataset=tmp_path / "bad.json"))
    assert re.search(told, refusal(corpus, "--strict_data", "--eval_datasets", "bad.json"))
    assert not (tmp_path / "runs").exists()


def test_letters_that_the_labels_lack_leave_nothing_to_train_on_and_are_named_in_strict_data(lines, corpus, tmp_path):
    write_manifest(tmp_path / "bad.json", [{**line, "text": "xyz"} for line in lines])
    told = r"no utterance is left: 12 without a text that the vocabulary can write"
    assert re.search(told, refusal(corpus, train_dataset=tmp_path / "bad.json"))
    write_manifest(tmp_path / "bad.json", broken(text="xyz")(lines))
    told = r'bad\.json:3: letters that the labels lack: got "x" x1 "y" x1 "z" x1; add them to the labels'
    assert re.search(told, refusal(corpus, "--strict_data", "--eval_datasets", "bad.json"))


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        ("trian.json", r"trian\.json: the manifest does not exist \(did you mean train\.json\?\)"),
        ("nowhere/train.json", r"nowhere/train\.json: the manifest does not exist \(there is no folder nowhere\)"),
        (".", r"error: \.: the manifest is a folder; name a file"),
        ("train.json,", r'the list of manifests "train\.json," has an empty part; write a\.json,b\.json with no comma'),
    ],
)
def test_a_manifest_that_is_not_there_is_named_with_the_nearest(manifest, told, lines, corpus, tmp_path):
    write_manifest(tmp_path / "train.json", lines)
    assert re.search(told, refusal(corpus, train_dataset=manifest))
    assert not (tmp_path / "runs").exists()


# Audio: only reading shows it


@pytest.fixture
def audio(tmp_path, lines):
    """Files that nothing can be learnt from."""
    (tmp_path / "corrupt.wav").write_bytes(b"corrupt" * 100)
    (tmp_path / "cut.wav").write_bytes((tmp_path / str(lines[0]["audio_filepath"])).read_bytes()[:4000])
    soundfile.write(tmp_path / "silent.wav", np.zeros(0), 16000)
    soundfile.write(tmp_path / "nan.wav", np.full(8000, np.nan, np.float32), 16000, subtype="FLOAT")
    return tmp_path


@pytest.mark.slow
def test_an_offset_behind_the_end_is_told_before_training(lines, corpus, audio):
    write_manifest(audio / "bad.json", [{**lines[0], "offset": 60.0}])
    line = refusal(corpus, train_dataset="bad.json")
    assert re.search(r"^jasper\.py: error: bad\.json:1: offset 60 s leaves nothing of .*0\.wav: got 0\.510 s in", line)
    assert line.endswith("; mend the offset, or delete the line\n")
    assert list(audio.rglob("log*.txt")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"audio_filepath": "corrupt.wav"}, r"corrupt\.wav is not a WAV, FLAC, .*; convert it"),
        ({"audio_filepath": "silent.wav"}, r"silent\.wav holds no samples"),
        ({"audio_filepath": "cut.wav"}, r"cut\.wav is damaged: 16320 bytes of samples promised, 3956 are there"),
        ({"audio_filepath": "nan.wav", "duration": 0.5}, r"nan\.wav has samples that are NaN or infinite"),
    ],
)
def test_audio_that_cannot_be_used_ends_a_small_run_with_its_line(changes, told, lines, corpus, audio):
    write_manifest(audio / "bad.json", [{**lines[0], **changes}])
    line = refusal(corpus, train_dataset="bad.json")
    assert re.search(rf"^jasper\.py: error: bad\.json:1: .*{told}", line)
    assert line.endswith("max_corrupt allows 0: mend the files, delete their lines, or raise max_corrupt\n")
    assert list(audio.rglob("*.safetensors")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"duration": 2.0}, r"duration 2 s disagrees with .*0\.wav, which holds 0\.510 s; correct the duration"),
    ],
)
def test_a_duration_that_is_not_the_files_ends_a_strict_run_only(changes, told, lines, corpus, audio):
    write_manifest(audio / "bad.json", [{**line, **changes} for line in lines[:1]])
    assert re.search(
        rf"^jasper\.py: error: bad\.json:1: .*{told}", refusal(corpus, "--strict_data", train_dataset="bad.json")
    )
    write_manifest(audio / "bad.json", [{**lines[0], **changes}, *lines[1:]])
    assert re.search(told, refusal(corpus, "--strict_data", "--eval_datasets", "bad.json"))


def test_a_manifest_of_nemos_tests_trains(lines, corpus, tmp_path):
    """Paths start where the script runs, and each duration is 2.00275 s, of files half as long."""
    (tmp_path / "lists").mkdir()
    (tmp_path / "an4").symlink_to(corpus)
    wavs = [f"an4/{Path(str(line['audio_filepath'])).name}" for line in lines]
    changed = [{**line, "audio_filepath": wav, "duration": 2.00275} for line, wav in zip(lines, wavs, strict=True)]
    write_manifest(tmp_path / "lists/train.json", changed)
    options = ("--model_config", corpus / "tones.yaml", "--train_dataset", "lists/train.json", "--batch_size", 4)
    finished = run_script(
        "jasper.py", *options, "--num_epochs", 1, "--log_freq", 1, "--eval_datasets", "lists/train.json"
    )
    assert finished.code == 0, finished.err
    assert len(finished.losses) == 3
    assert "12 of 12 utterances with a path that starts at the working directory" in finished.out
    assert finished.err.count("12 of 12 durations differ from their files by more than 0.1 s and 1 %: what a") == 2
    assert "lists/train.json:3 says 2.003 s, the file has 0.340 s" in finished.err
    write_manifest(tmp_path / "lists/one.json", changed[:1])
    told = refusal(corpus, "--strict_data", train_dataset="lists/one.json")
    assert "lists/one.json:1: the audio file lists/an4/train0.wav cannot be opened" in told


def test_audio_of_an_evaluation_set_is_read_before_the_first_step(lines, corpus, audio):
    write_manifest(audio / "bad.json", broken(audio_filepath="corrupt.wav")(lines))
    line = refusal(corpus, "--eval_datasets", "bad.json", max_steps=10**6)
    assert re.search(r"bad\.json:3: \S*corrupt\.wav is not a WAV, FLAC, OGG, MP3", line)


def test_an_evaluation_that_fails_at_the_end_costs_no_weights(lines, corpus, tmp_path, monkeypatch):
    calls = []

    def score(*_, **__):
        calls.append(1)
        if len(calls) > 1:
            raise DataError("the disk of the evaluation set is gone")
        return {}

    monkeypatch.setattr("nemo_asr.commands.training.ScoredSet.tagged_values", score)
    assert "the disk of the evaluation set is gone" in refusal(corpus, "--eval_datasets", corpus / "dev.json")
    assert (tmp_path / "runs/Jasper/checkpoints/checkpoint-STEP-2/record.json").is_file()


def test_a_few_damaged_files_do_not_end_a_run_and_are_counted_and_listed_at_its_end(lines, corpus, audio):
    damaged = [{**lines[0], "audio_filepath": "corrupt.wav"}, {**lines[1], "audio_filepath": "cut.wav"}]
    write_manifest(audio / "some.json", [*damaged, *lines, *lines])
    finished = run_script(
        *("jasper.py", "--model_config", corpus / "tones.yaml", "--train_dataset", "some.json", "--num_epochs", 2),
        *("--batch_size", 4, "--work_dir", "runs", "--log_style", "plain"),
    )
    assert finished.code == 0
    first, last = finished.err.split("2 of 26 utterances could not be used:\n")
    assert "some.json: 2 utterances skipped so far (max_corrupt 2):" in first
    assert [re.match(r"  some\.json:(\d): ", line)[1] for line in last.splitlines()] == ["1", "2"]
    (log,) = audio.rglob("log*.txt")
    assert re.search(r"could not be used:.* Done: .* Report: ", log.read_text(), re.DOTALL), "before the summary"
    assert {path.name for path in audio.rglob("checkpoint-*")} == {"checkpoint-STEP-7", "checkpoint-STEP-14"}


@pytest.mark.slow
def test_texts_that_do_not_fit_their_frames_are_listed_and_the_rest_is_trained(lines, corpus, tmp_path):
    write_manifest(tmp_path / "long.json", broken(text="abc" * 30)(lines))
    finished = run_script(
        *("jasper.py", "--model_config", corpus / "tones.yaml", "--train_dataset", "long.json", "--num_epochs", 1),
        *("--batch_size", 1, "--log_freq", 1),
    )
    assert finished.code == 0
    assert re.search(r'long\.json:3: 17 frames cannot hold "(abc)+ab\.\.\.", which needs 90', finished.err)
    assert "1 of 12 texts do not fit their frames: they are left out of training" in finished.err
    assert "not finite" not in finished.err
    assert len(finished.losses) == 11


@pytest.mark.parametrize("texts", [1, 4])
def test_an_evaluation_text_that_does_not_fit_its_frames_is_named_before_training_and_costs_no_checkpoint(
    texts, lines, corpus, tmp_path
):
    dev = [{**line, "text": "abc" * 30} if index < texts else line for index, line in enumerate(lines[:4])]
    write_manifest(tmp_path / "dev.json", dev)
    command = (
        *("jasper.py", "--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json"),
        *("--eval_datasets", tmp_path / "dev.json", "--batch_size", 4, "--checkpoint_save_freq", 2),
        *("--work_dir", "runs", "--log_style", "plain", "--max_steps"),
    )
    finished = run_script(*command, 3)
    assert finished.code == 0, finished.err
    for line in range(1, 1 + texts):
        assert re.search(rf'dev\.json:{line}: \d+ frames cannot hold "(abc)+ab\.\.\.", which needs 90', finished.err)
    assert "Evaluation dev at step 0: loss is inf; the run goes on" in finished.err
    assert run_script(*command, 5).code == 0
    (run,) = tmp_path.glob("runs/*/metrics.jsonl")
    records = [json.loads(line) for line in run.read_text().splitlines()]
    assert next(record["loss"] for record in records if record["kind"] == "evaluation") is None
    saved = sorted(path.name for path in run.parent.glob("checkpoints/checkpoint-*"))
    assert saved == [f"checkpoint-STEP-{step}" for step in (2, 3, 4, 5)]
    assert json.loads((run.parent / "model/model.json").read_text())["rates"][0]["loss"] is None
    assert (run.parent / "report.html").is_file()


def test_a_run_whose_names_are_no_utf_8_is_saved_reported_and_goes_on(lines, corpus, tmp_path):
    folder, runs = tmp_path / os.fsdecode(b"d\xff"), tmp_path / os.fsdecode(b"runs\xfe")
    dev, config = folder / os.fsdecode(b"dev\xfe.json"), folder / os.fsdecode(b"t\xff.yaml")
    folder.mkdir()
    write_manifest(dev, lines[:4])
    write_manifest(folder / "train.json", lines)
    config.write_bytes((corpus / "tones.yaml").read_bytes())
    sets = ("--train_dataset", folder / "train.json", "--eval_datasets", dev)
    for steps in (2, 4):
        finished = run_script(
            *("jasper.py", "--model_config", config, *sets, "--batch_size", 4, "--work_dir", runs),
            *("--log_style", "plain", "--max_steps", steps),
        )
        assert finished.code == 0, finished.err
    (run,) = runs.glob("*/metrics.jsonl")
    assert {"checkpoint-STEP-2", "checkpoint-STEP-4"} <= {path.name for path in run.parent.glob("checkpoints/*")}
    start, *_ = [json.loads(line) for line in run.read_text().splitlines()]
    assert start["arguments"]["train_dataset"] == str(folder / "train.json")
    assert (run.parent / "report.html").is_file()


# Configurations


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("activation", "activaton", r"bad\.yaml:8:3: .*activaton is not a key \(did you mean activation\?\)"),
        ("residual: false}", "residul: false}", r"bad\.yaml:12:\d+: .*residul is not a key \(did you mean residual"),
        ("JasperEncoder", "JasperEncodr", r"bad\.yaml:7:1: JasperEncodr is not a key \(did you mean JasperEncoder\?\)"),
        ("shuffle: true", "shufle: true", r"bad\.yaml:4:11: .*train\.shufle is not a key \(did you mean shuffle\?\)"),
        ("  conv_mask: true", "  conv_mask: true\n  conv_mask: true", r"bad\.yaml:10:3: .*conv_mask is given twice"),
        ('"b", "c"', '"b", "b"', r"bad\.yaml:13:25: label 'b' repeats the one at \S*bad\.yaml:13:20"),
        ("activation: relu", "activation: relu\n  feat_in: 64", r"bad\.yaml:9:3: .*feat_in is 64, wanted 32: .*line 6"),
        ("activation: relu", "activation: rellu", r'bad\.yaml:7:1: JasperEncoder: activation "rellu" .*mean relu\?'),
        ("features: 32", "features: many", r'bad\.yaml:6:37: .*features is "many", wanted int'),
        ("filters: 64", "filters: -64", r"bad\.yaml:12:8: .*jasper\[1\]\.filters is -64, wanted int from 1 to 65536"),
        ("model: Tones", "model: [Tones", r"bad\.yaml:\d+:\d+: cannot be parsed: "),
        (CONFIG, "", r"bad\.yaml: the file is empty, a mapping of sections was expected"),
        (CONFIG, "\x00\x01", r"bad\.yaml:1: character 0x00 has no place in YAML"),
        (CONFIG, "- a\n- b\n", r"bad\.yaml:1:1: .* where a mapping of sections was expected"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named_by_line_and_column(old, new, told, corpus, tmp_path):
    assert old in CONFIG
    (tmp_path / "bad.yaml").write_text(CONFIG.replace(old, new))
    assert re.search(told, refusal(corpus, model_config="bad.yaml"))
    assert not (tmp_path / "runs").exists()


def test_a_configuration_that_is_not_there_or_no_text_is_named(corpus, tmp_path):
    (tmp_path / "tones.yaml").write_text(CONFIG)
    assert "tone.yaml: no such file (did you mean tones.yaml?)" in refusal(corpus, model_config="tone.yaml")
    assert "the configuration is a folder" in refusal(corpus, model_config=".")
    assert "the configuration is not UTF-8: got the byte 0x" in refusal(corpus, model_config=corpus / "train0.wav")
    assert "--model_config is missing" in refusal(corpus, model_config=None)


# What is asked for and not there


@pytest.mark.slow
def test_an_output_folder_that_is_not_writable_is_named(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    for options in ({"work_dir": "file/runs"}, {"work_dir": "/proc/runs"}):
        told = refusal(corpus, **options)
        assert f"{options['work_dir']}/Jasper: the folder is not writable" in told
        assert "choose another folder, or correct its permissions" in told
    told = refusal(corpus, "--plan", work_dir="file/runs")
    assert "file: there is a file where a folder is wanted; choose another folder" in told


def test_a_device_or_a_precision_that_is_not_there_leaves_nothing_behind(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "placement GPU asks for a GPU, and there is none" in refusal(corpus, placement="GPU")
    assert "float16 is not computed on a CPU; use bfloat16" in refusal(corpus, amp_dtype="float16")
    assert not (tmp_path / "runs").exists()


def test_how_long_to_train_must_be_said_once(corpus, tmp_path):
    assert "got both, wanted --num_epochs or --max_steps" in refusal(corpus, num_epochs=3)
    assert "got neither, wanted --num_epochs or --max_steps" in refusal(corpus, max_steps=None)
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def checkpoints(corpus, tmp_path):
    options = ["--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json", "--max_steps", 1]
    assert run_script("jasper.py", *options, "--checkpoint_dir", "checkpoints").code == 0
    return tmp_path / "checkpoints"


@pytest.mark.slow
def test_checkpoints_of_another_model_another_optimizer_or_damaged_ones_are_named(corpus, checkpoints, tmp_path):
    (tmp_path / "other.yaml").write_text(CONFIG.replace('"b", "c"', '"b", "c", "d"'))
    told = refusal(corpus, load_dir=checkpoints, model_config="other.yaml")
    assert "other.yaml:13:1: the labels are not the model's: got 5 labels, different: 'd', wanted 4 labels" in told
    (tmp_path / "wide.yaml").write_text(CONFIG.replace("filters: 32", "filters: 48"))
    told = refusal(corpus, load_dir=checkpoints, model_config="wide.yaml")
    got = "got JasperEncoder.jasper.0.filters 48, wanted 32 as in"
    assert f"wide.yaml:1:1: the configuration is not the one with which this run began: {got}" in told
    told = refusal(corpus, load_dir=checkpoints, optimizer="sgd")
    differ = "the optimizers differ: got Novograd saved, wanted SGD of this run; train on with"
    assert f"checkpoints/checkpoint-STEP-1: {differ}" in told
    weights = checkpoints / "checkpoint-STEP-1" / "JasperEncoder-STEP-1.safetensors"
    weights.write_bytes(b"?" * weights.stat().st_size)
    told = refusal(corpus, load_dir=checkpoints)
    problem = "JasperEncoder-STEP-1.safetensors has changed (SHA-256 differs)"
    assert f"every checkpoint is damaged: got checkpoint-STEP-1: {problem}" in told
    weights.unlink()
    told = refusal(corpus, load_dir=checkpoints)
    assert "every checkpoint is damaged: got checkpoint-STEP-1: lacks JasperEncoder-STEP-1.safetensors" in told


@pytest.mark.slow
def test_a_process_of_its_own_says_one_line_and_returns_2(corpus):
    options = [
        "--model_config",
        corpus / "tones.yaml",
        "--train_dataset",
        "none",
        "--max_steps",
        1,
        "--log_level",
        "warning",
    ]
    told = "jasper.py: error: none: the manifest does not exist; name a file with one JSON object a line\n"
    assert run_process("jasper.py", *options) == (2, "", told)
