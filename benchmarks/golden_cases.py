"""What golden.py runs: the corpus, the configurations, the command lines and the user mistakes. Data only.

Every command runs in a folder of its own beside ``corpus``, so all paths are relative. Words that a user would put
between quotes are not needed: the lines are split at white space.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Launcher = Literal["", "ranks", "torchrun"]


class Case(NamedTuple):
    """One call of a script.

    Attributes:
        name: its folder, and its name in the record.
        script: the script, or ``api`` for golden_api.py.
        words: the command line.
        launcher: "" is one process; "ranks" two that get torchrun's environment, "torchrun" two that torchrun starts.
    """

    name: str
    script: str
    words: str
    launcher: Launcher = ""


FREQUENCIES = {"a": 500, "b": 1200, "c": 2600}  # Hz
TEXTS = ("cab", "abba", "bc", "aabc", "caca", "bab", "ccb", "acb", "bbca", "cb", "abc", "cabb")

CONFIG = """model: Tones
sample_rate: 16000
AudioToTextDataLayer:
  train: {shuffle: true}
  eval: {shuffle: false}
AudioToMelSpectrogramPreprocessor: {features: 32, n_fft: 512, dither: 1e-5}
JasperEncoder:
  activation: relu
  conv_mask: true
  jasper:
    - {filters: 32, repeat: 1, kernel: [11], stride: [2], dilation: [1], dropout: 0.0, residual: false, separable: true}
    - {filters: 64, repeat: 1, kernel: [1], stride: [1], dilation: [1], dropout: 0.0, residual: false}
