"""Families of a user's own, in one file each, with the unchanged commands: a transducer, and CTC with attention."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import toys
from toys.tone_corpus import CONFIG, Finished, run_subcommand, write_manifest

import nemo_asr
import nemo_lite as nemo
from nemo_lite.base.errors import ConfigError, UsageError

pytestmark = pytest.mark.long  # models are trained in a fixture

EPOCHS = {"own_transducer": 160, "own_hybrid": 40}


def config_of(family: str) -> str:
    return f"family: {family}\n{CONFIG}"


class Run:
    """A trained model of a family, and the commands on it."""

    def __init__(self, family: str, folder: Path, corpus: Path) -> None:
        self.family, self.folder, self.corpus = family, folder, corpus
        self.config = folder / f"{family}.yaml"
        self.config.write_text(config_of(family))
        self.model = folder / "runs" / family

    def __call__(self, command: str, *words: object) -> Finished:
        own = ("--import", Path(toys.__file__).parent / f"{self.family}.py")
        return run_subcommand(command, *words, *own)

    def train(self, *words: object, epochs: int, name: str = "") -> Finished:
        return self(
            *("train", "--train_dataset", self.corpus / "train.json", "--eval_datasets", self.corpus / "dev.json"),
            *("--work_dir", self.folder / "runs", "--exp_name", name or self.family, "--num_epochs", epochs),
            *("--batch_size", 4, "--optimizer", "adam_w", "--lr", 0.02, "--eval_freq", 1000, "--log_freq", 1, *words),
        )


@pytest.fixture(scope="module", params=["own_transducer", "own_hybrid"])
def run(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(request.param, tmp_path_factory.mktemp(request.param), corpus)
    finished = run.train("--model_config", run.config, epochs=EPOCHS[run.family])
    assert finished.code == 0, finished.err
    assert "left out of training" not in finished.err + finished.out
    assert float(finished.losses[-1]) < 0.1 * float(finished.losses[0])
    return run


def test_it_is_planned_with_its_modules(run: Run) -> None:
    finished = run.train("--model_config", run.config, "--plan", epochs=1, name="planned")
    assert finished.code == 0, finished.err
    module = {"own_transducer": "Joint", "own_hybrid": "AttentionDecoder"}[run.family]
    assert re.search(rf"{module}.* [\d,]+", finished.out)


def test_it_is_evaluated_by_its_own_search(run: Run) -> None:
    finished = run("eval", run.model, "--eval_datasets", run.corpus / "dev.json", "--out", run.folder / "out")
    assert finished.code == 0, finished.err
    (rate,) = nemo_asr.read_model(run.model).card.rates
    assert f"dev: WER {rate.wer:.2%}" in finished.out
    assert rate.cer is not None
    assert rate.cer < 0.1


def test_its_words_have_times_and_confidences(run: Run) -> None:
    recordings = [run.corpus / f"dev{number}.wav" for number in range(3)]
    whole = run("transcribe", run.model, *recordings, "--format", "json")
    windows = run("transcribe", run.model, *recordings, "--format", "json", "--batch_seconds", 0.4)
    assert whole.code == 0, whole.err
    assert whole.out == windows.out
    lines = [json.loads(line) for line in whole.out.splitlines()]
    assert [line["text"] for line in lines] == ["cab", "abba", "bc"]
    for line in lines:
        (word,) = line["words"]
        assert 0.0 <= word["start"] < word["end"] <= line["duration"]
        assert 0.5 < word["confidence"] <= 1.0


def test_several_losses_are_logged_each(run: Run) -> None:
    records = [json.loads(line) for line in (run.model / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "train"]
    for record in steps:
        parts = {name: value for name, value in record.items() if name.startswith("loss_")}
        if run.family == "own_transducer":
            assert not parts
        else:
            assert sum(parts.values()) / 2 == pytest.approx(record["loss"], rel=1e-4)
            assert parts.keys() == {"loss_ctc", "loss_attention"}
    assert len(steps) > 10


def test_an_export_says_its_parts_or_which_search_it_has_not(run: Run) -> None:
    file = run.folder / "model.onnx"
    finished = run("export", run.model, file)
    assert finished.code == 0, finished.err
    if run.family == "own_transducer":
        names = sorted(path.name for path in run.folder.glob("*.onnx"))
        assert names == ["model.joint.onnx", "model.onnx", "model.prediction.onnx"]
        refused = run("transcribe", file, run.corpus / "dev0.wav")
        assert refused.code == 2
        assert "there is no search for exported models of family own_transducer" in refused.err
        layout = run("export", run.model, run.folder / "sherpa", "--format", "sherpa-onnx")
        assert layout.code == 2
        assert "family own_transducer does not give log_probs, log_probs_length, which sherpa-onnx takes" in layout.err
    else:
        assert "RescoringSearch of the configuration" in finished.err + finished.out


def test_fine_tuning_keeps_the_rows_of_labels(run: Run) -> None:
    other = run.folder / "other.yaml"
    other.write_text(config_of(run.family).replace('[" ", "a", "b", "c"]', '["c", " ", "b", "a", "d"]'))
    finished = run.train("--model_config", other, "--init_from", run.model, epochs=1, name="other")
    assert finished.code == 0, finished.err
    told = finished.out + finished.err
    head = {"own_transducer": "Joint", "own_hybrid": "AttentionDecoder"}[run.family]
    assert re.search(rf"{head}: \d+ of \d+ tensors loaded, \d by label \(.*head.weight", told)
    assert "labels: 4 kept with the blank" in told


def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(run: Run) -> None:
    schedule = ("--lr_policy", "warmuplr", "--warmup_steps", 2)  # does not depend on the number of epochs
    whole = run.train("--model_config", run.config, *schedule, epochs=2, name="whole")
    first = run.train("--model_config", run.config, *schedule, epochs=1, name="halves")
    second = run.train("--model_config", run.config, *schedule, epochs=2, name="halves")
    assert first.losses + second.losses == whole.losses


def test_a_reference_owns_no_weights(run: Run) -> None:
    files = sorted(path.name.split("-")[0] for path in (run.model / "model").glob("*.safetensors"))
    own = {"own_transducer": ["Joint", "Prediction"], "own_hybrid": ["AttentionDecoder", "JasperDecoderForCTC"]}
    assert files == sorted([*own[run.family], "JasperEncoder"])


def test_two_models_share_a_data_layer(run: Run) -> None:
    recipe = nemo_asr.load_recipe(run.config)
    first, second = recipe.model(), recipe.model()
    layer = recipe.data_layer(str(run.corpus / "dev.json"), training=False, batch_size=2)
    wires = layer()
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, set_default=False)
    values = factory.infer([nemo_asr.connect(model, wires).loss for model in (first, second)], verbose=False)
    assert values is not None
    assert [len(batches) for batches in values] == [2, 2]


def test_the_options_of_a_search_are_for_the_family_s_own(run: Run) -> None:
    finished = run("transcribe", run.model, run.corpus / "dev0.wav", "--decoder", "beam", "--hotwords", "abba")
    assert finished.out.endswith("cab\n"), finished.err
    aligned = run("align", run.model, run.corpus / "dev.json")
    if run.family == "own_transducer":
        assert aligned.code == 2
        assert "family own_transducer gives no log-probabilities of frames, so texts cannot be aligned" in aligned.err
    else:
        assert aligned.code == 0, aligned.err


def test_a_family_or_a_module_that_is_not_there_is_told_with_its_place(run: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(config_of(run.family).replace(run.family, "transduser"))
    with pytest.raises(ConfigError, match=r'wrong.yaml:1:1: family is "transduser", wanted one of ctc, '):
        nemo_asr.load_recipe(tmp_path / "wrong.yaml")
    if run.family == "own_transducer":
        (tmp_path / "ctc.yaml").write_text(config_of(run.family) + "JasperDecoderForCTC: {}\n")
        with pytest.raises(ConfigError, match="JasperDecoderForCTC is a decoder, which family own_transducer has not"):
            nemo_asr.load_recipe(tmp_path / "ctc.yaml")


def test_the_loss_says_how_many_frames_a_text_needs(run: Run, tmp_path: Path) -> None:
    recipe = nemo_asr.load_recipe(run.config)
    lines = [{"audio_filepath": str(run.corpus / "dev0.wav"), "duration": 0.1, "text": "abcabcabcabc"}]
    layer = recipe.data_layer(str(write_manifest(tmp_path / "m.json", lines)), training=False, batch_size=1)
    model = recipe.model()
    frames = nemo_asr.connect(model, layer).frames
    assert nemo_asr.warn_of_infeasible(layer, frames, model.loss) == (0 if run.family == "own_transducer" else 1)


def test_intermediate_ctc_is_of_families_with_its_loss(run: Run) -> None:
    recipe = nemo_asr.load_recipe(run.config)
    if run.family == "own_transducer":
        with pytest.raises(UsageError, match="family own_transducer has no loss in the middle of its encoder"):
            recipe.model(intermediate_ctc=0.3)
    else:
        layer = recipe.data_layer(str(run.corpus / "dev.json"), training=True, batch_size=2)
        losses = nemo_asr.connect(recipe.model(intermediate_ctc=0.3), layer, training=True).losses
        weights = {name: round(part.weight, 3) for name, part in losses.items()}
        assert weights == {"ctc": 0.35, "intermediate": 0.15, "attention": 0.5}
