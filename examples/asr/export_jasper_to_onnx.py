"""Encoder and decoder of a Jasper or QuartzNet model as two ONNX files, from features on, as NeMo 0.x writes them.

    python examples/asr/export_jasper_to_onnx.py --config quartznet15x5.yaml \\
        --nn_encoder JasperEncoder-STEP-100.pt --nn_decoder JasperDecoderForCTC-STEP-100.pt \\
        --onnx_encoder encoder.onnx --onnx_decoder decoder.onnx

``nemo-lite export`` writes one file instead, which takes waveforms.
"""

from __future__ import annotations

from argparse import ArgumentParser

import torch

import nemo_asr
import nemo_lite as nemo
from nemo_lite.base.options import OneLineParser
from nemo_lite.core import DeploymentFormat
from nemo_lite.errors import reported_to_user

FRAMES = 256, 128  # of the examples of encoder and decoder; the files take any number


def make_parser() -> ArgumentParser:
    """The options of NeMo's script of this name."""
    parser = OneLineParser(description="Encoder and decoder as ONNX files")
    add = parser.add_argument
    add("--config", required=True, help="YAML file of the model, of NeMo 0.9 to 0.11, or the name of one of ours")
    add("--nn_encoder", required=True, help="weights of the encoder")
    add("--nn_decoder", required=True, help="weights of the decoder")
    add("--onnx_encoder", required=True, help="file to write")
    add("--onnx_decoder", required=True, help="file to write")
    add("--decoder_type", choices=("ctc", "classification"), default="ctc", help="kind of the decoder")
    old_help = "the weights have the names of NeMo 0.8; they are known in any case"
    add("--pre-v09-model", dest="pre_v09_model", action="store_true", help=old_help)
    return parser


def main() -> None:
    """Restore both modules and export them."""
    args = make_parser().parse_args()
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
    recipe = nemo_asr.load_recipe(args.config)
    encoder = recipe.encoder()
    features = encoder.input_ports["audio_signal"].axes[1].size
    channels = encoder.output_ports["outputs"].axes[1].size
    if args.decoder_type == "ctc":
        decoder = recipe.decoder()
    else:
        decoder = nemo_asr.JasperDecoderForClassification(feat_in=channels, num_classes=len(recipe.labels))
    encoder.restore_from(args.nn_encoder)
    decoder.restore_from(args.nn_decoder)
    examples = torch.randn(1, features, FRAMES[0]), torch.randn(1, channels, FRAMES[1])
    factory.deployment_export(encoder, args.onnx_encoder, DeploymentFormat.ONNX, input_example=examples[0])
    factory.deployment_export(decoder, args.onnx_decoder, DeploymentFormat.ONNX, input_example=examples[1])


if __name__ == "__main__":
    with reported_to_user():
        main()
