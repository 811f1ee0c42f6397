"""init_from and recipe_of: a trained model as the beginning of another one. What jasper.py does with them: examples."""

from __future__ import annotations

import pytest
import torch
from toys.tone_corpus import CONFIG, TEXTS, make_corpus

import nemo_asr
import nemo_lite
from nemo_asr.trained.model import trained_modules
from nemo_lite.backends.pytorch.checkpoint.folder import CheckpointFolder
from nemo_lite.base.errors import CheckpointError

TRANSDUCER = """family: transducer
RNNTDecoder: {prednet: {pred_hidden: 16}}
RNNTJoint: {jointnet: {joint_hidden: 16, pred_hidden: 16}, durations: [0, 1, 2]}
"""
HYBRID = TRANSDUCER.replace("family: transducer", "family: hybrid") + "JasperDecoderForCTC: {}\n"


def recipe(folder, more="", **changes):
    """The recipe of the tones, with parts of its text replaced."""
    text = CONFIG + more
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    (folder / "tones.yaml").write_text(text)
    return nemo_asr.load_recipe(folder / "tones.yaml")


@pytest.fixture
def trained(tmp_path):
    """The folder of checkpoints of a model that was not trained."""
    made = recipe(tmp_path)
    model = made.model()
    about = nemo_asr.about_checkpoint(nemo_asr.describe(made), made.config.as_yaml())
    modules = {"JasperEncoder": model.encoder, "JasperDecoderForCTC": model.decoder}
    state = {"step": 3, "epoch": 1}
    CheckpointFolder(tmp_path / "run").save(modules, state, kind="STEP", number=3, keep=1, about=about)
    return tmp_path / "run", model


@pytest.mark.slow
def test_weights_of_a_checkpoint_are_copied_and_said(trained, tmp_path, capsys):
    folder, old = trained
    made = recipe(tmp_path)
    model = made.model()
    done = nemo_asr.init_from(folder, model, made)
    torch.testing.assert_close(model.encoder.state_dict(), old.encoder.state_dict(), rtol=0, atol=0)
    assert done is not None
    assert done.is_complete
    said = capsys.readouterr().out
    place = folder / "checkpoint-STEP-3"
    assert f"Weights from {place}, step 3 (epoch 1):\n  JasperEncoder: all 13 tensors loaded\n" in said


@pytest.mark.slow
def test_a_run_that_goes_on_is_left_as_it_is(trained, tmp_path, capsys):
    folder, _ = trained
    made = recipe(tmp_path)
    model = made.model()
    before = model.encoder.state_dict()["encoder.0.mconv.0.conv.weight"].clone()
    assert nemo_asr.init_from(folder, model, made, unless_in=folder) is None
    torch.testing.assert_close(model.encoder.state_dict()["encoder.0.mconv.0.conv.weight"], before, rtol=0, atol=0)
    assert f"is not used: the run goes on from its checkpoints in {folder}" in capsys.readouterr().err
    assert nemo_asr.init_from(folder, model, made, unless_in=tmp_path / "nothing") is not None


@pytest.mark.slow
def test_parts_that_stay_new_are_a_warning(trained, tmp_path, capsys):
    folder, _ = trained
    made = recipe(tmp_path, wider=("filters: 64", "filters: 48"))
    nemo_asr.init_from(folder, made.model(), made)
    said = capsys.readouterr().err
    assert "JasperEncoder: 8 of 13 tensors loaded" in said
    assert "(is (48, 32, 1), was (64, 32, 1))" in said


@pytest.mark.slow
def test_features_that_differ_are_taken_with_a_warning_where_that_is_allowed(trained, tmp_path, capsys):
    folder, _ = trained
    made = recipe(tmp_path, changed=("sample_rate: 16000", "sample_rate: 8000"))
    assert nemo_asr.init_from(folder, made.model(), made, allow_feature_change=True) is not None
    told = "its features are not those of the model that the weights are from: got sample_rate 8000, wanted"
    assert told in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow
def test_features_that_differ_are_refused(trained, tmp_path):
    folder, _ = trained
    for old, new, told in (
        ("sample_rate: 16000", "sample_rate: 8000", "got sample_rate 8000, wanted sample_rate 16000 as in"),
        ("features: 32", "features: 40", "got features 40, wanted features 32 as in"),
        (
            "{features: 32",
            "{normalize: all_features, features: 32",
            "got normalize all_features, wanted normalize per_",
        ),
    ):
        made = recipe(tmp_path, changed=(old, new))
        with pytest.raises(CheckpointError, match=r"tones\.yaml.*: its features are not .*: " + told):
            nemo_asr.init_from(folder, made.model(), made)


@pytest.mark.slow
def test_arguments_that_leave_the_features_as_they_are_may_differ(trained, tmp_path):
    folder, _ = trained
    made = recipe(tmp_path, changed=("n_fft: 512, dither: 0.0", "dither: 0.1, pad_to: 8"))
    assert nemo_asr.init_from(folder, made.model(), made) is not None


