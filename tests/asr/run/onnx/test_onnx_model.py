"""Exported models in ONNX Runtime: what the metadata must say, batches, and recordings that cannot be read."""

import json
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import soundfile
from toys.onnx_toy import METADATA, RATE, write_toy

from nemo_asr.run.audio.segments import Cutting
from nemo_asr.run.cli.transcribe import main
from nemo_asr.run.onnx.onnx_model import OnnxModel, load_onnx_model
from nemo_asr.run.search.text_search import TextSearch
from nemo_asr.run.transcribe.inputs import Recording
from nemo_asr.run.transcribe.transcript import Transcript
from nemo_lite.base.errors import CheckpointError, UsageError


def said(*ids):
    return Recording("a", np.array(ids, np.float32), RATE)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy(tmp_path_factory.mktemp("toy") / "toy.onnx")


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_transcripts_are_in_the_order_given_whatever_the_batches(toy, batch_size):
    recordings = [said(1, 1, 4, 1), said(2), said(1, 2, 0, 0, 3, 4, 4)]
    result = load_onnx_model(toy).transcribe(recordings, batch_size, cutting=None)
    assert [each.text for each in result.transcripts] == ["aa", "b", "ab c"]
    assert not result.faults
    assert result.seconds == pytest.approx(1.2)


def test_words_have_times_and_confidences(toy):
    (transcript,) = OnnxModel(toy).transcribe([said(4, 1, 2, 0, 3)], cutting=None).transcripts
    assert [(word.text, word.start, word.end, word.confidence) for word in transcript.words] == [
        ("ab", 0.1, 0.3, 0.77),
        ("c", 0.4, 0.5, 0.774),
    ]


@pytest.mark.filterwarnings("error")
def test_confidences_are_refused_where_rows_are_no_probabilities(toy, monkeypatch):
    model = OnnxModel(toy)
    states = model.states

    def changed(signals, by):
        return [{name: values + by for name, values in row.items()} for row in states(signals)]

    for change, log_sum in ((3.0, "3"), (np.inf, "(nan|inf)"), (-np.inf, "(nan|-inf)"), (np.nan, "nan")):
        monkeypatch.setattr(model, "states", partial(changed, by=change))
        told = rf"no logarithms of probabilities, so words .*: got .* sum is {log_sum}, wanted 0, as of a CTC head"
        with pytest.raises(UsageError, match=told):
            model.transcribe([said(1)], cutting=None)


def test_a_recording_that_cannot_be_read_does_not_end_the_others(toy, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"no audio")
    bad = Recording("bad.wav", str(tmp_path / "bad.wav"))
    result = OnnxModel(toy).transcribe([bad, said(1)], cutting=None)
    assert ([each.text for each in result.transcripts], list(result.faults)) == (["a"], [0])
    assert "bad.wav" in result.faults[0]


@pytest.mark.parametrize(
    ("changed", "got"),
    [
        ({"format": "else 2"}, 'format "else 2"'),
        ({"sample_rate": "fast"}, "fast"),
        ({"labels": "["}, "got"),
        ({"trim_silence": "perhaps"}, "trim_silence 'perhaps'"),
        ({"labels": None}, "no 'labels'"),
        ({"calibration": "{}"}, "missing required field `slope`"),
        ({"format": None}, "no 'format'"),
    ],
)
def test_a_file_that_does_not_say_how_to_use_it_is_refused(tmp_path, changed, got):
    metadata = {name: text for name, text in (METADATA | changed).items() if text is not None}
    path = write_toy(tmp_path / "toy.onnx", metadata)
    with pytest.raises(CheckpointError, match=r"does not say how to use it.*write it with nemo-lite export") as caught:
        OnnxModel(path)
    assert got in str(caught.value)


