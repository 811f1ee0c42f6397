"""Write a trained model as one ONNX file, from waveforms to log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_asr.tasks.recipe import load_recipe
from nemo_asr.transcribe.inputs import recordings_of
from nemo_asr.transcribe.model import load_model
from nemo_asr.transcribe.onnx_export import export_onnx
from nemo_asr.transcribe.onnx_model import SUFFIX
from nemo_lite.errors import UsageError
from nemo_lite.options import OneLineParser


def main(arguments: Sequence[str]) -> None:
    """Export, compare the file with the modules in torch, and say how near it is.

    Raises:
        CheckpointError: there is no model, or it is damaged.
        UsageError: the file exists, a package is missing, or the file and torch differ; then there is no file.
        DataError: a recording that cannot be read.
    """
    parser = OneLineParser(prog="nemo-lite export", description=__doc__)
    add = parser.add_argument
    add("model", metavar="MODEL", help="a run's folder, a model folder, or a folder of checkpoints")
    add("file", metavar="FILE.onnx", type=Path, help="the file to write; there must be none yet")
    config_help = "YAML file, or the name of one, where MODEL carries none: checkpoints of NeMo 0.x (*.pt)"
    add("--model_config", help=config_help)
    audio_help = (
        "recordings (files, folders, manifests) on which the file is compared with torch, beside its own signals"
    )
    add("--audio", metavar="AUDIO", nargs="+", default=[], help=audio_help)
    import_help = "Python file with modules of your own, run first; may be given several times"
    add("--import", dest="imports", metavar="FILE", action="append", default=[], help=import_help)
    options = parser.parse_args(list(arguments))
    if options.file.suffix != SUFFIX:
        raise UsageError("the name of the file has another ending", got=str(options.file), wanted=f"FILE{SUFFIX}")
    recordings = recordings_of(options.audio)
    recipe = load_recipe(options.model_config) if options.model_config else None
    model = load_model(options.model, recipe=recipe)
    reading = model.recipe.reading
    heard = [
        recording.read(reading.sample_rate, trim_silence=reading.trim_silence, int_values=reading.int_values).samples
        for recording in recordings
    ]
    comparison = export_onnx(model, options.file, heard)
    size = options.file.expanduser().stat().st_size / 2**20
    print(f"{options.file}: {model.card.name}, {model.card.progress()}, {size:.1f} MiB")
    print(f"compared with ONNX Runtime: {comparison}")
