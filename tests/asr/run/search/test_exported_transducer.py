"""A transducer in exported files: text and times of the model in torch, and files that do not belong together."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from toys.random_models import CONFORMER, RATE, noise
from toys.random_transducers import (
    BATCH_NORM,
    BIG_BLANKS,
    LAYER_NORM,
    LSTM,
    STATELESS,
    TDT,
    config_of,
    random_transducer,
)

from nemo_asr.commands.cli.models import main
from nemo_asr.export.onnx_export import export_onnx
from nemo_asr.export.stream_export import export_stream
from nemo_asr.run.cli.transcribe import main as transcribe
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.run.onnx.onnx_stream import OnnxStreamedModel
from nemo_asr.run.options import SearchOptions
from nemo_asr.run.search.exported_transducer import ExportedNetworks
from nemo_asr.run.search.parts import Parts
from nemo_asr.run.search.transducer import GreedyTransducer
from nemo_asr.tasks.family import search_of
from nemo_lite.base.errors import CheckpointError, FileInTheWayError

KINDS = {"RNN-T": ("", LSTM), "TDT": (TDT, LSTM), "big blanks": (BIG_BLANKS, STATELESS)}
KINDS |= {"batch norm": ("", BATCH_NORM), "layer norm": (TDT, LAYER_NORM)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_transducer(tmp_path_factory.mktemp("tdt"), config_of(TDT))


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """Do not write there."""
    path = tmp_path_factory.mktemp("exported") / "m.onnx"
    said = str(export_onnx(model, path))
    assert "largest difference of values" in said
    assert said.endswith("11 of 11 texts equal")
    return path


def words_of(transcript):
    return [(word.text, word.start, word.end, round(word.confidence, 3)) for word in transcript.words]


def check_equal(model, path):
    samples = [noise(0.3 + 0.0137 * number, number) for number in range(50)]
    wanted = model.transcribe(samples, RATE, cutting=None)
    got = OnnxModel(path, threads=1).transcribe(samples, audio_rate=RATE, cutting=None).transcripts
    assert [words_of(each) for each in got] == [words_of(each) for each in wanted]
    assert sum(bool(each.text) for each in got) > 40


@pytest.mark.slow
def test_an_exported_transducer_gives_text_times_and_confidences_of_torch(model, exported):
    names = ["m.joint.onnx", "m.onnx", "m.prediction.onnx"]
    assert sorted(path.name for path in exported.parent.iterdir()) == names
    check_equal(model, exported)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["RNN-T", "big blanks", "batch norm", "layer norm", "hybrid"])
def test_so_do_other_kinds_and_a_hybrid(tmp_path, kind):
    joint, prediction = KINDS.get(kind, KINDS["TDT"])
    text = config_of(joint, prediction, family="hybrid" if kind == "hybrid" else "transducer")
    model = random_transducer(tmp_path, text)
    export_onnx(model, tmp_path / "m.onnx")
    assert OnnxModel(tmp_path / "m.onnx").family == "transducer"
    check_equal(model, tmp_path / "m.onnx")


@pytest.mark.long
@pytest.mark.slow
def test_a_hybrid_that_searches_its_ctc_head_is_exported_as_one_file_of_log_probabilities(tmp_path):
    model = random_transducer(tmp_path, config_of(family="hybrid") + "GreedyCTCDecoder: {}\n")
    export_onnx(model, tmp_path / "m.onnx")
    assert OnnxModel(tmp_path / "m.onnx").family == "ctc"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "model.yaml"]


@pytest.mark.long
@pytest.mark.slow
def test_a_stream_in_a_file_has_the_text_of_the_whole_recording(tmp_path, capsys):
    networks = "".join(f"{line}\n" for line in config_of(TDT).splitlines() if line.startswith("RNNT"))
    model = random_transducer(tmp_path, f"family: transducer\n{CONFORMER}{networks}")
    assert "largest difference of values" in str(export_stream(model, tmp_path / "s.onnx"))
    written, samples = OnnxStreamedModel(tmp_path / "s.onnx"), noise(3)
    frames = written.frames()
    parts = [
        frames(samples[first : first + 7001], first + 7001 >= len(samples)) for first in range(0, len(samples), 7001)
    ]
    states = {"frames": np.concatenate([part["frames"] for part in parts])}
    (wanted,) = model.transcribe([samples], RATE, cutting=None)
    best = written.search.recognise(states).best
    assert " ".join("".join(written.labels[number] for number in best.ids).split()) == wanted.text
    assert len(wanted.text) > 4
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    transcribe([str(tmp_path / "s.onnx"), str(tmp_path / "a.wav"), "--stream"])
    assert wanted.text in capsys.readouterr().out


@pytest.mark.slow
def test_it_is_transcribed_where_torch_cannot_be_imported(model, exported, tmp_path):
    samples = noise(1.3)
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    code = "import sys; sys.modules['torch'] = None; from nemo_asr.run.cli.transcribe import main; main(sys.argv[1:])"
    words = [str(exported), str(tmp_path / "a.wav"), "--format", "json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wanted,) = model.transcribe([samples], RATE)
    assert wanted.text in done.stdout


@pytest.mark.slow
def test_models_show_tells_the_family_and_the_files(exported, capsys):
    main(["show", str(exported)])
    said = capsys.readouterr().out
    assert f", {exported}\n" in said
    assert "family       transducer; gives frames, num_frames\n" in said
    assert "prediction   m.prediction.onnx  0." in said
    assert "joint        m.joint.onnx  0." in said
    main(["show", str(exported), "--json"])
    assert json.loads(capsys.readouterr().out)["family"] == "transducer"


@pytest.mark.slow
def test_a_part_that_is_missing_or_another_one_is_named(exported, tmp_path):
    for path in exported.parent.iterdir():
        shutil.copy(path, tmp_path)
    part = tmp_path / "m.joint.onnx"
    part.rename(tmp_path / "kept")
    with pytest.raises(
        CheckpointError, match=r"m\.joint\.onnx: the joint of m\.onnx is missing; copy all files of the model into one"
    ):
        OnnxModel(tmp_path / "m.onnx")
    shutil.copy(tmp_path / "m.prediction.onnx", part)
    told = r"m\.joint\.onnx: this is not the joint of m\.onnx: got \d+ bytes, SHA-256 .*, wanted .*; export the"
    with pytest.raises(CheckpointError, match=told):
        OnnxModel(tmp_path / "m.onnx")


@pytest.mark.slow
def test_a_part_in_the_way_leaves_everything_as_it_was(model, tmp_path):
    (tmp_path / "m.joint.onnx").write_text("mine")
    with pytest.raises(FileInTheWayError, match=r"m\.joint\.onnx: the file exists already"):
        export_onnx(model, tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.joint.onnx"]


@pytest.mark.slow
def test_its_search_with_a_beam_and_its_alignment_are_those_of_torch(model, exported):
    options, samples, written = SearchOptions(beam_size=4, hotwords=("ab",)), noise(2), OnnxModel(exported, threads=1)
    (wanted,) = model.transcribe(
        [samples], RATE, cutting=None, decoder=search_of(model.modules, model.card.labels, options), nbest=2
    )
    (got,) = written.transcribe(
        [samples], audio_rate=RATE, cutting=None, search=written.new_search(options), nbest=2
    ).transcripts
    assert words_of(got) == words_of(wanted)
    assert [each.text for each in got.hypotheses] == [each.text for each in wanted.hypotheses]
    aligned, aligned_in_torch = (
        each([samples], ["ab b"], audio_rate=RATE, cutting=None).or_error() for each in (written.align, model.aligned)
    )
    assert words_of(aligned[0]) == words_of(aligned_in_torch[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "got"),
    [
        ({"max_symbols": 0}, "Expected `int` >= 1"),
        ({"durations": [-1]}, "Expected `int` >= 0"),
        ({"memory": [{"shape": []}]}, "length >= 1"),
        (None, "missing required field"),
    ],
)
def test_settings_that_are_none_of_a_transducer_are_refused(exported, change, got):
    model = OnnxModel(exported)
    settings = {} if change is None else {**model.parts.settings, **change}
    model.parts = model.parts._replace(settings=settings)
    with pytest.raises(CheckpointError, match=r"m\.onnx: the file does not say what a transducer has: got ") as caught:
        model.new_search()
    assert got in str(caught.value)
    model.parts = Parts(settings=OnnxModel(exported).parts.settings)
    with pytest.raises(CheckpointError, match="what a transducer has: got 'prediction'; export the model again"):
        model.new_search()


def test_networks_begin_with_the_memory_and_the_label_that_the_settings_say():
    seen = []

    def prediction(labels, *memory):
        seen.append((labels.tolist(), [(part.dtype.name, part.shape, part.flat[0]) for part in memory]))
        return [np.zeros((len(labels), 3), np.float32), *memory]

    memory = [{"shape": [2, 5]}, {"shape": [1], "fill": 4.0, "is_labels": True}]
    settings = {"durations": [], "big_blank_durations": [2], "max_symbols": 2, "memory": memory}
    networks = ExportedNetworks(
        Parts({"prediction": prediction, "joint": lambda frames, states: [frames + states]}, settings), 4
    )
    assert networks.blank == 5
    beginning = networks.beginning(2)
    assert seen == [([4, 4], [("float32", (2, 2, 5), 0.0), ("int64", (2, 1), 4)])]
    assert [part.shape for part in beginning] == [(2, 3), (2, 2, 5), (2, 1)]
    (found,) = GreedyTransducer(networks, 2).decode([np.eye(3, dtype=np.float32)])
    assert found.labels.ids == [0, 0, 1, 1, 2, 2]