labels: [" ", "a", "b", "c"]
"""
_SPEC_AUGMENT = "SpectrogramAugmentation: {freq_masks: 1, freq_width: 4, time_masks: 1, time_width: 5, rect_masks: 1}\n"
_PERTURBED = """{shuffle: true, bucketing: true, trim_silence: true, augmentor: {speed: {prob: 0.7, sr: 16000},
    white_noise: {prob: 0.5}, gain: {prob: 0.5}}}"""
_DEEPER = """jasper:
    - {filters: 32, repeat: 2, kernel: [5], stride: [1], dilation: [2], dropout: 0.2, residual: true, groups: 2}"""

# Configuration -> what is replaced in CONFIG.
CONFIGS: dict[str, tuple[tuple[str, str], ...]] = {
    "tones": (),
    "augmented": (("{shuffle: true}", _PERTURBED), ("JasperEncoder:", f"{_SPEC_AUGMENT}JasperEncoder:")),
    "deeper": (("jasper:", _DEEPER), ("{shuffle: true}", "{shuffle: true, num_workers: 1}")),
    "multiplied": (("JasperEncoder:", "MultiplyBatch: {mult_batch: 2}\nJasperEncoder:"),),
    "key_typo": (("activation", "activaton"),),
    "block_typo": (("residual: false}", "residul: false}"),),
    "section_typo": (("JasperEncoder", "JasperEncodr"),),
    "label_twice": (('"b", "c"', '"b", "b"'),),
    "more_labels": (('"b", "c"', '"b", "c", "d"'),),
    "features": (("activation: relu", "activation: relu\n  feat_in: 64"),),
    "no_activation": (("activation: relu", "activation: rellu"),),
    "wrong_type": (("features: 32", "features: many"),),
    "negative": (("filters: 64", "filters: -64"),),
    "unparsable": (("model: Tones", "model: [Tones"),),
}
# Manifest -> what is changed in the third line of train.json; a value of None takes the key out.
MANIFESTS: dict[str, dict[str, object]] = {
    "no_audio": {"audio_filepath": "none.wav"},
    "corrupt_audio": {"audio_filepath": "corrupt.wav"},
    "no_text": {"text": None},
    "no_duration": {"duration": None},
    "wrong_duration": {"duration": 2.0},
    "long_text": {"text": "abc" * 30},
}
TEXT_MANIFESTS = {"empty": "", "no_json": '{"audio_filepath": \n'}

_DATA = "--model_config ../corpus/tones.yaml --train_dataset ../corpus/train.json --placement CPU"
_BOTH = "--eval_datasets ../corpus/dev.json ../corpus/other.json"
_SETS = f"{_BOTH} --eval_batch_size 3"
_RUN = f"{_DATA} --work_dir runs --log_freq 1"
_ACCUMULATED = (
    f"{_RUN} {_SETS} --num_epochs 8 --batch_size 2 --iter_per_step 2 --optimizer adam_w --lr 0.02 --warmup_steps 3 "
    "--lr_policy CosineAnnealing --eval_freq 10 --checkpoint_save_freq 9"
)
_AUGMENTED = (
    f"{_RUN} --model_config ../corpus/augmented.yaml --num_epochs 2 --batch_size 3 --optimizer novograd --lr 0.05"
)
_SHORT = f"{_RUN} --max_steps 4 --batch_size 3"

TRAININGS = (
    Case("accumulated", "jasper.py", _ACCUMULATED),
    Case("accumulated_on_2", "jasper.py", _ACCUMULATED, "ranks"),
    Case("torchrun_on_2", "jasper.py", f"{_SHORT} {_SETS}", "torchrun"),
    Case("augmented", "jasper.py", _AUGMENTED),
    Case("augmented_on_2", "jasper.py", f"{_AUGMENTED} --synced_bn", "ranks"),
    Case("sharded_on_2", "jasper.py", f"{_SHORT} --shard_weights --optimizer adam", "ranks"),
    Case("dropped_on_2", "jasper.py", f"{_SHORT} --batch_size 5 --uneven drop --random_seed 3", "ranks"),
    Case("joined_on_2", "jasper.py", f"{_SHORT} --batch_size 5 --uneven join", "ranks"),
    Case("bfloat16", "jasper.py", f"{_SHORT} {_SETS} --amp_opt_level O1 --amp_dtype bfloat16"),
    Case("bfloat16_on_2", "jasper.py", f"{_SHORT} --amp_opt_level O1 --amp_dtype bfloat16", "ranks"),
    Case("sgd", "jasper.py", f"{_SHORT} --optimizer sgd --lr 0.001 --lr_policy SquareAnnealing --warmup_steps 2"),
    Case("adam", "jasper.py", f"{_SHORT} --optimizer adam --beta1 0.8 --lr_policy WarmupPolicy --weight_decay 0.1"),
    Case("deeper", "jasper.py", f"{_SHORT} --model_config ../corpus/deeper.yaml --random_seed 7"),
    Case("multiplied", "jasper.py", f"{_SHORT} --model_config ../corpus/multiplied.yaml"),
    Case("infeasible", "jasper.py", f"{_SHORT} --train_dataset ../corpus/long_text.json --batch_size 1"),
    Case(
        "older_options",
        "jasper.py",
        "--model_config ../corpus/tones.yaml --train_manifest ../corpus/train.json --val_manifest1 ../corpus/dev.json "
        "--logdir runs --max_steps 3 --batch_size 2 --batch_per_step 2 --save_freq 2 --disable_mixed_precision "
        "--log_freq 1",
    ),
)
PLANS = (
    Case(
        "plan", "jasper.py", f"{_DATA} {_SETS} --num_epochs 10 --batch_size 5 --iter_per_step 2 --work_dir runs --plan"
    ),
    Case("plan_augmented", "jasper.py", f"{_AUGMENTED} --plan"),
    Case("plan_large", "jasper.py", f"{_AUGMENTED} --model_config ../configs/quartznet5x5.yaml --plan"),
)
# The demo's model is far larger than that of the other cases.
OTHERS = (
    Case("demo", "demo.py", "--corpus ../corpus --work_dir demo/run --num_epochs 2"),
    Case("api", "api", ""),
    Case("api_on_2", "api", "", "ranks"),
)

_MODEL = "--model_config ../corpus/tones.yaml --placement CPU --load_dir ../accumulated/runs/Jasper/checkpoints"
_FILES = "../corpus/dev0.wav ../corpus/other1.wav ../corpus/dev2.wav ../corpus/train3.wav ../corpus/stereo.flac"
# These need the checkpoints of "accumulated".
EVALUATIONS = (
    Case("eval", "jasper_eval.py", f"{_MODEL} {_BOTH} --batch_size 3 --out out"),
    Case(
        "eval_on_2", "jasper_eval.py", f"{_MODEL} --eval_datasets ../corpus/train.json --batch_size 2 --out .", "ranks"
    ),
    Case("infer", "jasper_infer.py", f"{_MODEL} {_FILES}"),
    Case("infer_on_2", "jasper_infer.py", f"{_MODEL} --batch_size 2 {_FILES}", "ranks"),
)
RESUMED = (
    Case("resumed", "jasper.py", f"{_ACCUMULATED} --num_epochs 9 {_MODEL}"),
    # An epoch has fewer steps there, so it takes more of them until the schedule is over.
    Case("resumed_on_2", "jasper.py", f"{_ACCUMULATED} --num_epochs 18 --allow_world_size_change {_MODEL}", "ranks"),
)

_TRY = f"{_DATA} --max_steps 2 --batch_size 3"
_CORRUPT = f"{_TRY} --eval_datasets ../corpus/corrupt_audio.json --work_dir runs"


def _configured(name: str) -> Case:
    """Training with a configuration that cannot be used."""
    return Case(f"config_{name}", "jasper.py", f"{_TRY} --model_config ../corpus/{name}.yaml")


def _trained_on(name: str) -> Case:
    """Training on a manifest that cannot be used."""
    return Case(f"manifest_{name}", "jasper.py", f"{_TRY} --train_dataset ../corpus/{name}.json")


MISTAKES = (
    *map(_configured, ("key_typo", "block_typo", "section_typo", "label_twice", "features", "no_activation")),
    *map(_configured, ("wrong_type", "negative", "unparsable")),
    *map(_trained_on, ("trian", "no_audio", "no_text", "no_duration", "empty", "no_json")),
    Case("corrupt_audio", "jasper.py", _CORRUPT),
    _trained_on("wrong_duration"),
    Case("flag_typo", "jasper.py", f"{_TRY} --bach_size 3"),
    Case("how_long_twice", "jasper.py", f"{_TRY} --num_epochs 3"),
    Case("how_long_never", "jasper.py", _DATA),
    Case("no_optimizer", "jasper.py", f"{_TRY} --optimizer adamm"),
    Case("no_policy", "jasper.py", f"{_TRY} --lr_policy Cosine"),
    Case("no_placement", "jasper.py", f"{_TRY} --placement TPU"),
    Case("no_gpu", "jasper.py", f"{_TRY} --placement GPU"),
    Case("float16_on_cpu", "jasper.py", f"{_TRY} --amp_dtype float16"),
    Case("no_effect", "jasper.py", f"{_TRY} --save_freq 5"),
    Case("global_batch_size", "jasper.py", f"{_DATA} --max_steps 2 --global_batch_size 7 --iter_per_step 2"),
    Case("num_gpus", "jasper.py", f"{_TRY} --num_gpus 8"),
    Case("num_gpus_on_2", "jasper.py", f"{_TRY} --num_gpus 3", "ranks"),
    Case("corrupt_audio_on_2", "jasper.py", _CORRUPT, "ranks"),
    Case(
        "eval_without_checkpoint",
        "jasper_eval.py",
        "--model_config ../corpus/tones.yaml --load_dir ../corpus --eval_datasets dev",
    ),
    Case("infer_without_files", "jasper_infer.py", "--model_config ../corpus/tones.yaml --load_dir ../corpus"),
    Case("demo_without_corpus", "demo.py", "--corpus ../none --work_dir demo/run"),
)
# These need the checkpoints of "accumulated".
LATER_MISTAKES = (
    Case("load_dir_without_checkpoint", "jasper.py", f"{_TRY} --load_dir ../corpus"),
    Case("another_optimizer", "jasper.py", f"{_ACCUMULATED} {_MODEL} --optimizer sgd"),
    Case(
        "other_labels",
        "jasper_eval.py",
        f"{_MODEL} --model_config ../corpus/more_labels.yaml --eval_datasets ../corpus/dev.json",
    ),
    Case("infer_corrupt_audio", "jasper_infer.py", f"{_MODEL} ../corpus/dev0.wav ../corpus/corrupt.wav"),
    Case("infer_no_audio", "jasper_infer.py", f"{_MODEL} none.wav"),
    Case("another_model_on_2", "jasper.py", f"{_ACCUMULATED} {_MODEL} --model_config ../corpus/deeper.yaml", "ranks"),
)
# What "golden.py small" runs: training in one process and in two, resumed, evaluated, planned, and a few mistakes.
SMALL = frozenset(
    {"accumulated", "augmented_on_2", "api", "plan", "resumed", "eval_on_2"}
    | {"config_key_typo", "manifest_no_audio", "num_gpus_on_2", "other_labels"}
)
