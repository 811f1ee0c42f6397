"""LoRA: updates of attention are trained alone; what is written holds their sum with the weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
import toys.frame_models as frame_models
import toys.nemo_conformers as conformers
import toys.prompted_models as prompted
import toys.waveform_models as waveform_models
import toys.whisper_models as whisper
from toys.nemo_conformers import RATE, signal_of
from toys.ranks import on_ranks

from nemo_asr.commands.cli.train import main as train
from nemo_asr.trained.lora import QUERIES_AND_VALUES, LowRankUpdate, add_lora, merged
from nemo_asr.trained.model import TrainedModel, load_model, trained_modules
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors
from nemo_lite.base.errors import CheckpointError, UsageError

OF_ATTENTION = "linear_q", "linear_k", "linear_v", "linear_out"
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "whisper": lambda folder: whisper.write_folder(folder, state=whisper.state_of(seed=4)),
    "canary": lambda folder: prompted.write_folder(folder, "canary"),
    "conformer": lambda folder: conformers.write_case(folder.with_suffix(".nemo"), "fast conformer of 3.0"),
    "wav2vec2": lambda folder: waveform_models.write_folder(folder, "wav2vec2"),
    "wavlm": lambda folder: waveform_models.write_folder(folder, "wavlm"),
    **{
        name: lambda folder, name=name: frame_models.write_folder(folder, name)
        for name in ("wav2vec2-bert", "lasr", "granite")
    },
}


def encoded_by(model: TrainedModel) -> list[torch.Tensor]:
    """Encoded frames, and what an attention decoder gives for a text."""
    modules: Any = model.modules
    signal = signal_of(1.3)[None]
    with torch.no_grad():
        features, length = modules.preprocessor(signal, torch.tensor([signal.shape[1]]), force_pt=True)
        encoded, frames, *_ = modules.encoder(features, length, force_pt=True)
        if "attention" not in modules.others:
            return [encoded]
        text = torch.tensor([[7, 8, 9]]), frames, torch.tensor([3])
        return [encoded, modules.others["attention"](encoded, *text, force_pt=True)]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_model_with_updates_begins_as_it_is_and_is_written_with_their_sum(tmp_path: Path, name: str) -> None:
    model = load_model(FOLDERS[name](tmp_path / "a"))
    if name == "whisper":
        model.set_language("de")
    before = encoded_by(model)
    add_lora(trained_modules(model.modules), 2)
    assert all(map(torch.equal, encoded_by(model), before))
    updates = [part for each in trained_modules(model.modules).values() for part in each.modules()]
    for update in updates:
        if isinstance(update, LowRankUpdate):
            torch.nn.init.normal_(update.up)
    unmerged = encoded_by(model)
    assert not any(map(torch.equal, unmerged, before))
    model.save(tmp_path / "merged")
    written = load_model(tmp_path / "merged")
    if name == "whisper":
        written.set_language("de")
    assert all(map(torch.equal, encoded_by(written), unmerged))


def data_in(folder: Path) -> Path:
    if (folder / "train.json").exists():  # ranks share it
        return folder / "train.json"
    for number, seconds in enumerate((0.6, 0.9, 0.7, 0.8)):
        soundfile.write(folder / f"{number}.wav", signal_of(seconds).numpy(), RATE)
    lines = [
        json.dumps({"audio_filepath": f"{number}.wav", "duration": seconds, "text": "The cat's мир!"})
        for number, seconds in enumerate((0.6, 0.9, 0.7, 0.8))
    ]
    (folder / "train.json").write_text("\n".join(lines))
    return folder / "train.json"


def tune(folder: Path, name: str, *options: object) -> Path:
    """A run with LoRA from the small Whisper of a folder."""
    if not (folder / "small").exists():
        whisper.write_folder(folder / "small", state=whisper.state_of(seed=4))
    told = ["--init_from", folder / "small", "--train_dataset", data_in(folder), "--work_dir", folder]
    told += ["--exp_name", name, "--batch_size", 2, "--lr", 0.05, "--optimizer", "adam_w", "--log_freq", 1]
    train([*map(str, [*told, *options]), "--set", "WhisperDecoder.prompt_language=de"])
    return folder / name


def newest(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of a run's newest checkpoint as they are in its files."""
    step = max(run.glob("checkpoints/checkpoint-STEP-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    files = {path.name.partition("-")[0]: path for path in sorted(step.glob("Whisper*"))}
    return {f"{name} {key}": value for name, path in files.items() for key, value in read_tensors(path).items()}


@pytest.mark.slow
def test_updates_alone_are_trained_and_a_run_that_was_stopped_goes_on_exactly(tmp_path: Path, caplog) -> None:
    more = ["--lora", 4, "--lora_layers", *OF_ATTENTION, "w_1", "w_2", "--lr_policy", "warmuplr", "--warmup_steps", 4]
    whole = tune(tmp_path, "whole", *more, "--max_steps", 30)
    records = map(json.loads, (whole / "metrics.jsonl").read_text().splitlines())
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert losses[-1] < losses[0] / 2
    assert "LoRA of rank 4 on 12 layers of WhisperEncoder, 20 layers of WhisperDecoder: 4,352 of" in caplog.text
    tensors = newest(whole)
    for name, module in trained_modules(load_model(tmp_path / "small").modules).items():
        for key, value in module.state_dict().items():
            layer, _, part = key.rpartition(".")
            names = f"{name} {key}", f"{name} {layer}.parametrizations.{part}.original"
            assert any(torch.equal(tensors[each], value) for each in names if each in tensors), key
    tune(tmp_path, "parts", *more, "--max_steps", 13)
    parts = newest(tune(tmp_path, "parts", *more, "--max_steps", 30))
    assert [*parts] == [*tensors]
    assert all(map(torch.equal, parts.values(), tensors.values()))
    of_checkpoint = [*map(encoded_by, [load_model(whole / "checkpoints"), load_model(whole)])]
    assert all(map(torch.equal, *of_checkpoint))
    assert not any(
        "parametrizations" in key for path in whole.glob("model/*.safetensors") for key in read_tensors(path)
    )
    with pytest.raises(CheckpointError) as told:
        tune(tmp_path, "parts", "--lora", 2, "--max_steps", 40)
    assert f"got --lora 2, wanted --lora 4 --lora_layers {' '.join(OF_ATTENTION)} w_1 w_2 as in the checkpoint" in str(
        told.value
    )


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "share"), [("O0", 1e-5), ("O1", 0.02)])
def test_two_ranks_train_the_updates_of_one_rank_and_the_whole_batch_and_go_on_exactly(
    tmp_path: Path, precision: str, share: float
) -> None:
    told = ["--lora", 4, "--optimizer", "sgd", "--lr_policy", "warmuplr", "--warmup_steps", 2]
    told += ["--amp_opt_level", precision]
    one = newest(tune(tmp_path, "one", *told, "--max_steps", 4))

    def newest_of_two(name: str, num_steps: int) -> dict[str, torch.Tensor]:
        ends = on_ranks(2, tune, tmp_path, name, *told, "--batch_size", 1, "--max_steps", num_steps, timeout=200)
        assert [end.code for end in ends] == [0, 0], ends[0].err
        return newest(tmp_path / name)

    whole = newest_of_two("whole", 4)
    newest_of_two("parts", 2)
    parts = newest_of_two("parts", 4)
    assert [*one] == [*whole] == [*parts]
    most = share * max(float(tensor.abs().max()) for name, tensor in one.items() if name.endswith(".up"))
    for name, tensor in one.items():
        torch.testing.assert_close(whole[name], tensor, rtol=0, atol=most if name.endswith((".up", ".down")) else 0)
        assert tensor.any() or not name.endswith(".up")  # they began with zeros
        assert torch.equal(whole[name], parts[name]), name


