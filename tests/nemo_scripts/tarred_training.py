"""A script of NeMo 0.10: QuartzNet-like training on tar shards, evaluated on shards and on loose files."""

import argparse
from functools import partial

import nemo
import nemo.collections.asr as nemo_asr
from nemo.collections.asr.helpers import monitor_asr_train_progress, process_evaluation_batch, process_evaluation_epoch

parser = argparse.ArgumentParser()
parser.add_argument("--tars", required=True)
parser.add_argument("--tarred_manifest", required=True)
parser.add_argument("--dev_manifest", required=True)
parser.add_argument("--num_epochs", type=int, default=30)
args = parser.parse_args()

labels = [" ", "a", "b", "c"]
nf = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.CPU, random_seed=42)

train_layer = nemo_asr.TarredAudioToTextDataLayer(
    audio_tar_filepaths=args.tars,
    manifest_filepath=args.tarred_manifest,
    labels=labels,
    batch_size=4,
    shuffle_n=8,
    num_workers=1,
)
eval_layers = {
    "tarred": nemo_asr.TarredAudioToTextDataLayer(args.tars, args.tarred_manifest, labels, 4),
    "loose": nemo_asr.AudioToTextDataLayer(args.dev_manifest, labels, 4, shuffle=False),
}
print(f"{len(train_layer)} utterances to train on")

preprocessor = nemo_asr.AudioToMelSpectrogramPreprocessor(features=32, n_fft=512, dither=0.0)
block = {"repeat": 1, "dilation": [1], "dropout": 0.0, "residual": False}
encoder = nemo_asr.JasperEncoder(
    feat_in=32,
    activation="relu",
    jasper=[
        {"filters": 32, "kernel": [11], "stride": [2], "separable": True, **block},
        {"filters": 64, "kernel": [1], "stride": [1], **block},
    ],
)
decoder = nemo_asr.JasperDecoderForCTC(feat_in=64, num_classes=len(labels))
ctc_loss = nemo_asr.CTCLossNM(num_classes=len(labels))
greedy = nemo_asr.GreedyCTCDecoder()


def connect(layer):
    """Loss, predictions, texts and their lengths of one data layer."""
    audio, audio_len, transcript, transcript_len = layer()
    features, features_len = preprocessor(input_signal=audio, length=audio_len)
    encoded, encoded_len = encoder(audio_signal=features, length=features_len)
    log_probs = decoder(encoder_output=encoded)
    loss = ctc_loss(log_probs=log_probs, targets=transcript, input_length=encoded_len, target_length=transcript_len)
    return [loss, greedy(log_probs=log_probs), transcript, transcript_len]


train_wires = connect(train_layer)
callbacks = [
    nemo.core.SimpleLossLoggerCallback(
        tensors=train_wires,
        print_func=partial(monitor_asr_train_progress, labels=labels),
        get_tb_values=lambda values: [("loss", values[0])],
        step_freq=30,
    )
]
callbacks += [
    nemo.core.EvaluatorCallback(
        eval_tensors=connect(layer),
        user_iter_callback=partial(process_evaluation_batch, labels=labels),
        user_epochs_done_callback=partial(process_evaluation_epoch, tag=tag),
        eval_step=1000,
    )
    for tag, layer in eval_layers.items()
]
nf.train(
    tensors_to_optimize=[train_wires[0]],
    callbacks=callbacks,
    optimizer="novograd",
    optimization_params={"num_epochs": args.num_epochs, "lr": 0.02, "weight_decay": 1e-3},
)
