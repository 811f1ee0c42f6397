"""Speech commands as a user of NeMo 0.11 writes them: a small classifier over MFCCs, trained and evaluated."""

import argparse
import copy
import os
from functools import partial

import nemo
import nemo.collections.asr as nemo_asr
import nemo.utils.argparse as nm_argparse
from nemo.collections.asr.helpers import (
    monitor_classification_training_progress,
    process_classification_evaluation_batch,
    process_classification_evaluation_epoch,
)
from nemo.utils.lr_policies import PolynomialHoldDecayAnnealing
from ruamel.yaml import YAML

parser = argparse.ArgumentParser(
    parents=[nm_argparse.NemoArgParser()], description="Speech commands", conflict_handler="resolve"
)
parser.set_defaults(
    optimizer="sgd", batch_size=4, eval_batch_size=4, lr=0.1, amp_opt_level="O0", create_tb_writer=False, num_epochs=6
)
parser.add_argument("--exp_name", default="Commands", type=str)
parser.add_argument("--min_lr", default=1e-3, type=float)
parser.add_argument("--warmup_ratio", default=0.0, type=float)
parser.add_argument("--hold_ratio", default=0.0, type=float)
args = parser.parse_args()

factory = nemo.core.NeuralModuleFactory(
    local_rank=args.local_rank,
    optimization_level=args.amp_opt_level,
    log_dir=os.path.join(args.work_dir, args.exp_name),
    checkpoint_dir=os.path.join(args.work_dir, args.exp_name, "checkpoints"),
    create_tb_writer=args.create_tb_writer,
    placement=nemo.core.DeviceType.CPU,
    random_seed=0,
)
with open(args.model_config) as file:
    params = YAML(typ="safe").load(file)
labels, sample_rate = params["labels"], params["sample_rate"]

shared = copy.deepcopy(params["AudioToSpeechLabelDataLayer"])
train_params, eval_params = ({**shared, **shared.pop(which)} for which in ("train", "eval"))
for of_set in (train_params, eval_params):
    of_set.pop("train", None)
    of_set.pop("eval", None)
train_layer = nemo_asr.AudioToSpeechLabelDataLayer(
    manifest_filepath=args.train_dataset,
    labels=labels,
    sample_rate=sample_rate,
    batch_size=args.batch_size,
    num_workers=0,
    augmentor=None,
    **train_params,
)
preprocessor = nemo_asr.AudioToMFCCPreprocessor(sample_rate=sample_rate, **params["AudioToMFCCPreprocessor"])
crop = nemo_asr.CropOrPadSpectrogramAugmentation(audio_length=params["timesteps"])
masks = nemo_asr.SpectrogramAugmentation(time_masks=1, time_width=5)
encoder = nemo_asr.JasperEncoder(feat_in=params["AudioToMFCCPreprocessor"]["n_mfcc"], **params["JasperEncoder"])
decoder = nemo_asr.JasperDecoderForClassification(
    feat_in=params["JasperEncoder"]["jasper"][-1]["filters"], num_classes=len(labels)
)
cross_entropy = nemo_asr.CrossEntropyLossNM()


def network(layer, training):
    audio, audio_length, commands, _ = layer()
    features, length = preprocessor(input_signal=audio, length=audio_length)
    features, length = crop(input_signal=features, length=length)
    if training:
        features = masks(input_spec=features)
    encoded, _ = encoder(audio_signal=features, length=length)
    logits = decoder(encoder_output=encoded)
    return cross_entropy(logits=logits, labels=commands), logits, commands


loss, logits, commands = network(train_layer, training=True)
callbacks = [
    nemo.core.SimpleLossLoggerCallback(
        tensors=[loss, logits, commands],
        print_func=partial(monitor_classification_training_progress, eval_metric=None),
        get_tb_values=lambda values: [("loss", values[0])],
        tb_writer=factory.tb_writer,
    )
]
accuracies = []


def remember(values, **settings):
    found = process_classification_evaluation_epoch(values, **settings)
    accuracies.append(found)
    return found


for path in args.eval_datasets:
    eval_layer = nemo_asr.AudioToSpeechLabelDataLayer(
        manifest_filepath=path,
        labels=labels,
        sample_rate=sample_rate,
        batch_size=args.eval_batch_size,
        num_workers=0,
        **eval_params,
    )
    tag = os.path.basename(path).split(".")[0]
    callbacks.append(
        nemo.core.EvaluatorCallback(
            eval_tensors=list(network(eval_layer, training=False)),
            user_iter_callback=partial(process_classification_evaluation_batch, top_k=[1, 2]),
            user_epochs_done_callback=partial(remember, eval_metric=[1, 2], tag=tag),
            eval_step=args.eval_freq,
            tb_writer=factory.tb_writer,
        )
    )

steps = len(train_layer) // args.batch_size * args.num_epochs
factory.train(
    tensors_to_optimize=[loss],
    callbacks=callbacks,
    lr_policy=PolynomialHoldDecayAnnealing(
        steps, warmup_ratio=args.warmup_ratio, hold_ratio=args.hold_ratio, min_lr=args.min_lr, power=2.0
    ),
    optimizer=args.optimizer,
    optimization_params={
        "num_epochs": args.num_epochs,
        "lr": args.lr,
        "momentum": 0.95,
        "weight_decay": args.weight_decay,
    },
    batches_per_step=args.iter_per_step,
)
print("names", train_layer._dataset.label2id, "accuracy", accuracies[-1][f"Evaluation_Accuracy_Top@1 {tag}"])