def test_a_model_without_attention_and_a_rank_that_is_too_large_are_one_line() -> None:
    modules = {"Plain": torch.nn.Sequential(torch.nn.Linear(4, 4))}
    told = r"--lora: no module has attention that LoRA can train: got Plain, wanted linear layers linear_q, linear_v, "
    with pytest.raises(UsageError, match=told):
        add_lora(modules, 2)
    with pytest.raises(UsageError, match="--lora: the rank is larger than a layer: got 5, wanted 1 to 4"):
        add_lora(modules, 5, ["0"])
    assert all(weight.requires_grad for weight in modules["Plain"].parameters())


def test_tensors_of_a_module_without_updates_stay_as_they_are() -> None:
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
    tensors = normed.state_dict()
    assert merged(tensors) == tensors
    assert any("parametrizations" in key for key in tensors)


@pytest.mark.parametrize("shapes", [((4, 2), (3, 5)), ((4, 2), (2, 4)), ((4,), (2, 5)), ((4, 2, 1), (5,))])
def test_an_update_that_does_not_fit_its_weight_is_one_line(shapes: tuple[tuple[int, ...], ...]) -> None:
    up, down = map(torch.zeros, shapes)
    names = ["a.parametrizations.weight.original", "a.parametrizations.weight.0.up", "a.parametrizations.weight.0.down"]
    with pytest.raises(CheckpointError, match=r"a: an update does not fit its weight: got .*, wanted \(?4, 5"):
        merged(dict(zip(names, (torch.zeros(4, 5), up, down), strict=True)))


def test_a_head_without_attention_is_trained_as_a_whole() -> None:
    attention = torch.nn.ModuleDict({"linear_q": torch.nn.Linear(4, 4), "norm": torch.nn.LayerNorm(4)})
    modules = {"Encoder": attention, "Head": torch.nn.Linear(4, 2)}
    told = add_lora(modules, 1, QUERIES_AND_VALUES)
    assert told == "LoRA of rank 1 on 1 layer of Encoder, and Head as a whole: 18 of 46 numbers are trained"
    trained = [name for name, weight in attention.named_parameters() if weight.requires_grad]
    assert [name.rpartition(".")[2] for name in trained] == ["up", "down"]


@pytest.mark.slow
def test_labels_that_are_new_in_a_module_with_updates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--lora leaves WhisperDecoder as it is, and it is not all trained: got .* new"
    ):
        tune(tmp_path, "run", "--lora", 2, "--max_steps", 1, "--set", "WhisperDecoder.decoder_layers=3")


@pytest.mark.parametrize("other", [["--freeze_encoder_until", 3], ["--shard_weights"]])
def test_options_that_contradict_updates_are_one_line(tmp_path: Path, other: list[object], capsys) -> None:
    with pytest.raises(SystemExit):
        tune(tmp_path, "run", "--lora", 2, "--max_steps", 1, *other)
    assert f"--lora contradicts {other[0]}; leave one out" in capsys.readouterr().err
