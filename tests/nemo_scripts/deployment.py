"""What a NeMo user has to deploy a QuartzNet: two ONNX files, run one after the other; TorchScript; weights."""

import argparse
import os

import nemo
import nemo.collections.asr as nemo_asr
import numpy as np
import onnxruntime
import torch
from nemo.core import DeploymentFormat

BLOCKS = [
    {"filters": 16, "repeat": 1, "kernel": [5], "stride": [2], "dilation": [1], "dropout": 0.0, "residual": False},
    {"filters": 16, "repeat": 2, "kernel": [3], "stride": [1], "dilation": [1], "dropout": 0.1, "residual": True},
]

parser = argparse.ArgumentParser()
parser.add_argument("--work_dir", required=True)
args = parser.parse_args()


def path(name):
    return os.path.join(args.work_dir, name)


nf = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.CPU)
encoder = nemo_asr.JasperEncoder(jasper=BLOCKS, activation="relu", feat_in=64, conv_mask=True)
decoder = nemo_asr.JasperDecoderForCTC(feat_in=16, num_classes=28)

# The encoder brings its example, the decoder gets one.
nf.deployment_export(encoder, path("encoder.onnx"), DeploymentFormat.ONNX)
nf.deployment_export(
    module=decoder,
    output=path("decoder.onnx"),
    d_format=nemo.core.neural_factory.DeploymentFormat.TRTONNX,
    input_example=torch.randn(1, 16, 128),
)
features = np.random.randn(3, 64, 333).astype(np.float32)
first = onnxruntime.InferenceSession(path("encoder.onnx"))
second = onnxruntime.InferenceSession(path("decoder.onnx"))
assert [port.name for port in first.get_inputs()] == ["audio_signal"]
(encoded,) = first.run(["outputs"], {"audio_signal": features})
(log_probs,) = second.run(["output"], {"encoder_output": encoded})
print("onnx", log_probs.shape)

# The modules still work, with their lengths.
encoder.eval()
decoder.eval()
whole, lengths = encoder(audio_signal=torch.tensor(features), length=torch.tensor([333, 333, 333]))
wanted = decoder(encoder_output=whole).detach().numpy()
print("largest difference below 1e-4:", bool(np.abs(wanted - log_probs).max() < 1e-4))

nf.deployment_export(encoder, path("encoder.ts"), DeploymentFormat.TORCHSCRIPT)
print("script", tuple(torch.jit.load(path("encoder.ts"))(torch.tensor(features)).shape))
nf.deployment_export(decoder, path("decoder.pt"), DeploymentFormat.PYTORCH)
decoder.restore_from(path("decoder.pt"))
print("parameters", sorted(torch.load(path("decoder.pt"))), os.path.exists(path("decoder.pt.json")))
try:
    nf.deployment_export(decoder, path("decoder.pt"), DeploymentFormat.PYTORCH)
except FileExistsError as error:
    print("refused", "exists" in str(error))