def test_what_is_no_onnx_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.onnx: the ONNX file cannot be opened \(No such file"):
        OnnxModel(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(CheckpointError, match=r"text\.onnx: this is no ONNX file: wanted"):
        OnnxModel(tmp_path / "text.onnx")


def test_a_missing_onnxruntime_is_an_error_with_the_install_line(toy, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"onnxruntime is not installed; pip install onnxruntime$"):
        OnnxModel(toy)


def test_a_file_runs_with_the_providers_and_threads_given(toy, monkeypatch):
    made = []
    session = onnxruntime.InferenceSession

    def note(path, options, providers):
        made.append((providers, options.intra_op_num_threads))
        return session(path, options, providers=providers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", note)
    for providers, threads in ((["cpu"], 1), (["CPUExecutionProvider"], 2), ([], None)):
        (found,) = OnnxModel(toy, providers, threads).transcribe([said(1, 2)], cutting=None).transcripts
        assert found.text == "ab"
    assert made == [(["CPUExecutionProvider"], 1), (["CPUExecutionProvider"], 2), (["CPUExecutionProvider"], 0)]


@pytest.mark.parametrize(("provider", "sizes"), [("CPU", [1, 1, 1]), ("CUDA", [3])])
def test_a_cpu_computes_recordings_one_by_one_and_a_gpu_in_batches(toy, monkeypatch, provider, sizes):
    model, computed = OnnxModel(toy), []
    session = model._session

    def run(names, inputs):
        computed.append(len(inputs["length"]))
        return session.run(names, inputs)

    stand_in = SimpleNamespace(run=run, get_providers=lambda: [f"{provider}ExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(model, "_session", stand_in)
    rows = [row["log_probs"] for row in model.states([np.ones(number, np.float32) for number in (1, 2, 3)])]
    assert ([len(row) for row in rows], computed) == ([1, 2, 3], sizes)


def test_a_provider_that_is_not_there_is_refused_with_those_that_are(toy, monkeypatch):
    with pytest.raises(
        UsageError, match=r"toy\.onnx: the provider is not in the installed .*: got Abacus, wanted .*CPU"
    ):
        OnnxModel(toy, ["Abacus", "CPU"])
    # ONNX Runtime goes on without a provider whose libraries are missing.
    known = [*onnxruntime.get_available_providers(), "AbacusExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: known)
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda *_, providers: SimpleNamespace(get_providers=lambda: known[:1])
    )
    with pytest.raises(UsageError, match=r"the provider cannot be started here: got Abacus, wanted \w+$"):
        OnnxModel(toy, ["abacus"])


def test_options_of_onnx_files_are_refused_for_model_folders(toy, tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(100, np.float32), 1000)
    with pytest.raises(UsageError, match=r"only an ONNX file knows these options: got --providers, --threads; leave"):
        main([str(tmp_path), str(tmp_path / "a.wav"), "--threads", "1", "--providers", "CPU, CUDA"])


def test_metadata_is_there_for_scripts(toy):
    model = OnnxModel(toy)
    assert json.loads(model.metadata["labels"]) == model.labels == [" ", "a", "b", "c"]
    assert (model.sample_rate, model.frame_seconds) == (10, 0.1)


def test_confidences_are_calibrated_as_the_metadata_says(toy, tmp_path):
    (plain,) = OnnxModel(toy).transcribe([said(1)], cutting=None).transcripts
    path = write_toy(tmp_path / "calibrated.onnx", METADATA | {"calibration": '{"slope": 0.0, "offset": 0.0}'})
    (calibrated,) = OnnxModel(path).transcribe([said(1)], cutting=None).transcripts
    assert (plain.words[0].confidence > 0.6, calibrated.words[0].confidence) == (True, 0.5)


def test_quiet_ends_are_left_out_where_the_metadata_say_so_and_times_stay(toy, tmp_path):
    """A sample is a frame of 0.1 s here; 0 is the space."""
    sound = said(*[0] * 4096, *[1, 4, 2] * 100, *[0] * 4096)
    trimming = OnnxModel(write_toy(tmp_path / "trimming.onnx", METADATA | {"trim_silence": "true"}))
    given = []
    states = trimming.states
    trimming.states = lambda signals: given.extend(map(len, signals)) or states(signals)
    (found,) = trimming.transcribe([sound], cutting=None).transcripts
    (whole,) = OnnxModel(toy).transcribe([sound], cutting=None).transcripts
    assert (given[0] < 4096, found) == (True, whole)
    assert found.words[0].start == pytest.approx(409.6)


def test_a_search_finds_words_of_a_list_with_times_and_an_nbest(toy, tmp_path):
    model = OnnxModel(toy)
    (tmp_path / "words.txt").write_text("ab\nbc\n")
    search = TextSearch(model.labels, lexicon=tmp_path / "words.txt")
    sound = said(4, 1, 1, 4, 0, 2, 3)
    (greedy,) = model.transcribe([sound], cutting=None).transcripts
    (found,) = model.transcribe([sound], search=search, nbest=2, cutting=None).transcripts
    assert (greedy.text, found.text) == ("a bc", "ab bc")
    assert [(word.text, word.end) for word in found.words][-1] == ("bc", 0.7)
    assert found.hypotheses[0].text == found.text
    assert found.hypotheses[0].score > found.hypotheses[1].score
    (one,) = model.transcribe([sound], search=search, cutting=None).transcripts
    assert (one.text, one.hypotheses) == (found.text, ())


def test_hot_phrases_of_the_command_change_what_an_onnx_file_hears(tmp_path, capsys):
    toy = write_toy(tmp_path / "toy.onnx", METADATA | {"sample_rate": "1000", "frame_seconds": "0.001"})
    soundfile.write(tmp_path / "a.wav", np.array([4, 1, 1, 4, 0, 2, 3], np.float32), 1000, subtype="FLOAT")
    heard = []
    for hot in ([], ["--hotwords", "ab bc:8"], ["--hotwords", "ab:0", "--beta", "0"]):
        assert main([str(toy), str(tmp_path / "a.wav"), "--segments", "off", *hot]) == 0
        heard.append(capsys.readouterr().out.strip())
    assert [line.split("\t")[-1] for line in heard] == ["a bc", "ab bc", "a bc"]
    with pytest.raises(UsageError, match=r"hot words: .* got 'ab xyz' \(no label has x y z\); write them in"):
        main([str(toy), str(tmp_path / "a.wav"), "--hotwords", "ab xyz"])


@pytest.mark.parametrize(
    ("labels", "text"), [(["你", "好", "吗", "们"], "你好吗你好吗"), ([" ", "a", "b", "c"], "abc abc")]
)
def test_segments_of_a_stream_are_joined_as_words_of_the_labels_are(labels, text, tmp_path, monkeypatch):
    metadata = METADATA | {"sample_rate": "1000", "frame_seconds": "0.001", "labels": json.dumps(labels)}
    stream = OnnxModel(write_toy(tmp_path / "toy.onnx", metadata)).stream(cutting=Cutting(min_pause=0.3, padding=0.0))
    ids = [1, 2, 3] if " " in labels else [0, 1, 2]

    def transcribe(recording):
        return Transcript("".join(labels[number] for number in ids), (), 1.0, recording.source)

    monkeypatch.setattr(stream, "_transcribe", transcribe)
    noise = np.random.default_rng(0).normal(0, 0.1, 800).astype(np.float32)
    silence = np.zeros(1000, np.float32)
    for piece in (silence, noise, silence, noise, silence):
        stream.accept(piece)
    stream.finish()
    assert stream.text == text


def test_a_search_for_other_labels_is_refused(toy):
    with pytest.raises(UsageError, match="other labels than the model: got 5 classes, wanted 4: the labels"):
        OnnxModel(toy).transcribe([said(1)], search=TextSearch(["a", "b", "c"]), cutting=None)
