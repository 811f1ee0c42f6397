"""Train Jasper or QuartzNet: one training DAG, any number of validation DAGs.

    python examples/asr/jasper.py --model_config examples/asr/configs/jasper10x5dr.yaml \
        --train_dataset train-a.json,train-b.json --eval_datasets dev-clean.json dev-other.json \
        --num_epochs 100 --work_dir runs

``--plan`` prints and saves the DAGs and the schedule, and exits before any audio is read.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import nemo_asr
from nemo_asr.argparse import AsrArgParser, unique_tags
from nemo_asr.helpers import monitor_asr_train_progress, process_evaluation_batch, process_evaluation_epoch

import nemo_lite as nemo
from nemo_lite.errors import UsageError, reported_to_user
from nemo_lite.utils.lr_policies import WarmupPolicy, get_lr_policy


class Model(NamedTuple):
    """The modules that all DAGs share."""

    preprocessor: nemo_asr.AudioPreprocessor
    encoder: nemo_asr.JasperEncoder
    decoder: nemo_asr.JasperDecoderForCTC
    loss: nemo_asr.CTCLossNM
    greedy: nemo_asr.GreedyCTCDecoder


class Wires(NamedTuple):
    """What a DAG is asked for."""

    loss: nemo.NmTensor
    predictions: nemo.NmTensor
    transcripts: nemo.NmTensor
    transcript_lengths: nemo.NmTensor


def connect(
    model: Model, data_layer: nemo_asr.AudioToTextDataLayer, recipe: nemo_asr.Recipe | None = None
) -> tuple[Wires, nemo.NmTensor]:
    """From audio to loss and predictions; with a recipe, through its augmentation. Also gives the log-probabilities."""
    audio, audio_len, text, text_len = data_layer()
    features, features_len = model.preprocessor(input_signal=audio, length=audio_len)
    if recipe is not None:
        multiply, augment = recipe.multiply_batch(), recipe.spec_augmentation()
        if multiply is not None:
            features, features_len, text, text_len = multiply(
                in_x=features, in_x_len=features_len, in_y=text, in_y_len=text_len
            )
        if augment is not None:
            features = augment(input_spec=features, length=features_len)
    encoded, encoded_len = model.encoder(audio_signal=features, length=features_len)
    log_probs = model.decoder(encoder_output=encoded)
    loss = model.loss(log_probs=log_probs, targets=text, input_length=encoded_len, target_length=text_len)
    predictions = model.greedy(log_probs=log_probs, log_probs_length=encoded_len)
    return Wires(loss, predictions, text, text_len), log_probs


def make_factory(args: Namespace) -> nemo.NeuralModuleFactory:
    """The factory, and with it the run's folder."""
    factory = nemo.NeuralModuleFactory(
        local_rank=args.local_rank,
        optimization_level=args.amp_opt_level,
        amp_dtype=args.amp_dtype,
        cudnn_benchmark=args.cudnn_benchmark,
        random_seed=None if args.cudnn_benchmark else args.random_seed,
        log_dir=Path(args.work_dir) / args.exp_name if args.work_dir else None,
        checkpoint_dir=args.checkpoint_dir,
        tensorboard_dir=args.tensorboard_dir,
        create_tb_writer=args.create_tb_writer or bool(args.work_dir or args.tensorboard_dir),
        files_to_copy=[args.model_config],
    )
    if args.num_gpus not in (None, factory.world_size):
        raise UsageError(
            "--num_gpus differs from what was started",
            got=f"{factory.world_size} process" + ("es" if factory.world_size > 1 else ""),
            wanted=str(args.num_gpus),
            remedy=f"start it with torchrun --nproc-per-node={args.num_gpus}, or leave the option out",
        )
    return factory


def make_lr_policy(args: Namespace, total_steps: int) -> WarmupPolicy:
    """The learning-rate policy that --lr_policy names, over the whole run."""
    return get_lr_policy(args.lr_policy, total_steps=total_steps, warmup_steps=args.warmup_steps)


def make_callbacks(
    args: Namespace, factory: nemo.NeuralModuleFactory, labels: list[str], train: Wires, evals: dict[str, Wires]
) -> list[object]:
    """Training's progress, each validation set's error rate, and checkpoints."""
    callbacks: list[object] = [
        nemo.SimpleLossLoggerCallback(
            tensors=list(train),
            print_func=partial(monitor_asr_train_progress, labels=labels),
            get_tb_values=lambda values: [("loss", values[0])],
            step_freq=args.log_freq,
        )
    ]
    callbacks += [
        nemo.EvaluatorCallback(
            eval_tensors=list(wires),
            user_iter_callback=partial(process_evaluation_batch, labels=labels),
            user_epochs_done_callback=partial(process_evaluation_epoch, tag=tag),
            eval_step=args.eval_freq,
            eval_at_start=False,
        )
        for tag, wires in evals.items()
    ]
    if factory.checkpoint_dir is not None:
        callbacks.append(
            nemo.CheckpointCallback(
                folder=factory.checkpoint_dir,
                load_from_folder=args.load_dir,
                step_freq=args.checkpoint_save_freq,
                force_load=args.load_dir is not None,
            )
        )
    return callbacks


def parse_args() -> Namespace:
    """The options of both generations; ``--help`` lists them."""
    parser = AsrArgParser(description="Train Jasper or QuartzNet")
    parser.add_argument("--log_freq", type=int, default=25, help="steps between log lines about training")
    args: Namespace = parser.parse_args()
    for option in ("model_config", "train_dataset"):
        if not getattr(args, option):
            parser.error(f"--{option} is missing")
    if not (args.work_dir or args.checkpoint_dir) and args.load_dir is None:
        nemo.logging.warning("nothing will be saved: there is neither --work_dir nor --checkpoint_dir")
    return args


def main() -> None:
    """Train, or with --plan say what would be trained."""
    args = parse_args()
    recipe = nemo_asr.load_recipe(args.model_config)
    factory = make_factory(args)
    workers = {} if args.num_workers is None else {"num_workers": args.num_workers}
    model = Model(recipe.preprocessor(), recipe.encoder(), recipe.decoder(), recipe.loss(), recipe.greedy())

    train_data = recipe.data_layer(args.train_dataset, training=True, batch_size=args.batch_size, **workers)
    train, log_probs = connect(model, train_data, recipe)
    evals: dict[str, Wires] = {}
    for tag, manifest in zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True):
        batch_size = args.eval_batch_size or args.batch_size
        evals[tag], _ = connect(model, recipe.data_layer(manifest, training=False, batch_size=batch_size, **workers))

    steps_per_epoch = factory.steps_per_epoch(train_data, args.iter_per_step)
    lr_policy = make_lr_policy(args, args.max_steps or steps_per_epoch * args.num_epochs)
    if args.plan:
        dags = {"training": nemo.Dag([train.loss]), **{tag: nemo.Dag(list(wires)) for tag, wires in evals.items()}}
        nemo_asr.show_plan(dags, steps_per_epoch, lr_policy, args.lr, args.max_steps, args.num_epochs, factory.work_dir)
        return
    nemo_asr.warn_of_infeasible(train_data, log_probs)
    factory.train(
        tensors_to_optimize=[train.loss],
        callbacks=make_callbacks(args, factory, recipe.labels, train, evals),
        lr_policy=lr_policy,
        optimizer=args.optimizer,
        optimization_params={
            "num_epochs": args.num_epochs,
            "max_steps": args.max_steps,
            "lr": args.lr,
            "weight_decay": args.weight_decay,
            **args.betas,
        },
        batches_per_step=args.iter_per_step,
    )


if __name__ == "__main__":
    with reported_to_user():
        main()
