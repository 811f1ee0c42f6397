"""Error rates of models in sherpa-onnx, whose frames begin half a hop late, by the zero samples before the audio.

    python benchmarks/framing.py runs/Digits runs/Shifted --audio test.json [--zeros 0 40 80 120]

Half a hop of zeros (80 samples at 16 kHz) puts its frames where they were in training; without, each frame has the
samples of half a hop later. A model trained with the perturbation `shift` has heard such frames. The models need the
features of sherpa-onnx: windows of 0.025 s.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import nemo_asr
from nemo_asr.export.runner_export import greedy_texts
from nemo_asr.export.sherpa_export import export_sherpa
from nemo_asr.run.transcribe.inputs import recording_of_utterance
from nemo_asr.scoring.intervals import bootstrap_interval, clusters_of, utterance_errors
from nemo_asr.trained.texts import text_layer
from nemo_lite.base.errors import UsageError


def compare(place: str, manifest: str, zeros: Sequence[int]) -> None:
    """Print the error rates of one model: in torch, and in sherpa-onnx with so many zeros before the audio."""
    model = nemo_asr.load_model(place)
    rate, layer = model.card.sample_rate, text_layer(model.recipe, manifest)
    utterances = [layer.utterance_of(row) for row in range(len(layer))]
    audio = [recording_of_utterance(utterance, layer.utterances.reader).read(rate).samples for utterance in utterances]
    parser = layer.new_parser()
    references = [parser.reference(utterance.text) for utterance in utterances]
    speakers = [None if utterance.speaker is None else str(utterance.speaker) for utterance in utterances]
    clusters = clusters_of(speakers, [utterance.audio_path for utterance in utterances])
    with tempfile.TemporaryDirectory() as temporary:
        written = export_sherpa(model, Path(temporary) / "sherpa-onnx", waveform=False)
        own = greedy_texts(model, audio)
        for number in (None, *zeros):
            texts = own if number is None else replace(written, before=number).hear(audio, rate)
            if texts is None:
                raise UsageError("sherpa-onnx is not installed", remedy="pip install sherpa-onnx")
            errors = utterance_errors(texts, references, False, clusters)
            interval = bootstrap_interval(errors)
            name = "torch" if number is None else f"sherpa-onnx, {number} zeros"
            equal = sum(text == other for text, other in zip(texts, own, strict=True))
            rates = f"WER {errors.rate:7.2%} ({interval.low:.2%} to {interval.high:.2%})"
            print(f"{place}  {name:22}  {rates}  {equal} of {len(own)} texts as in torch", flush=True)


def main() -> None:
    """Print a row for each model and number of zeros."""
    parser = argparse.ArgumentParser(description="Error rates in sherpa-onnx by the zeros before the audio")
    parser.add_argument("models", nargs="+", help="trained models with the features of sherpa-onnx")
    parser.add_argument("--audio", required=True, help="manifest with texts")
    parser.add_argument("--zeros", type=int, nargs="+", default=[0, 40, 80, 120])
    args = parser.parse_args()
    for place in args.models:
        compare(place, args.audio, args.zeros)


if __name__ == "__main__":
    main()
