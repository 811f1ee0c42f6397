"""Speaker recognition as a user of NeMo 0.11 writes it: training, then embeddings of the evaluation set as files."""

import argparse
import os
import sys
from functools import partial

import nemo
import nemo.collections.asr as nemo_asr
import numpy as np
from nemo.collections.asr.helpers import (
    monitor_classification_training_progress,
    process_classification_evaluation_batch,
    process_classification_evaluation_epoch,
)
from nemo.utils.lr_policies import CosineAnnealing

parser = argparse.ArgumentParser(parents=[nemo.utils.NemoArgParser()], conflict_handler="resolve")
parser.add_argument("--emb_size", default=16, type=int)
parser.set_defaults(optimizer="novograd", lr=0.05, num_epochs=8, batch_size=4)
args = parser.parse_args()
emb_sizes = f"{args.emb_size},{args.emb_size}"

factory = nemo.core.NeuralModuleFactory(log_dir=args.work_dir, placement=nemo.core.DeviceType.CPU, random_seed=0)
train_layer = nemo_asr.AudioToSpeechLabelDataLayer(
    manifest_filepath=args.train_dataset, labels=None, batch_size=args.batch_size, time_length=0.3, shuffle=True
)
(manifest,) = args.eval_datasets
eval_layer = nemo_asr.AudioToSpeechLabelDataLayer(
    manifest_filepath=manifest, labels=train_layer.labels, batch_size=2, time_length=0.3, shuffle=False
)
block = {"filters": 16, "repeat": 1, "kernel": [11], "stride": [2], "dilation": [1], "dropout": 0.0, "residual": False}
preprocessor = nemo_asr.AudioToMelSpectrogramPreprocessor(features=32, normalize="per_feature", n_fft=512)
encoder = nemo_asr.JasperEncoder(jasper=[{**block, "seperable": True}], activation="relu", feat_in=32)
decoder = nemo_asr.JasperDecoderForSpkrClass(
    feat_in=16, num_classes=train_layer.num_classes, pool_mode="xvector", emb_sizes=emb_sizes.split(",")
)
cross_entropy = nemo_asr.CrossEntropyLossNM(weight=None)


def network(layer):
    audio, audio_length, speakers, _ = layer()
    features, length = preprocessor(input_signal=audio, length=audio_length)
    encoded, _ = encoder(audio_signal=features, length=length)
    logits, embeddings = decoder(encoder_output=encoded)
    return cross_entropy(logits=logits, labels=speakers), logits, speakers, embeddings


loss, logits, speakers, _ = network(train_layer)
*scored, embeddings = network(eval_layer)
tag = os.path.basename(manifest).split(".")[0]
progress = partial(monitor_classification_training_progress, eval_metric=[1])
factory.train(
    tensors_to_optimize=[loss],
    callbacks=[
        nemo.core.SimpleLossLoggerCallback(
            tensors=[loss, logits, speakers],
            print_func=progress,
        ),
        nemo.core.EvaluatorCallback(
            eval_tensors=scored,
            user_iter_callback=partial(process_classification_evaluation_batch, top_k=1),
            user_epochs_done_callback=partial(process_classification_evaluation_epoch, tag=tag),
            eval_step=100,
        ),
    ],
    lr_policy=CosineAnnealing(len(train_layer) // args.batch_size * args.num_epochs),
    optimizer=args.optimizer,
    optimization_params={"num_epochs": args.num_epochs, "lr": args.lr, "weight_decay": args.weight_decay},
)

found, of_speakers = factory.infer(tensors=[embeddings, scored[2]])
folder = os.path.join(args.work_dir, tag)
np.save(folder + ".npy", np.concatenate([each.numpy() for each in found]))
names = [eval_layer._dataset.id2label[int(number)] for batch in of_speakers for number in batch]
np.save(folder + "_labels.npy", np.array(names))
sys.stdout.write(f"speakers {train_layer.num_classes}\n")
