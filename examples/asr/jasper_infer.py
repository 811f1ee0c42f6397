"""Audio files to text, as a DAG to change: the wires from audio files to predictions, and one call that runs them.

python examples/asr/jasper_infer.py --load_dir runs/Jasper a.wav b.flac

Without changes `nemo-lite transcribe` does more: words with times, subtitles, long files, a bad file among good ones.
"""

from __future__ import annotations

import nemo_asr
import nemo_lite as nemo
from nemo_asr.argparse import EvalArgParser
from nemo_asr.decoding.greedy import post_process_predictions
from nemo_lite.base.options import factory_arguments
from nemo_lite.errors import reported_to_user


def main() -> None:
    """Print each file's name and what is said in it."""
    parser = EvalArgParser(description="Audio files to text")
    parser.add_argument("files", nargs="+", help="WAV, FLAC or OGG files")
    args = parser.parse_args()
    recipe = nemo_asr.load_recipe(args.model_config, args.overrides) if args.model_config else None
    factory = nemo.NeuralModuleFactory(**factory_arguments(args))
    model = nemo_asr.load_model(args.load_dir, recipe=recipe, factory=factory, overrides=args.overrides)
    reading = model.recipe.reading  # as in evaluation
    data_layer = nemo_asr.AudioFilesDataLayer(
        args.files, args.batch_size, reading.sample_rate, reading.trim_silence, reading.int_values
    )
    wires = nemo_asr.connect(model.modules, data_layer)
    values = factory.infer([wires.predictions])
    if values is not None:  # rank 0 has the values of all
        for file, text in zip(args.files, post_process_predictions(values[0], model.card.labels), strict=True):
            print(f"{file}: {text}")


if __name__ == "__main__":
    with reported_to_user():
        main()
