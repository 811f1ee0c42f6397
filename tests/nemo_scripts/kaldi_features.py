"""A script of NeMo 0.10: CTC training on features that Kaldi computed."""

import argparse
from functools import partial

import nemo
import nemo.collections.asr as nemo_asr
from nemo.collections.asr.helpers import process_evaluation_batch, process_evaluation_epoch

parser = argparse.ArgumentParser()
parser.add_argument("--kaldi_dir", required=True)
parser.add_argument("--num_epochs", type=int, default=40)
args = parser.parse_args()

labels = [" ", "a", "b", "c"]
nf = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.CPU, random_seed=1)

data_layer = nemo_asr.KaldiFeatureDataLayer(kaldi_dir=args.kaldi_dir, labels=labels, batch_size=4, max_duration=16.7)
eval_layer = nemo_asr.KaldiFeatureDataLayer(args.kaldi_dir, labels, 4, shuffle=False)
features = data_layer.output_ports["processed_signal"].axes[1].size
encoder = nemo_asr.JasperEncoder(
    feat_in=features,
    activation="relu",
    jasper=[
        {
            "filters": 32,
            "repeat": 1,
            "kernel": [5],
            "stride": [1],
            "dilation": [1],
            "dropout": 0.0,
            "residual": False,
        }
    ],
)
decoder = nemo_asr.JasperDecoderForCTC(feat_in=32, num_classes=len(labels))
ctc_loss = nemo_asr.CTCLossNM(num_classes=len(labels))
greedy = nemo_asr.GreedyCTCDecoder()


def connect(layer):
    """Loss, predictions, texts and their lengths of one data layer."""
    signal, signal_len, transcript, transcript_len = layer()
    encoded, encoded_len = encoder(audio_signal=signal, length=signal_len)
    log_probs = decoder(encoder_output=encoded)
    loss = ctc_loss(log_probs=log_probs, targets=transcript, input_length=encoded_len, target_length=transcript_len)
    return [loss, greedy(log_probs=log_probs), transcript, transcript_len]


evaluator = nemo.core.EvaluatorCallback(
    eval_tensors=connect(eval_layer),
    user_iter_callback=partial(process_evaluation_batch, labels=labels),
    user_epochs_done_callback=partial(process_evaluation_epoch, tag="kaldi"),
    eval_step=1000,
)
nf.train(
    tensors_to_optimize=[connect(data_layer)[0]],
    callbacks=[evaluator],
    optimizer="novograd",
    optimization_params={"num_epochs": args.num_epochs, "lr": 0.02},
)
