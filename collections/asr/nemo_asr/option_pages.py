"""On which page of ``--help`` each option of the speech scripts stands. Options that no line names are on ``other``."""

from __future__ import annotations

from nemo_lite.utils.help_pages import Group, HelpPages

_LAUNCHING = Group(
    "devices, precision, several processes and machines",
    """
    placement amp_opt_level amp_dtype amp_backend compile compile_mode shard_weights launcher local_rank rank world_size
    init_method dist_backend dist_timeout dist_start_timeout dist_silence_timeout
    """,
)

TRAINING = HelpPages(
    most_used="""
        model_config train_dataset eval_datasets num_epochs batch_size lr warmup_steps work_dir exp_name overrides
        load_dir init_from plan
    """,
    groups={
        "data": Group(
            "manifests, batches, and how often to evaluate",
            """
            train_dataset eval_datasets batch_size eval_batch_size global_batch_size iter_per_step uneven num_workers
            worker_timeout strict_data eval_freq eval_metric
            """,
        ),
        "model": Group(
            "the configuration, modules of your own, weights to start from",
            """
            model_config overrides imports load_dir init_from allow_feature_change freeze_encoder_until plan
            precision_check
            """,
        ),
        "optimisation": Group(
            "how long, learning rate, optimizer, batch statistics",
            """
            num_epochs max_steps lr lr_policy warmup_steps hold_steps min_lr module_lr optimizer weight_decay beta1
            beta2 grad_norm_clip random_seed seeds cudnn_benchmark bn_momentum synced_bn synced_bn_groupsize
            static_graph gradient_compression
            """,
        ),
        "regularization": Group(
            "against overfitting: decay, smoothing, further losses, averages of weights",
            "decay_weights_only label_smoothing intermediate_ctc average_last ema_decay",
        ),
        "saving": Group(
            "folders and checkpoints",
            """
            work_dir exp_name checkpoint_dir checkpoint_save_freq checkpoint_epoch_freq checkpoint_minutes
            checkpoints_to_keep best_to_keep allow_world_size_change report
            """,
        ),
        "launching": _LAUNCHING,
        "logging": Group(
            "lines in the terminal, curves, trackers",
            "log_freq log_level log_style track create_tb_writer tensorboard_dir",
        ),
        "older": Group(
            "options of NeMo's first generation",
            """
            train_manifest val_manifest1 val_manifest2 val_manifest3 batch_per_step logdir save_freq
            disable_mixed_precision num_gpus
            """,
        ),
    },
)

USE = HelpPages(
    most_used="load_dir eval_datasets out compare details decoder batch_size model_config placement",
    groups={
        "data": Group(
            "manifests, batches, results",
            "eval_datasets out compare details report batch_size strict_data eval_metric",
        ),
        "decoding": Group(
            "beam search, lexicon, language model, hot words",
            "decoder beam_size lexicon lm hotwords alpha beta hotword_weight weights search_weights",
        ),
        "model": Group("what is loaded, modules of your own", "load_dir model_config overrides imports"),
        "launching": _LAUNCHING,
        "logging": Group("lines in the terminal", "log_level log_style"),
    },
)

TRANSCRIBING = HelpPages(
    most_used="format out decoder lm nbest batch_size num_workers placement",
    groups={
        "data": Group(
            "what is written, batches, modules of your own",
            "format out nbest batch_size batch_seconds num_workers worker_timeout imports",
        ),
        "decoding": Group(
            "beam search, lexicon, language model, hot words",
            "decoder beam_size lexicon lm hotwords alpha beta hotword_weight weights",
        ),
        "launching": _LAUNCHING,
    },
)
