"""Train a classifier of recordings: which command, speech or background, which speaker.

    python examples/asr/classify.py --model_config examples/asr/configs/speech_commands.yaml \
        --train_dataset train.json --eval_datasets dev.json --num_epochs 30 --work_dir runs

A line of a manifest names the class under ``command``, ``target`` or ``label``. Where the configuration has no
``labels``, the classes are those of the training set.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import nemo_asr
import nemo_lite as nemo
from nemo_asr.argparse import AsrArgParser, evaluation_steps, steps_of_run
from nemo_asr.options import unique_tags
from nemo_asr.scoring.callbacks import monitor_classification_training_progress, process_classification_evaluation_batch
from nemo_asr.tracking import CLASS_METRIC, ScoredClasses
from nemo_asr.training_options import OF_TRANSCRIPTION, policy_of
from nemo_lite.core.callbacks import TrackingCallback
from nemo_lite.core.callbacks.base import Callback
from nemo_lite.errors import reported_to_user
from nemo_lite.utils.argparse import factory_arguments


def make_data(args: Namespace, recipe: nemo_asr.Recipe, manifest: str, training: bool) -> nemo.DataLayerNM:
    """A data layer with the configuration's arguments, and those that the command line overrides."""
    batch_size = args.batch_size if training else args.eval_batch_size or args.batch_size
    given: dict[str, Any] = {} if args.num_workers is None else {"num_workers": args.num_workers}
    if args.strict_data:
        given["strict_data"] = True
    layer = recipe.data_layer(manifest, training=training, batch_size=batch_size, **given)
    layer.worker_timeout = args.worker_timeout
    return layer


def make_factory(args: Namespace) -> nemo.NeuralModuleFactory:
    """The factory, and with it the run's folder; a plan needs none."""
    folders = {
        "log_dir": args.run_dir,
        "checkpoint_dir": args.checkpoint_dir,
        "tensorboard_dir": args.tensorboard_dir,
        "create_tb_writer": args.create_tb_writer,
        "files_to_copy": [args.model_config],
    }
    return nemo.NeuralModuleFactory(
        amp_backend=args.amp_backend,
        cudnn_benchmark=args.cudnn_benchmark,
        random_seed=args.random_seed,
        **factory_arguments(args),
        **({} if args.plan else folders),
    )


def make_callbacks(
    args: Namespace,
    factory: nemo.NeuralModuleFactory,
    recipe: nemo_asr.Recipe,
    model: nemo_asr.Classifier,
    train: nemo_asr.ClassWires,
    evals: dict[str, nemo_asr.ClassWires],
    eval_step: int,
) -> list[Callback]:
    """The run's records, each evaluation set's error rate, checkpoints and the best model."""
    card, config = nemo_asr.describe(recipe), recipe.config.as_yaml()
    trackers = nemo_asr.trackers_of(args, factory)
    callbacks: list[Callback] = [TrackingCallback(trackers, args.log_freq, nemo_asr.start_record(args, factory))]
    if nemo.logging.style == "nemo":
        logger = nemo.SimpleLossLoggerCallback(
            tensors=train.scored,
            print_func=monitor_classification_training_progress,
            get_tb_values=lambda values: [("loss", values[0])],
            step_freq=args.log_freq,
        )
        callbacks.append(logger)
    if folder := args.load_dir or factory.checkpoint_dir:
        factory.on_first(partial(nemo_asr.check_goes_on, folder, recipe))
        saving: dict[str, Any] = {
            "step_freq": args.checkpoint_save_freq,
            "epoch_freq": args.checkpoint_epoch_freq or None,
            "minutes": args.checkpoint_minutes or None,
            "checkpoints_to_keep": args.checkpoints_to_keep,
            "best_of": next(iter(evals), ""),
            "best_metric": CLASS_METRIC,
            "best_to_keep": args.best_to_keep,
            "epoch_names": False,
        }
        callbacks.append(
            nemo.CheckpointCallback(
                folder=factory.checkpoint_dir or args.load_dir,
                load_from_folder=args.load_dir,
                force_load=args.load_dir is not None,
                allow_world_size_change=args.allow_world_size_change,
                about=nemo_asr.about_checkpoint(card, config),
                record=trackers.record,
                **(saving if factory.checkpoint_dir else {}),
            )
        )
    callbacks += [
        nemo.EvaluatorCallback(
            eval_tensors=wires.scored,
            user_iter_callback=process_classification_evaluation_batch,
            user_epochs_done_callback=ScoredClasses(tag),
            eval_step=eval_step,
            name=tag,
        )
        for tag, wires in evals.items()
    ]
    if args.run_dir:
        manifests = dict(zip(evals, args.eval_datasets, strict=True))
        folder = args.run_dir / "model"
        callbacks.append(
            nemo_asr.BestModelCallback(folder, model, card, config, manifests, CLASS_METRIC, trackers.record)
        )
    return callbacks


