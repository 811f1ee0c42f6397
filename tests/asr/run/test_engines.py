"""Engines: settings, rows in batches, how an engine is opened by its path, and options that it has no use for."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest
import soundfile
from toys.onnx_toy import METADATA, write_toy
from toys.tone_model import train_tones

from nemo_asr.run import engines
from nemo_asr.run.engines import TranscriptionSettings, open_engines
from nemo_asr.run.onnx.onnx_model import OnnxModel
from nemo_asr.trained.model import ModelEngine, TrainedModel, describe
from nemo_lite import DeviceType
from nemo_lite.base.errors import UsageError


def args_of(**options):
    """The options of ``nemo-lite transcribe`` that say where a model runs."""
    default = {"placement": DeviceType.CPU, "amp_opt_level": None, "amp_dtype": None, "imports": None}
    return Namespace(**{**default, "providers": [], "threads": None, **options})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"batch_seconds": 0.0}, "batch_seconds is 0.0, wanted float above 0, up to 1000000"),
        ({"batch_seconds": float("inf")}, "batch_seconds is Infinity, wanted float above 0, up to 1000000"),
        ({"batch_size": 0}, "batch_size is 0, wanted int from 1 to 1000000 or -1"),
        ({"batch_size": "4"}, 'batch_size is "4", wanted int'),
        ({"num_workers": -1}, "num_workers is -1, wanted int from 0 to 1024"),
    ],
)
def test_settings_out_of_range_are_refused(settings, problem):
    with pytest.raises(UsageError, match=problem):
        TranscriptionSettings(**settings)


@pytest.fixture(scope="module")
def tones(tmp_path_factory):
    return train_tones(tmp_path_factory.mktemp("tones"))


@pytest.mark.slow
def test_an_engine_is_opened_by_the_kind_of_its_path(tones, tmp_path):
    recipe, model = tones
    TrainedModel("here", recipe, model, describe(recipe)).save(tmp_path / "folder")
    file = write_toy(tmp_path / "toy.onnx")
    in_torch, in_onnx = open_engines([str(tmp_path / "folder"), str(file)], args_of(threads=1))
    assert isinstance(in_torch, ModelEngine)
    assert isinstance(in_onnx, OnnxModel)


@pytest.mark.slow
def test_options_without_effect_are_refused_where_no_model_knows_them(tmp_path):
    file = str(write_toy(tmp_path / "toy.onnx"))
    told = r"toy\.onnx: an ONNX file runs as it is, in one process on the CPU: got --placement; leave it out, or give a"
    with pytest.raises(UsageError, match=told):
        open_engines([file], args_of(placement=DeviceType.GPU))
    with pytest.raises(UsageError, match=r"only an ONNX file knows these options: got --threads; leave them out"):
        open_engines(["folder"], args_of(threads=2))


@pytest.mark.slow
def test_a_file_has_the_head_and_the_language_with_which_it_was_exported(tmp_path):
    file = str(write_toy(tmp_path / "toy.onnx"))
    open_engines([file], args_of(head="ctc"))
    told = (
        r"toy\.onnx: a file has the head with which it was exported: got transducer, wanted ctc; export it with --head"
    )
    with pytest.raises(UsageError, match=told):
        open_engines([file], args_of(head="transducer"))
    told = r"toy\.onnx: a file has the language with which it was exported: got de-DE; export it with --language"
    with pytest.raises(UsageError, match=told):
        open_engines([file], args_of(prompt_language="de-DE"))
    told = r"a file has the context of attention with which it was exported: got \[4, 1\]; export it with --att_context"
    with pytest.raises(UsageError, match=told):
        open_engines([file], args_of(att_context_size=[4, 1]))
    for told, option in (("--task", {"prompt_task": "translate"}), ("--timestamps", {"timestamps": True})):
        with pytest.raises(UsageError, match=rf"toy\.onnx: a file has no tasks and finds no times: got {told}; lea"):
            open_engines([file], args_of(**option))


SCRIPT = """
import sys
sys.argv[0] = "nemo-lite"
sys.modules["torch"] = None  # importing it fails
from nemo_lite.base.dispatch import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--stream"], ["--stream", "segments"]])
def test_a_model_that_needs_torch_says_so_in_a_line_where_there_is_none(tmp_path, options):
    soundfile.write(tmp_path / "a.wav", np.zeros(1600, np.float32), 16000)
    words = ["transcribe", "folder", str(tmp_path / "a.wav"), *options]
    ended = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True)
    assert ended.returncode == 2
    problem = "folder: this model needs PyTorch, which is not installed; pip install torch, or give a file of nemo-lite"
    assert problem in ended.stderr
    assert "Traceback" not in ended.stderr


def test_another_package_that_is_missing_is_no_missing_torch(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'soxr'", name="soxr")

    monkeypatch.setattr(engines, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="soxr"):
        open_engines(["folder"], args_of())


def test_a_file_says_what_it_is(tmp_path):
    assert METADATA["format"] == OnnxModel.format
    with pytest.raises(UsageError, match=r"this file takes whole recordings; stream in segments"):
        OnnxModel(write_toy(tmp_path / "toy.onnx")).frame_model()
