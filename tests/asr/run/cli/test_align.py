"""nemo-lite align: made speech whose times are known, and recordings that cannot be aligned."""

import json
import re
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from toys.onnx_toy import METADATA, write_toy
from toys.tone_corpus import CONFIG, FREQUENCIES, record, write_manifest
from toys.tone_model import exported_tones, train_tones

import nemo_asr
import nemo_lite
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.run.cli import align
from nemo_asr.run.cli.align import main
from nemo_asr.run.engines import open_engines
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.text.subword_training import train_subwords
from nemo_asr.run.transcribe.alignment import SentenceCutting
from nemo_asr.trained.model import TrainedModel, describe
from nemo_lite.base.errors import CheckpointError, DataError, FileInTheWayError, UsageError

RATE = 16000
TEXTS = ["cab", "abba", "bc", "acb", "bbca", "caca"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    recipe, modules = train_tones(tmp_path_factory.mktemp("corpus"))
    folder = tmp_path_factory.mktemp("model")
    TrainedModel("here", recipe, modules, describe(recipe)).save(folder)
    return str(folder)


@pytest.fixture
def talk(tmp_path, monkeypatch):
    """A recording of several utterances, and when each label of it begins."""
    monkeypatch.chdir(tmp_path)
    rng, pieces, starts = np.random.default_rng(0), [], []
    for text in TEXTS:
        pieces.append(np.zeros(int(rng.uniform(0.5, 1.2) * RATE)))
        for letter in text:
            starts.append(sum(map(len, pieces)) / RATE)
            tone = 0.3 * np.sin(2 * np.pi * FREQUENCIES[letter] * np.arange(int(0.15 * RATE)) / RATE)
            pieces += [tone, np.zeros(int(0.02 * RATE))]
    samples = np.concatenate([*pieces, np.zeros(RATE)])
    soundfile.write("talk.wav", samples + rng.normal(0, 1e-3, len(samples)), RATE)
    line = {"audio_filepath": "talk.wav", "duration": len(samples) / RATE, "text": ". ".join(TEXTS)}
    write_manifest(tmp_path / "talk.json", [line])
    return line, starts


@pytest.mark.slow
def test_labels_and_words_of_joined_utterances_begin_where_they_were_put(model, talk, capsys):
    _, starts = talk
    assert main([model, "talk.json", "--placement", "CPU"]) == 0
    line = json.loads(capsys.readouterr().out)
    labels = [label for segment in line["segments"] for label in segment["labels"]]
    assert "".join(label["text"] for label in labels) == "".join(TEXTS)
    errors = np.abs([label["start"] - start for label, start in zip(labels, starts, strict=True)])
    assert np.median(errors) < 0.04
    words = [word for segment in line["segments"] for word in segment["words"]]
    firsts = np.cumsum([0, *map(len, TEXTS)])[:-1]
    assert np.abs([word["start"] - starts[first] for word, first in zip(words, firsts, strict=True)]).max() < 0.04


@pytest.mark.slow
def test_a_long_recording_becomes_a_manifest_of_its_sentences(model, talk, tmp_path, capsys):
    assert main([model, "talk.json", "--cut", "cut.json", "--placement", "CPU"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "cut.json").read_text().splitlines()]
    assert [line["text"].rstrip(".") for line in lines] == TEXTS
    assert min(line["score"] for line in lines) > -2
    assert all(line["offset"] >= 0 and line["duration"] > 0.3 for line in lines)
    assert capsys.readouterr().out == ""
    assert main([model, "cut.json", "--format", "ctm", "--out", "cut.ctm", "--placement", "CPU"]) == 0
    assert len((tmp_path / "cut.ctm").read_text().splitlines()) == len(TEXTS)


@pytest.mark.slow
def test_a_long_alignment_says_now_and_then_how_far_it_is(model, talk, capsys, monkeypatch):
    line, _ = talk
    monkeypatch.setattr(align, "_PROGRESS_SECONDS", 0.0)
    assert main([model, "talk.json", "--placement", "CPU", "--batch_size", "1"]) == 0
    out, err = capsys.readouterr()
    told = [float(minutes) for minutes in re.findall(r"(\d+\.\d) min of speech of 1 recording computed so far", err)]
    assert len(told) > 1
    assert told == sorted(told)
    assert 0.0 < told[-1] <= line["duration"] / 60 + 0.05
    assert len(out.splitlines()) == 1, "the result alone"


@pytest.mark.slow
def test_what_cannot_be_aligned_is_one_line_each_and_ends_no_other(model, talk, tmp_path, capsys):
    line, _ = talk
    bad = [{**line, "text": "cab " * 300}, {**line, "text": "cab d\u00e9"}, {**line, "text": ""}]
    bad += [{**line, "audio_filepath": "none.wav"}]
    write_manifest(tmp_path / "all.json", [bad[0], line, *bad[1:]])
    assert main([model, "all.json", "--placement", "CPU"]) == 1
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1
    errors = [text for text in told.err.splitlines() if "error:" in text]
    assert len(errors) == 4
    assert re.search(r"talk.wav: the text is longer than its recording: got 1199 labels in", errors[0])
    assert 'all.json:3: talk.wav: the labels cannot spell the text: got "d" x1' in told.err.replace(str(tmp_path), "")
    write_manifest(tmp_path / "bad.json", bad)
    assert main([model, "bad.json", "--placement", "CPU"]) == 2


@pytest.mark.parametrize("option", ["--out", "--cut"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("talk.json", "talk.json: this is an input of the command, which is never overwritten; give another name"),
        ("./link.json", "link.json: this is an input of the command (talk.json), which"),
        ("talk.wav", "talk.wav: this is the name of a recording: wanted the name of a text file"),
        ("sound", "sound: this is an input of the command ("),
    ],
)
def test_an_input_is_never_overwritten_whatever_it_is_called(option, name, told, talk, tmp_path):
    (tmp_path / "link.json").symlink_to("talk.json")
    (tmp_path / "sound").hardlink_to(tmp_path / "talk.wav")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=re.escape(told)):
        main(["none", "talk.json", option, name, "--overwrite"])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_of_the_users_is_not_overwritten(talk, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "grids").mkdir()
    (tmp_path / "grids" / "talk.TextGrid").write_text("mine")
    for words, told in (
        (["--out", "mine"], "mine: the file was not written by nemo-lite align; give another name, or --overwrite"),
        (["--cut", "mine"], "mine: the file was not written by nemo-lite align --cut; give another name, or"),
        (["--format", "textgrid", "--out", "grids"], "grids/talk.TextGrid: the file was not written by nemo-lite"),
        (["--out", "new", "--cut", "./new"], "--out and --cut name one file: got new; give two names"),
    ):
        with pytest.raises(UsageError, match=re.escape(told)):
            main(["none", "talk.json", *words])