def main() -> None:
    """Train, or with --plan say what would be trained."""
    parser = AsrArgParser(description="Train a classifier of recordings")
    args = parser.parse_args()
    for option in ("init_from", "freeze_encoder_until", "eval_metric", "precision_check", *OF_TRANSCRIPTION):
        if getattr(args, option):
            parser.error(f"--{option} is for models that transcribe; leave it out")
    if args.seeds > 1:  # each in a process of its own, which comes here again
        nemo_asr.train_seeds(args)
        return
    args.eval_metric, args.report = CLASS_METRIC, False  # no page about classes

    # Input is checked before the factory makes the run's folder: a start that fails leaves nothing behind.
    recipe = nemo_asr.load_class_recipe(args.model_config, args.train_dataset, args.overrides)
    train_data = make_data(args, recipe, args.train_dataset, training=True)
    eval_data = {
        tag: make_data(args, recipe, manifest, training=False)
        for tag, manifest in zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True)
    }

    factory = make_factory(args)
    model = recipe.classifier(with_weights=not args.plan)
    nemo_asr.set_batch_norm_momentum(model.modules.values(), args.bn_momentum)
    train = nemo_asr.connect_classifier(model, train_data, training=True)
    evals = {tag: nemo_asr.connect_classifier(model, data_layer) for tag, data_layer in eval_data.items()}

    steps_per_epoch = factory.steps_per_epoch(train_data, args.iter_per_step, args.uneven)
    total_steps = steps_of_run(args, steps_per_epoch)
    lr_policy = policy_of(args, total_steps)
    if args.plan:
        dags = {"training": nemo.Dag([train.loss])}
        dags |= {f"evaluation_{tag}": nemo.Dag(wires.scored) for tag, wires in evals.items()}
        factory.on_first(
            lambda: nemo_asr.show_plan(dags, lr_policy, args.lr, steps_per_epoch, total_steps, args.run_dir)
        )
        return
    factory.train(
        tensors_to_optimize=[train.loss],
        callbacks=make_callbacks(args, factory, recipe, model, train, evals, evaluation_steps(args, steps_per_epoch)),
        lr_policy=lr_policy,
        optimizer=args.optimizer,
        optimization_params={
            "num_epochs": args.num_epochs,
            "max_steps": args.max_steps,
            "lr": args.lr,
            "module_lr": args.module_lr,
            "grad_norm_clip": args.grad_norm_clip,
            "weight_decay": args.weight_decay,
            "decay_weights_only": args.decay_weights_only,
            "betas": args.betas,
        },
        batches_per_step=args.iter_per_step,
        synced_batchnorm=args.synced_bn,
        synced_batchnorm_groupsize=args.synced_bn_groupsize,
        uneven=args.uneven,
        static_graph=args.static_graph,
        gradient_compression=args.gradient_compression,
    )


if __name__ == "__main__":
    with reported_to_user():
        main()
