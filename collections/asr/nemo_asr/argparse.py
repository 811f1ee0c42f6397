"""AsrArgParser: the command-line options of the speech scripts, in the spellings of both NeMo generations. No training here."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from nemo_lite.utils.argparse import NemoArgParser, not_negative_float, positive_int

# The first generation's name of an option -> the one it became.
_RENAMED = {
    "--train_manifest": "train_dataset",
    "--batch_per_step": "iter_per_step",
    "--logdir": "work_dir",
    "--save_freq": "checkpoint_save_freq",
}
_BETAS = {"novograd": (0.95, 0.25), "fused_novograd": (0.95, 0.25)}


class AsrArgParser(NemoArgParser):
    """NeMo's common options and those of its speech scripts.

    ``--train_manifest --val_manifest1 .. 3 --num_gpus --batch_per_step --logdir --save_freq --disable_mixed_precision`` of the first
    generation mean the same as ``--train_dataset --eval_datasets --iter_per_step --work_dir --checkpoint_save_freq --amp_opt_level``.
    A value that cannot be used ends the script with one line and exit code 2.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_defaults(
            optimizer="novograd", batch_size=64, lr=0.02, weight_decay=0.001, lr_policy="CosineAnnealing", amp_opt_level=None
        )
        for option, dest in _RENAMED.items():
            kind = str if dest in ("train_dataset", "work_dir") else positive_int
            self.add_argument(option, dest=dest, type=kind, default=SUPPRESS, help=f"the same as --{dest}")
        for number in (1, 2, 3):
            self.add_argument(f"--val_manifest{number}", default="", help="one more of --eval_datasets")
        self.add_argument("--num_gpus", type=int, help="how many processes the launcher started; checked")
        self.add_argument("--disable_mixed_precision", action="store_true", help="the same as --amp_opt_level O0")
        self.add_argument("--exp_name", default="Jasper", help="name of the run, and of its folder in WORK_DIR")
        self.add_argument("--beta1", type=not_negative_float, help="first decay rate of the optimizer")
        self.add_argument("--beta2", type=not_negative_float, help="second decay rate of the optimizer")
        self.add_argument("--warmup_steps", type=int, default=0, help="steps over which the learning rate rises")
        self.add_argument("--load_dir", help="folder of checkpoints to start from (default: the run's own)")
        self.add_argument("--num_workers", type=int, help="processes that load batches (default: the configuration's)")
        self.add_argument("--random_seed", type=int, default=0, help="seed of every random draw")
        self.add_argument("--amp_dtype", choices=("bfloat16", "float16"), help="what O1 computes in")
        self.add_argument("--plan", action="store_true", help="print and save the DAGs and the schedule, then exit")

    def parse_args(  # type: ignore[override]  # one signature for what argparse declares as three overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """As in argparse, with the first generation's options folded into those they became."""
        parsed = super().parse_args(args, namespace)
        first = [parsed.val_manifest1, parsed.val_manifest2, parsed.val_manifest3]
        parsed.eval_datasets = [*(parsed.eval_datasets or ()), *(manifest for manifest in first if manifest)]
        if parsed.disable_mixed_precision:
            if parsed.amp_opt_level not in (None, "O0"):
                self.error(f"--disable_mixed_precision contradicts --amp_opt_level {parsed.amp_opt_level}; leave one out")
            parsed.amp_opt_level = "O0"
        if (parsed.num_epochs is None) == (parsed.max_steps is None):
            got = "neither" if parsed.num_epochs is None else "both"
            self.error(f"how long to train must be said once: got {got}, wanted --num_epochs or --max_steps")
        if parsed.amp_dtype and parsed.amp_opt_level == "O0":
            self.error("--amp_dtype has no effect with --amp_opt_level O0; leave one out")
        self._fold_betas(parsed)
        return parsed

    def _fold_betas(self, parsed: Any) -> None:
        """``parsed.betas``: what --beta1 and --beta2 say, the optimizer's own defaults where only one is given, else nothing."""
        given = (parsed.beta1, parsed.beta2)
        if given == (None, None):
            parsed.betas = {}
            return
        if parsed.optimizer == "sgd":
            self.error("--beta1 and --beta2 have no effect with --optimizer sgd; leave them out")
        defaults = _BETAS.get(parsed.optimizer, (0.9, 0.999))
        parsed.betas = {"betas": tuple(d if g is None else g for g, d in zip(given, defaults, strict=True))}


def unique_tags(manifests: Sequence[str]) -> list[str]:
    """A short name for each evaluation set: the file's stem, with as many folders before it as make it different.

    Comma-separated manifests are named after each part: ``dev-clean+dev-other``. The same set given twice is numbered.
    """
    paths = [[Path(part).with_suffix("").parts for part in manifest.split(",")] for manifest in manifests]
    for depth in range(1, 1 + max((len(part) for parts in paths for part in parts), default=0)):
        tags = ["+".join("_".join(part[-depth:]).strip("/") for part in parts) for parts in paths]
        if len(set(tags)) == len(tags):
            return tags
    return [f"{tag}_{number}" if tags.count(tag) > 1 else tag for number, tag in enumerate(tags, 1)] if paths else []


class EvalArgParser(ArgumentParser):
    """The options of scripts that use a trained model."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_argument("--model_config", required=True, help="YAML file of the model")
        self.add_argument("--load_dir", required=True, help="folder of its checkpoints; the newest is taken")
        self.add_argument("--batch_size", type=positive_int, default=64, help="utterances in a batch")
        self.add_argument("--amp_opt_level", choices=("O0", "O1"), help="precision (default: O1 on a GPU, O0 on a CPU)")
        self.add_argument("--local_rank", "--local-rank", type=int, help="given by a launcher")

    def error(self, message: str) -> NoReturn:
        """End the script with one line and exit code 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")
