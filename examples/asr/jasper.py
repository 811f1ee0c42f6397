"""Train a speech recogniser, Jasper or QuartzNet say: one training DAG, any number of validation DAGs.

    python examples/asr/jasper.py --model_config examples/asr/configs/jasper10x5dr.yaml \
        --train_dataset train-a.json,train-b.json --eval_datasets dev-clean.json dev-other.json \
        --num_epochs 100 --work_dir runs

``--plan`` prints and saves the DAGs and the schedule, and exits before any audio is read. ``--precision_check 10``
compares each node with float32 and exits. ``--seeds 3`` trains three times, and prints mean and spread of the rates.
``--import my_encoder.py`` makes modules of your own known. Started by torchrun, Slurm or MPI, it trains on all their
processes.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import nemo_asr
import nemo_lite as nemo
from nemo_asr.argparse import AsrArgParser, evaluation_steps, steps_of_run
from nemo_asr.options import unique_tags
from nemo_asr.scoring.callbacks import monitor_asr_train_progress, process_evaluation_batch
from nemo_asr.scoring.report.page import try_report
from nemo_asr.text.labels import main_metric
from nemo_asr.training_options import policy_of
from nemo_lite.core import UnfreezeCallback
from nemo_lite.core.callbacks import TrackingCallback
from nemo_lite.core.callbacks.base import Callback
from nemo_lite.core.show import show_precision
from nemo_lite.errors import reported_to_user
from nemo_lite.utils.argparse import factory_arguments


def make_recipe(args: Namespace, factory: nemo.NeuralModuleFactory | None) -> nemo_asr.Recipe:
    """The configuration: the given one, or that of the model whose weights training starts from."""
    if args.model_config:
        return nemo_asr.load_recipe(args.model_config, args.overrides)
    return nemo_asr.recipe_of(args.init_from, args.overrides, factory=factory)


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
        "files_to_copy": [args.model_config] if args.model_config else [],
    }
    return nemo.NeuralModuleFactory(
        amp_backend=args.amp_backend,
        cudnn_benchmark=args.cudnn_benchmark,
        random_seed=args.random_seed,
        **factory_arguments(args),
        **({} if args.plan or args.precision_check else folders),
    )


def make_callbacks(
    args: Namespace,
    factory: nemo.NeuralModuleFactory,
    recipe: nemo_asr.Recipe,
    model: nemo_asr.Model,
    train: nemo_asr.Wires,
    evals: dict[str, nemo_asr.Wires],
    eval_data: dict[str, nemo.DataLayerNM],
    eval_step: int,
) -> list[Callback]:
    """The run's records, each validation set's error rate, checkpoints and the best model."""
    labels, card, config = recipe.labels, nemo_asr.describe(recipe), recipe.config.as_yaml()
    trackers = nemo_asr.trackers_of(args, factory)
    callbacks: list[Callback] = [TrackingCallback(trackers, args.log_freq, nemo_asr.start_record(args, factory))]
    if nemo.logging.style == "nemo":
        logger = nemo.SimpleLossLoggerCallback(
            tensors=train.scored,
            print_func=partial(monitor_asr_train_progress, labels=labels, eval_metric=args.eval_metric),
            get_tb_values=lambda values: [("loss", values[0])],
            step_freq=args.log_freq,
        )
        callbacks.append(logger)
    if folder := args.load_dir or factory.checkpoint_dir:
        factory.on_first(partial(nemo_asr.check_goes_on, folder, recipe))
        callbacks.append(
            nemo.CheckpointCallback(
                folder=factory.checkpoint_dir or args.load_dir,
                load_from_folder=args.load_dir,
                force_load=args.load_dir is not None,
                allow_world_size_change=args.allow_world_size_change,
                about=nemo_asr.about_checkpoint(card, config, recipe.tokenizer),
                record=trackers.record,
                **(saving_arguments(args, evals) if factory.checkpoint_dir else {}),
            )
        )
    # After the checkpoints: an evaluation that fails costs no weights.
    transcripts = args.run_dir and args.run_dir / "transcripts"
    callbacks += [
        nemo.EvaluatorCallback(
            eval_tensors=wires.scored,
            user_iter_callback=partial(process_evaluation_batch, labels=labels, scored=wires.scored),
            user_epochs_done_callback=nemo_asr.ScoredSet(tag, eval_data[tag], transcripts, args.eval_metric),
            eval_step=eval_step,
            name=tag,
        )
        for tag, wires in evals.items()
    ]
    if args.run_dir:
        manifests = dict(zip(evals, args.eval_datasets, strict=True))
        folder, metric = args.run_dir / "model", args.eval_metric
        settings = metric, trackers.record, recipe.tokenizer, bool(args.init_from)
        callbacks.append(nemo_asr.BestModelCallback(folder, model, card, config, manifests, *settings))
    return callbacks


def average(
    args: Namespace,
    factory: nemo.NeuralModuleFactory,
    recipe: nemo_asr.Recipe,
    model: nemo_asr.Model,
    evals: dict[str, nemo_asr.Wires],
    eval_data: dict[str, nemo.DataLayerNM],
) -> list[Callback]:
    """The callback that writes a model of averaged weights at the end, if one is asked for. It goes last."""
    if not (args.average_last or args.ema_decay):
        return []
    evaluators = [
        nemo.EvaluatorCallback(
            eval_tensors=wires.scored,
            user_iter_callback=partial(process_evaluation_batch, labels=recipe.labels, scored=wires.scored),
            user_epochs_done_callback=nemo_asr.ScoredSet(tag, eval_data[tag], None, args.eval_metric),
            name=f"averaged_{tag}",
        )
        for tag, wires in evals.items()
    ]
    manifests = {f"averaged_{tag}": files for tag, files in zip(evals, args.eval_datasets, strict=True)}
    card, config = nemo_asr.describe(recipe), recipe.config.as_yaml()
    folder, settings = args.run_dir / "averaged", (args.eval_metric, None, recipe.tokenizer)
    writer = nemo_asr.BestModelCallback(folder, model, card, config, manifests, *settings)
    checkpoints = factory.checkpoint_dir or args.load_dir or ""
    return [nemo_asr.AveragedModelCallback(writer, evaluators, args.average_last or 0, checkpoints)]


def take_weights(
    args: Namespace, factory: nemo.NeuralModuleFactory, recipe: nemo_asr.Recipe, model: nemo_asr.Model
) -> None:
    """Start from the weights of --init_from, unless the run goes on from its own checkpoints."""
    own = args.checkpoint_dir or (args.run_dir and args.run_dir / "checkpoints")
    factory.on_first(lambda: nemo_asr.init_from(args.init_from, model, recipe, own, args.allow_feature_change))


def fine_tune(
    args: Namespace, factory: nemo.NeuralModuleFactory, recipe: nemo_asr.Recipe, model: nemo_asr.Model
) -> list[Callback]:
    """Take over a trained model's weights and freeze the encoder, as far as asked for; the callbacks for it."""
    if args.init_from:
        take_weights(args, factory, recipe, model)
    if not args.freeze_encoder_until:
        return []
    encoder: Any = model.encoder  # of any class that is registered; all that run on torch can be frozen
    encoder.freeze()
    return [UnfreezeCallback([encoder], start_step=args.freeze_encoder_until)]