@pytest.mark.slow
def test_a_second_run_replaces_what_the_first_one_wrote(model, talk, tmp_path):
    line = [model, "talk.json", "--cut", "cut.json", "--out", "times.jsonl", "--placement", "CPU"]
    assert main(line) == main(line) == 0
    (tmp_path / "cut.json").write_text("corrected")
    with pytest.raises(FileInTheWayError, match=r"cut\.json: the file was changed since nemo-lite align --cut"):
        main(line)
    assert main([*line, "--overwrite"]) == 0
    assert (tmp_path / "cut.json").read_text() != "corrected"


def test_options_that_have_no_effect_and_places_that_are_none_are_refused(tmp_path, capsys):
    for words, message in (
        (["--min_score", "-1"], "--min_score has no effect without --cut"),
        (["--segments", "off", "--min_pause", "1"], "--min_pause has no effect with --segments off"),
    ):
        with pytest.raises(SystemExit):
            main(["model", "talk.json", *words])
        assert message in capsys.readouterr().err
    line = {"audio_filepath": "a.wav", "duration": 1.0, "text": "a"}
    write_manifest(tmp_path / "two.json", [line, line])
    with pytest.raises(UsageError, match="textgrid files of several recordings need a folder: got 2 recordings"):
        main(["model", str(tmp_path / "two.json"), "--format", "textgrid"])