@pytest.mark.slow
def test_a_model_of_which_nothing_fits_is_refused_with_its_place(trained, tmp_path):
    folder, _ = trained
    # The decoder fits, but it says nothing about frames of another encoder.
    changes = {"first": ("filters: 32", "filters: 24"), "second": ("kernel: [11]", "kernel: [9]")}
    made = recipe(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=r"STEP-3: none of its tensors before the decoder has the name"):
        nemo_asr.init_from(folder, made.model(), made)


@pytest.mark.slow
def test_a_model_carries_its_configuration(trained, tmp_path):
    folder, _ = trained
    assert nemo_asr.recipe_of(folder).labels == [" ", "a", "b", "c"]
    other = nemo_asr.recipe_of(folder, ["labels=[x, a]"])
    assert other.labels == ["x", "a"]
    done = nemo_asr.init_from(folder, other.model(), other)
    assert done is not None
    assert (done.kept_labels, done.new_labels, done.left_labels) == (["a"], ["x"], [" ", "b", "c"])


@pytest.mark.slow
def test_a_checkpoint_that_carries_nothing_takes_the_given_configuration(trained, tmp_path, capsys):
    _, old = trained
    modules = {"JasperEncoder": old.encoder, "JasperDecoderForCTC": old.decoder}
    CheckpointFolder(tmp_path / "bare").save(modules, None, kind="STEP", number=1, keep=1)
    with pytest.raises(CheckpointError, match=r"bare\S*: the checkpoint carries no configuration; .*--model_config"):
        nemo_asr.recipe_of(tmp_path / "bare")
    made = recipe(tmp_path)
    nemo_asr.init_from(tmp_path / "bare", made.model(), made)
    assert "its labels are not known" in capsys.readouterr().out


@pytest.mark.slow
def test_a_hybrid_gives_its_encoder_and_head_to_a_ctc_model_and_the_other_way_round(trained, tmp_path, capsys):
    folder, old = trained
    made = recipe(tmp_path, HYBRID)
    hybrid = made.model()
    nemo_asr.init_from(folder, hybrid, made)
    torch.testing.assert_close(hybrid.encoder.state_dict(), old.encoder.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(hybrid.decoder.state_dict(), old.decoder.state_dict(), rtol=0, atol=0)
    assert "RNNTJoint: new, all 6 tensors" in capsys.readouterr().err
    about = nemo_asr.about_checkpoint(nemo_asr.describe(made), made.config.as_yaml())
    state = {"step": 3, "epoch": 1}
    named = trained_modules(hybrid)
    CheckpointFolder(tmp_path / "hybrid").save(named, state, kind="STEP", number=3, keep=1, about=about)
    made = recipe(tmp_path)
    ctc = made.model()
    nemo_asr.init_from(tmp_path / "hybrid", ctc, made)
    torch.testing.assert_close(ctc.decoder.state_dict(), old.decoder.state_dict(), rtol=0, atol=0)
    said = capsys.readouterr().out
    assert "JasperDecoderForCTC: all 2 tensors loaded" in said
    assert "not used: RNNTDecoder, RNNTJoint" in said


@pytest.mark.slow
def test_a_transducer_with_other_labels_begins_with_the_encoder_of_a_ctc_model(trained, tmp_path):
    folder, old = trained
    made = recipe(tmp_path, TRANSDUCER, labels=('labels: [" ", "a", "b", "c"]', 'labels: ["b", "x"]'))
    model = made.model()
    done = nemo_asr.init_from(folder, model, made)
    torch.testing.assert_close(model.encoder.state_dict(), old.encoder.state_dict(), rtol=0, atol=0)
    assert done.unused_modules == ["JasperDecoderForCTC"]


@pytest.mark.slow
def test_the_gradients_of_a_hybrid_s_heads_differ_by_the_labels_of_an_utterance_if_reduced_in_different_ways(tmp_path):
    folder = make_corpus(tmp_path)
    (folder / "hybrid.yaml").write_text(CONFIG + HYBRID)
    norms = {}
    for of_transducer, of_ctc in (("mean_batch", None), ("mean_volume", None), ("mean_volume", "mean_batch")):
        settings = [
            f"RNNTLoss.reduction={of_transducer}",
            *([f"AuxiliaryCTCLoss.reduction={of_ctc}"] if of_ctc else []),
        ]
        made = nemo_asr.load_recipe(folder / "hybrid.yaml", settings)
        factory = nemo_lite.NeuralModuleFactory(placement=nemo_lite.DeviceType.CPU, random_seed=0)
        layer = made.data_layer(str(folder / "train.json"), training=True, batch_size=12, num_workers=0)
        losses = nemo_asr.connect(made.model(), layer, training=True).losses
        gradients = factory.loss_gradients([part.loss for part in losses.values()])
        assert gradients.place == "jasper_encoder.outputs"
        norms[of_transducer, of_ctc] = dict(zip(losses, gradients.norms, strict=True))
    equal, volume, published = norms.values()
    num_labels = sum(map(len, TEXTS)) / len(TEXTS)
    for part in ("transducer", "ctc"):
        assert equal[part] / volume[part] == pytest.approx(num_labels, rel=1e-4)
    ratios = [each["ctc"] / each["transducer"] for each in (equal, volume, published)]
    assert ratios[1] == pytest.approx(ratios[0], rel=1e-4)
    assert ratios[2] == pytest.approx(num_labels * ratios[0], rel=1e-4)