def optimization_params(args: Namespace) -> dict[str, Any]:
    """How long to train, and the options of the optimizer."""
    return {
        "num_epochs": args.num_epochs,
        "max_steps": args.max_steps,
        "lr": args.lr,
        "module_lr": args.module_lr,
        "grad_norm_clip": args.grad_norm_clip,
        "weight_decay": args.weight_decay,
        "decay_weights_only": args.decay_weights_only,
        "ema_decay": args.ema_decay,
        "betas": args.betas,
    }


def saving_arguments(args: Namespace, evals: dict[str, nemo_asr.Wires]) -> dict[str, Any]:
    """When to save, and how much of it stays."""
    return {
        "step_freq": args.checkpoint_save_freq,
        "epoch_freq": args.checkpoint_epoch_freq or None,
        "minutes": args.checkpoint_minutes or None,
        "checkpoints_to_keep": args.checkpoints_to_keep,
        "best_of": next(iter(evals), ""),
        "best_metric": args.eval_metric,
        "best_to_keep": args.best_to_keep,
        "epoch_names": False,
    }


def main() -> None:
    """Train, or with --plan say what would be trained."""
    args = AsrArgParser(description="Train a speech recogniser").parse_args()
    if args.seeds > 1:  # each in a process of its own, which comes here again
        nemo_asr.train_seeds(args)
        return

    # Input is checked before the factory makes the run's folder: a start that fails leaves nothing behind. But what the
    # first process alone needs to have, the configuration of --init_from, it can give to the others only by a factory.
    early = make_factory(args) if args.num_processes > 1 and not args.model_config else None
    recipe = make_recipe(args, early)
    args.eval_metric = args.eval_metric or main_metric(recipe.labels)
    train_data = make_data(args, recipe, args.train_dataset, training=True)
    eval_data = {
        tag: make_data(args, recipe, manifest, training=False)
        for tag, manifest in zip(unique_tags(args.eval_datasets), args.eval_datasets, strict=True)
    }

    factory = early or make_factory(args)
    model = recipe.model(with_weights=not args.plan, intermediate_ctc=args.intermediate_ctc)
    nemo_asr.set_batch_norm_momentum(model.modules.values(), args.bn_momentum)
    train = nemo_asr.connect(model, train_data, training=True)
    loss, *_ = train.scored
    nemo_asr.leave_out_infeasible(train_data, train.frames, model.loss)
    evals = {tag: nemo_asr.connect(model, data_layer) for tag, data_layer in eval_data.items()}
    for tag, wires in evals.items():
        nemo_asr.warn_of_infeasible(eval_data[tag], wires.frames, model.loss)
    factory.on_first(lambda: nemo_asr.warn_of_leaks(train_data, eval_data))

    steps_per_epoch = factory.steps_per_epoch(train_data, args.iter_per_step, args.uneven)
    total_steps = steps_of_run(args, steps_per_epoch)
    lr_policy = policy_of(args, total_steps)
    dags = {"training": nemo.Dag([loss]), **{f"evaluation_{tag}": nemo.Dag(w.scored) for tag, w in evals.items()}}
    if args.plan:
        if args.init_from:  # a plan refuses what training would refuse
            take_weights(args, factory, recipe, model)
        factory.on_first(
            lambda: nemo_asr.show_plan(dags, lr_policy, args.lr, steps_per_epoch, total_steps, args.run_dir)
        )
        return
    if args.precision_check:
        show_precision(factory.precision_check([loss], args.precision_check, args.load_dir), args.run_dir)
        return
    eval_step = evaluation_steps(args, steps_per_epoch)
    callbacks = make_callbacks(args, factory, recipe, model, train, evals, eval_data, eval_step)
    factory.train(
        tensors_to_optimize=[loss],
        callbacks=[
            *callbacks,
            *fine_tune(args, factory, recipe, model),
            *average(args, factory, recipe, model, evals, eval_data),
        ],
        lr_policy=lr_policy,
        optimizer=args.optimizer,
        optimization_params=optimization_params(args),
        batches_per_step=args.iter_per_step,
        synced_batchnorm=args.synced_bn,
        synced_batchnorm_groupsize=args.synced_bn_groupsize,
        uneven=args.uneven,
        static_graph=args.static_graph,
        gradient_compression=args.gradient_compression,
    )
    if args.run_dir and args.report:
        factory.on_first(lambda: try_report(args.run_dir, dags=dags))


if __name__ == "__main__":
    with reported_to_user():
        main()