@pytest.mark.slow
def test_a_text_without_marks_is_cut_at_the_pauses_of_its_recording(model, talk, tmp_path):
    write_manifest(tmp_path / "plain.json", [{**talk[0], "text": " ".join(TEXTS)}])
    for words, texts in (((), [" ".join(TEXTS)]), (("--pause", "0.35"), TEXTS)):
        assert main([model, "plain.json", "--cut", "cut.json", *words, "--placement", "CPU"]) == 0
        lines = [json.loads(line) for line in (tmp_path / "cut.json").read_text().splitlines()]
        assert [line["text"] for line in lines] == (texts if words else [line["text"] for line in lines])
        assert len(lines) >= len(texts)
    firsts = np.cumsum([0, *map(len, TEXTS)])
    for line, first, end in zip(lines, firsts, firsts[1:], strict=False):  # with all of its sound
        assert line["offset"] <= talk[1][first]
        assert line["offset"] + line["duration"] >= talk[1][end - 1] + 0.14


@pytest.mark.slow
def test_the_seconds_that_are_told_are_without_those_that_the_model_takes_to_load(model, talk, capsys, monkeypatch):
    now = [0.0]

    def slowly_opened(models, args):
        now[0] += 100.0
        return open_engines(models, args)

    monkeypatch.setattr(align, "open_engines", slowly_opened)
    monkeypatch.setattr(align, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert main([model, "talk.json", "--placement", "CPU"]) == 0
    assert re.search(r"1 text aligned, \d+\.\d s of audio in 0\.0 s\n", capsys.readouterr().err)


@pytest.mark.slow
def test_python_aligns_as_the_command_does_and_names_all_that_it_cannot(model, talk, capsys):
    text = talk[0]["text"]
    assert main([model, "talk.json", "--placement", "CPU"]) == 0
    told = json.loads(capsys.readouterr().out)
    loaded = nemo_asr.load_model(model)
    (found,) = loaded.align(["talk.wav"], [text])
    assert [asdict(segment) for segment in found.segments] == [
        {**segment, "words": tuple(segment["words"]), "labels": tuple(segment["labels"])}
        for segment in told["segments"]
    ]
    samples, rate = soundfile.read("talk.wav")
    (of_array,) = loaded.align([samples], [text], rate, sentences=SentenceCutting(longest=1.0))
    assert [word.text for word in of_array.words] == TEXTS
    with pytest.raises(DataError, match=r"2 of the recordings cannot be aligned: .*no text to align.*none.wav"):
        loaded.align(["talk.wav", "talk.wav", "none.wav"], [text, "", "cab"])
    with pytest.raises(UsageError, match="each recording needs its text: got 1 recording, 2 texts"):
        loaded.align(["talk.wav"], [text, text])
    with pytest.raises(UsageError, match="a text is of one channel: got channel 'each'; give mix, or 0 or 1"):
        loaded.align(["talk.wav"], [text], channel="each")


@pytest.mark.slow
def test_a_detector_says_where_somebody_speaks(model, talk):
    text, loaded = talk[0]["text"], nemo_asr.load_model(model)

    def detector(value):
        return lambda pieces, rate: (np.full(sum(map(len, pieces)) // (rate // 10) + 1, value), 0.1)

    (of_levels,) = loaded.align(["talk.wav"], [text])
    (found,) = loaded.align(["talk.wav"], [text], detector=detector(True))
    errors = [a.start - b.start for a, b in zip(found.words, of_levels.words, strict=True)]
    assert np.abs(errors).max() < 0.25  # one part: words behind pauses have no beginnings of sound
    with pytest.raises(DataError, match="nobody speaks in the recording; give --segments off"):
        loaded.align(["talk.wav"], [text], detector=detector(False))


@pytest.mark.slow
def test_an_onnx_file_gives_the_times_of_its_model_within_a_frame(model, talk, capsys):
    exported = str(exported_tones())
    capsys.readouterr()
    outputs = []
    for name in (model, exported):
        assert main([name, "talk.json", "--delay", "0.07"]) == 0  # measured, it would hide a shift
        line = json.loads(capsys.readouterr().out)
        outputs.append([label for segment in line["segments"] for label in segment["labels"]])
    assert [label["text"] for label in outputs[0]] == [label["text"] for label in outputs[1]]
    for one, other in zip(*outputs, strict=True):
        assert one["start"] == pytest.approx(other["start"], abs=0.0201)
        assert one["end"] == pytest.approx(other["end"], abs=0.0201)
    with pytest.raises(UsageError, match="an ONNX file runs as it is, in one process on the CPU: got --placement"):
        main([exported, "talk.json", "--placement", "GPU"])


def test_an_onnx_file_of_subwords_without_a_tokenizer_says_what_to_do(tmp_path, talk):
    labels = json.dumps(["\u2581a", "b", "c", "d"])
    write_toy(tmp_path / "old.onnx", {**METADATA, "labels": labels})
    with pytest.raises(CheckpointError, match="not say how texts are cut into its subwords; export the model again"):
        main(["old.onnx", "talk.json"])
    write_toy(tmp_path / "bad.onnx", {**METADATA, "tokenizer": "?"})
    with pytest.raises(CheckpointError, match="what it says of texts is damaged"):
        main(["bad.onnx", "talk.json"])


@pytest.fixture(scope="module")
def subword_model(tmp_path_factory):
    """A model of SentencePiece's pieces that has learned words of tones, and a recording of three sentences."""
    folder = tmp_path_factory.mktemp("subwords")
    texts = ["cab ab", "ab cab bc", "bc", "cab bc ab", "ab bc", "bc cab", "cab", "ab ab cab", "bc ab", "cab cab bc"]
    lines = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.wav"
        lines.append({"audio_filepath": str(path), "duration": record(path, text), "text": text})
    write_manifest(folder / "train.json", lines)
    (folder / "pieces.model").write_bytes(train_subwords(texts, 8).model)
    config = CONFIG.partition("labels:")[0].replace("kernel: [11]", "kernel: [51]")  # a frame sees a whole word
    (folder / "tones.yaml").write_text(f"{config}tokenizer: {folder / 'pieces.model'}\n")
    recipe = nemo_asr.load_recipe(folder / "tones.yaml")
    factory = nemo_lite.NeuralModuleFactory(placement=nemo_lite.DeviceType.CPU, random_seed=0, set_default=False)
    modules = recipe.model()
    layer = recipe.data_layer(str(folder / "train.json"), training=True, batch_size=5)
    loss = nemo_asr.connect(modules, layer, training=True).loss
    factory.train([loss], optimizer="adam", optimization_params={"num_epochs": 40, "lr": 0.02})
    return TrainedModel("here", recipe, modules, describe(recipe))


@pytest.mark.long
@pytest.mark.slow
def test_subwords_words_and_sentences_have_their_times_in_torch_and_in_onnx(subword_model, tmp_path):
    sentences, pieces, starts, bounds = ["cab ab", "bc cab", "ab bc ab"], [], [], []
    for sentence in sentences:
        record(tmp_path / "one.wav", sentence)
        samples, _ = soundfile.read(tmp_path / "one.wav")
        pieces.append(np.zeros(int(0.8 * RATE)))
        first = sum(map(len, pieces)) / RATE
        starts += [first + 0.17 * match.start() for match in re.finditer(r"\S+", sentence)]
        bounds.append((first, first + len(samples) / RATE))
        pieces.append(samples)
    samples = np.concatenate([*pieces, np.zeros(RATE)])
    samples = samples + np.random.default_rng(0).normal(0, 1e-3, len(samples))
    (found,) = subword_model.align([samples], [". ".join(sentences)], RATE)
    assert [segment.text for segment in found.segments] == ["cab ab.", "bc cab.", "ab bc ab"]
    for segment, (start, end) in zip(found.segments, bounds, strict=True):
        assert (segment.start, segment.end) == (pytest.approx(start, abs=0.06), pytest.approx(end, abs=0.06))
        parts = [label for label in segment.labels if label.text]
        assert "".join(label.text for label in parts) == segment.text.replace(" ", "").rstrip(".")
        edges = [edge for label in segment.labels for edge in (label.start, label.end)]
        assert edges == sorted(edges)
    assert [word.text for word in found.words] == " ".join(sentences).split()
    errors = np.abs([word.start - start for word, start in zip(found.words, starts, strict=True)])
    assert np.median(errors) < 0.1, errors
    assert any(len(label.text) > 1 for segment in found.segments for label in segment.labels)  # pieces, not letters
    export_onnx(subword_model, tmp_path / "pieces.onnx")
    (other,) = OnnxModel(tmp_path / "pieces.onnx").align([samples], [". ".join(sentences)], audio_rate=RATE).alignments
    for one, two in zip(found.words, other.words, strict=True):
        assert (one.text, one.start) == (two.text, pytest.approx(two.start, abs=0.0201))
