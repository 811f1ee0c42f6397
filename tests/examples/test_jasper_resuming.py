"""Training speech with all that draws: a run that is stopped within an epoch and goes on equals one that is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from toys.tone_corpus import HEAD, run_script

from nemo_lite.backends.pytorch.checkpoint.folder import read_checkpoint

RECIPE = (
    HEAD.replace(
        "train: {shuffle: true}",
        "train: {shuffle: true, bucketing: true, augmentor: "
        "{speed: {prob: 0.8, sr: 16000, min_speed_rate: 0.85, max_speed_rate: 1.2, num_rates: 0}}}",
    )
    + """
    - {filters: 16, repeat: 1, kernel: [11], stride: [2], dilation: [1], dropout: 0.2, residual: false, separable: true}
SpectrogramAugmentation: {freq_masks: 2, freq_width: 6, time_masks: 2, time_width: 6}
labels: [" ", "a", "b", "c"]
"""
)


def trained(corpus: Path, where: str, max_steps: int, workers: int = 0) -> list[str]:
    """The losses of a run with six steps an epoch, evaluated after every fourth."""
    Path("recipe.yaml").write_text(f"model: Tones\n{RECIPE}")
    data = ("--train_dataset", corpus / "train.json", "--eval_datasets", corpus / "dev.json")
    options = ("--batch_size", 1, "--iter_per_step", 2, "--eval_freq", 4, "--log_freq", 1, "--num_workers", workers)
    schedule = ("--lr_policy", "CosineAnnealing", "--warmup_steps", 2, "--ema_decay", 0.9)
    folders = ("--work_dir", where, "--placement", "CPU", "--no-create_tb_writer")
    ended = run_script(
        *("jasper.py", "--model_config", "recipe.yaml", *data, *options, *schedule, *folders),
        *(
            "--max_steps",
            max_steps,
            "--checkpoint_save_freq",
            3,
            "--checkpoint_minutes",
            0,
            "--random_seed",
            7,
            "--checkpoints_to_keep",
            9,
        ),
    )
    assert ended.code == 0, ended.err
    return ended.losses


def weights(where: str) -> dict[str, torch.Tensor]:
    stored = read_checkpoint(f"{where}/Jasper/checkpoints").weights
    return {f"{module}.{name}": tensor for module, of_it in stored.items() for name, tensor in of_it.items()}


@pytest.mark.slow
def test_augmented_speech_in_buckets_goes_on_to_the_bit_with_and_without_workers(corpus: Path) -> None:
    whole = trained(corpus, "whole", 9)
    one = weights("whole")
    for workers in (0, 2):
        # The schedule follows from the number of steps: a run to step 3 would have another.
        shutil.copytree("whole", f"parts{workers}")
        for path in Path(f"parts{workers}/Jasper/checkpoints").iterdir():
            if path.is_dir() and path.name != "checkpoint-STEP-3":
                shutil.rmtree(path)
        assert (len(whole), trained(corpus, f"parts{workers}", 9, workers)) == (9, whole[3:])
        other = weights(f"parts{workers}")
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
