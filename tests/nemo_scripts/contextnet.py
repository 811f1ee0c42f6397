"""ContextNet as a user of NeMo 0.11 writes it: its encoder and recurrent decoder, trained with CTC and evaluated."""

import argparse
from functools import partial

import nemo
import nemo.collections.asr as nemo_asr
from nemo.collections.asr.helpers import (
    monitor_asr_train_progress,
    process_evaluation_batch,
    process_evaluation_epoch,
)
from nemo.utils.lr_policies import CosineAnnealing

parser = argparse.ArgumentParser(parents=[nemo.utils.NemoArgParser()], conflict_handler="resolve")
parser.add_argument("--kernel_size_factor", default=1.0, type=float)
parser.set_defaults(optimizer="novograd", lr=0.05, num_epochs=30, batch_size=4)
args = parser.parse_args()

labels = [" ", "a", "b", "c"]
common = {"dilation": [1], "dropout": 0.0, "se": True, "se_context_size": -1, "se_reduction_ratio": 4}
common["kernel_size_factor"] = args.kernel_size_factor
blocks = [
    {"filters": 32, "repeat": 1, "kernel": [11], "stride": [2], "residual": False, "separable": True, **common},
    {"filters": 32, "repeat": 1, "kernel": [5], "stride": [1], "residual": True, "separable": True, **common},
]

factory = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.CPU, random_seed=0)
train_layer = nemo_asr.AudioToTextDataLayer(
    manifest_filepath=args.train_dataset, labels=labels, batch_size=args.batch_size
)
(manifest,) = args.eval_datasets
# One utterance a batch: the greedy decoder also reads what the recurrent layer says behind a shorter one.
eval_layer = nemo_asr.AudioToTextDataLayer(manifest_filepath=manifest, labels=labels, batch_size=1, shuffle=False)
preprocessor = nemo_asr.AudioToMelSpectrogramPreprocessor(features=32, n_fft=512, dither=0.0, pad_to=0)
encoder = nemo_asr.ContextNetEncoder(jasper=blocks, activation="swish", feat_in=32, conv_mask=True)
decoder = nemo_asr.ContextNetDecoderForCTC(feat_in=32, num_classes=len(labels), hidden_size=32)
ctc = nemo_asr.CTCLossNM(num_classes=len(labels), zero_infinity=True)
greedy = nemo_asr.GreedyCTCDecoder()


def network(layer):
    audio, audio_length, texts, text_length = layer()
    features, length = preprocessor(input_signal=audio, length=audio_length)
    encoded, encoded_length = encoder(audio_signal=features, length=length)
    log_probs = decoder(encoder_output=encoded)
    loss = ctc(log_probs=log_probs, targets=texts, input_length=encoded_length, target_length=text_length)
    return loss, greedy(log_probs=log_probs), texts, text_length


train = network(train_layer)
rates = []


def remember(values):
    rates.append(process_evaluation_epoch(values, tag="dev"))


factory.train(
    tensors_to_optimize=[train[0]],
    callbacks=[
        nemo.core.SimpleLossLoggerCallback(
            tensors=list(train), print_func=partial(monitor_asr_train_progress, labels=labels)
        ),
        nemo.core.EvaluatorCallback(
            eval_tensors=list(network(eval_layer)),
            user_iter_callback=partial(process_evaluation_batch, labels=labels),
            user_epochs_done_callback=remember,
            eval_step=1000,
        ),
    ],
    lr_policy=CosineAnnealing(args.num_epochs * len(train_layer) // args.batch_size),
    optimizer=args.optimizer,
    optimization_params={"num_epochs": args.num_epochs, "lr": args.lr, "weight_decay": 0.0},
)
print("rates", rates[0]["Evaluation_WER_dev"], rates[-1]["Evaluation_WER_dev"], rates[-1]["Evaluation_Loss_dev"])
