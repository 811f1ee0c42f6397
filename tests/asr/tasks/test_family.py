"""connect: which wire goes to which port follows from element types, and lengths follow what they are lengths of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from toys.nets import Points

import nemo_asr
from nemo_asr.models.losses import IntermediateDecoderForCTC
from nemo_asr.tasks.families import CTC
from nemo_asr.tasks.family import FAMILIES, Model, Signal, connect, connect_by_type, signals_of
from nemo_lite import Dag, DataLayerNM, DeviceType, EvaluatorCallback, LossNM, NeuralModuleFactory, NmTensor
from nemo_lite.base.errors import NeuralPortNameMismatchError, NeuralPortNmTensorMismatchError, UsageError
from nemo_lite.core import LabelsType, LengthsType, LogprobsType, LossType, NeuralType, Ports
from nemo_lite.core.callbacks.evaluator import differences_from_training

LABELS = ["a", "b"]


@pytest.fixture
def data_layer(tmp_path: Path) -> DataLayerNM:
    soundfile.write(tmp_path / "a.wav", np.zeros(16000, np.float32), 16000)
    line = {"audio_filepath": str(tmp_path / "a.wav"), "duration": 1.0, "text": "ab"}
    (tmp_path / "m.json").write_text(json.dumps(line) + "\n")
    return nemo_asr.AudioToTextDataLayer(str(tmp_path / "m.json"), LABELS, 1)


def model(features: int = 16) -> Model:
    block = {"filters": 8, "repeat": 1, "kernel": 3, "stride": 2, "dilation": 1, "dropout": 0.0, "residual": False}
    return Model(
        nemo_asr.AudioToMelSpectrogramPreprocessor(features=16),
        nemo_asr.JasperEncoder(jasper=[block], activation="relu", feat_in=features),
        nemo_asr.JasperDecoderForCTC(feat_in=8, num_classes=2),
        nemo_asr.CTCLossNM(num_classes=2),
        nemo_asr.GreedyCTCDecoder(),
        nemo_asr.MultiplyBatch(2),
        nemo_asr.SpectrogramAugmentation(freq_masks=1),
    )


def inputs_of(wire: NmTensor | None) -> dict[str, str]:
    """The ports of the call that makes a wire -> where their wires come from."""
    assert wire is not None
    return {port: given.place for port, given in wire.producer_args.items()}


def test_evaluation_goes_from_audio_to_loss_and_predictions(data_layer: DataLayerNM) -> None:
    wires = connect(model(), data_layer)
    assert inputs_of(wires.loss) == {
        "log_probs": "jasper_decoder_for_ctc.output",
        "targets": "audio_to_text_data_layer.transcripts",
        "input_length": "jasper_encoder.encoded_lengths",
        "target_length": "audio_to_text_data_layer.transcript_length",
    }
    assert wires.features is wires.log_probs.call.inputs["encoder_output"].call.inputs["audio_signal"]
    assert wires.feature_lengths is wires.log_probs.call.inputs["encoder_output"].call.inputs["length"]
    assert wires.log_probs_lengths is wires.predictions.call.inputs["log_probs_length"]
    # The decoder gives no lengths: those of its input go on. Optional lengths are connected.
    assert inputs_of(wires.predictions) == {
        "log_probs": "jasper_decoder_for_ctc.output",
        "log_probs_length": "jasper_encoder.encoded_lengths",
    }
    assert wires.scored == [wires.loss, wires.predictions, wires.transcripts, wires.transcript_lengths]


def test_training_goes_through_multiplier_and_augmentation(data_layer: DataLayerNM) -> None:
    wires = connect(model(), data_layer, training=True)
    names = [node.name for node in Dag([wires.loss]).nodes]
    assert names == [
        *("audio_to_mel_spectrogram_preprocessor", "multiply_batch", "spectrogram_augmentation", "jasper_encoder"),
        *("jasper_decoder_for_ctc", "ctc_loss"),
    ]
    assert inputs_of(wires.loss)["target_length"] == "multiply_batch.out_y_len"
    plain = replace(model(), multiplier=None, augmentation=None)
    assert len(Dag([connect(plain, data_layer, training=True).loss]).nodes) == 4


def test_intermediate_ctc_adds_a_loss_in_training_and_nothing_in_evaluation(data_layer: DataLayerNM) -> None:
    block = {"filters": 8, "repeat": 1, "kernel": 3, "stride": 2, "dilation": 1, "dropout": 0.0, "residual": False}
    encoder = nemo_asr.JasperEncoder(
        jasper=[{**block, "filters": 6}, block], activation="relu", feat_in=16, intermediate_block=0
    )
    middle = {
        "intermediate_decoder": IntermediateDecoderForCTC(feat_in=6, num_classes=2, share=0.25),
        "intermediate_loss": nemo_asr.CTCLossNM(num_classes=2),
    }
    whole = replace(model(), encoder=encoder, intermediate=middle, augmentation=None)
    of_both, of_end = (connect(each, data_layer, training=True) for each in (whole, replace(whole, intermediate={})))
    loss, plain = of_both.loss, of_end.loss
    assert loss is not None
    assert plain is not None
    assert {name: part.weight for name, part in of_both.losses.items()} == {"ctc": 0.75, "intermediate": 0.25}
    assert [part.loss for part in of_both.losses.values()] == [loss.call.inputs[f"loss_{number}"] for number in (1, 2)]
    assert [part.loss for part in of_end.losses.values()] == [plain]
    assert inputs_of(loss.call.inputs["loss_2"])["input_length"] == "jasper_encoder.intermediate_lengths"
    of_training, of_plain, of_evaluation = (
        {node.module for node in Dag([each]).nodes} for each in (loss, plain, connect(whole, data_layer).loss)
    )
    assert of_training - of_plain == {*middle.values(), loss.producer}
    assert of_evaluation == of_plain - {whole.multiplier}


def test_a_family_that_leaves_modules_of_training_out_is_told_of(data_layer: DataLayerNM) -> None:
    forgotten = replace(model(), intermediate={"intermediate_decoder": IntermediateDecoderForCTC(6, 2)})

    class Forgetful(CTC):
        def losses(self, modules, log_probs, others, labels, training):  # type: ignore[no-untyped-def]
            return super().losses(modules, log_probs, others, labels, training=False)

    FAMILIES["forgetful"] = Forgetful()
    try:
        with pytest.raises(UsageError, match="family forgetful does not connect intermediate_decoder"):
            connect(replace(forgotten, family="forgetful"), data_layer, training=True)
    finally:
        del FAMILIES["forgetful"]


def test_recordings_without_texts_have_predictions_only(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(16000, np.float32), 16000)
    wires = connect(model(), nemo_asr.AudioFilesDataLayer([str(tmp_path / "a.wav")]))
    assert (wires.loss, wires.transcripts, wires.transcript_lengths) == (None, None, None)
    with pytest.raises(UsageError, match="audio_files_data_layer: the data layer gives no texts"):
        wires.scored  # noqa: B018
    assert wires.predictions.producer.label == "greedy_ctc_decoder"


class LossOfTargets(LossNM):
    """Its ports are in another order than those of the CTC loss."""

    input_ports: Ports = {
        "target_length": NeuralType("B", LengthsType()),
        "input_length": NeuralType("B", LengthsType()),
        "targets": NeuralType("B T", LabelsType()),
        "log_probs": NeuralType("B T D", LogprobsType()),
        "weights": NeuralType("B", LabelsType(), optional=True),
    }
    output_ports: Ports = {"loss": NeuralType(None, LossType())}

    def _loss_function(  # type: ignore[override]  # each loss has parameters of its own
        self,
        target_length: torch.Tensor,
        input_length: torch.Tensor,
        targets: torch.Tensor,
        log_probs: torch.Tensor,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return log_probs.sum()


def test_ports_in_another_order_get_their_wires_by_type(data_layer: DataLayerNM) -> None:
    inputs = inputs_of(connect(replace(model(), loss=LossOfTargets()), data_layer).loss)
    assert inputs["log_probs"] == "jasper_decoder_for_ctc.output"
    assert inputs["input_length"] == "jasper_encoder.encoded_lengths"
    assert inputs["target_length"] == "audio_to_text_data_layer.transcript_length"


def test_what_does_not_fit_is_the_ports_own_error(data_layer: DataLayerNM) -> None:
    with pytest.raises(NeuralPortNmTensorMismatchError, match=r"jasper_encoder\.audio_signal cannot take audio_to_mel"):
        connect(model(features=80), data_layer)
    audio, _ = signals_of(data_layer())
    with pytest.raises(NeuralPortNmTensorMismatchError, match=r"audio_signal cannot take audio_to_text"):
        connect_by_type(model().encoder, audio)
    with pytest.raises(NeuralPortNameMismatchError, match=r"not connected: .*wanted targets"):
        connect_by_type(model().loss, *connect_by_type(model().decoder, *encoded(data_layer)))


def encoded(data_layer: DataLayerNM) -> list[Signal]:
    shared = model()
    audio, _ = signals_of(data_layer())
    return connect_by_type(shared.encoder, *connect_by_type(shared.preprocessor, audio))


def test_data_without_audio_are_refused() -> None:
    with pytest.raises(UsageError, match=r"points: the data layer gives no audio: got x, y"):
        connect(model(), Points())


def evaluated(model: Model, folder: Path, **reading: object) -> list[NmTensor]:
    arguments: dict[str, object] = {"labels": LABELS, "shuffle": False, **reading}
    return connect(model, nemo_asr.AudioToTextDataLayer(str(folder / "m.json"), batch_size=1, **arguments)).scored


def test_an_evaluation_that_is_as_the_training_has_nothing_to_tell(data_layer: DataLayerNM, tmp_path: Path) -> None:
    shared = model()
    training = Dag([connect(shared, data_layer, training=True).scored[0]])
    no_dither = replace(shared, preprocessor=nemo_asr.AudioToMelSpectrogramPreprocessor(features=16, dither=0.0))
    for other in (shared, no_dither, replace(shared, search=nemo_asr.GreedyCTCDecoder())):
        assert differences_from_training(training, Dag(evaluated(other, tmp_path))) == ([], [])


@pytest.mark.parametrize(
    ("changes", "reading", "told"),
    [
        ({}, {"labels": ["b", "a"]}, ["audio_to_text_data_layer.labels is not that of training: got 'b' at 0, wanted"]),
        ({}, {"labels": [*LABELS, "c"]}, ["labels is not that of training: got 3 entries, wanted 2"]),
        ({}, {"trim_silence": True}, ["trim_silence is not that of training: got True, wanted False"]),
        (
            {"preprocessor": {"features": 16, "window_stride": 0.02, "dither": 0.0}},
            {},
            ["preprocessor.window_stride is not that of training: got 0.02, wanted 0.01"],
        ),
        ({"decoder": {"feat_in": 8, "num_classes": 2}}, {}, ["(JasperDecoderForCTC) has weights of its own"]),
    ],
)
def test_an_evaluation_that_differs_from_the_training_is_told(
    changes: dict[str, dict[str, object]],
    reading: dict[str, object],
    told: list[str],
    data_layer: DataLayerNM,
    tmp_path: Path,
) -> None:
    shared = model()
    training = Dag([connect(shared, data_layer, training=True).scored[0]])
    made = {role: type(getattr(shared, role))(**arguments) for role, arguments in changes.items()}
    wrong, without_effect = differences_from_training(
        training, Dag(evaluated(replace(shared, **made), tmp_path, **reading))
    )
    assert len(wrong) == len(told)
    assert all(part in text for part, text in zip(told, wrong, strict=True))
    assert without_effect == []


def test_differences_of_evaluations_are_logged_before_the_first_step(
    data_layer: DataLayerNM, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shared = model()
    stride = replace(shared, preprocessor=nemo_asr.AudioToMelSpectrogramPreprocessor(features=16, window_stride=0.02))
    augmented = nemo_asr.AudioToTextDataLayer(str(tmp_path / "m.json"), LABELS, 1, shuffle=True)
    wires = {
        "good": evaluated(shared, tmp_path),
        "labels": evaluated(shared, tmp_path, labels=["b", "a"]),
        "stride": evaluated(stride, tmp_path),
        "augmented": connect(shared, augmented, training=True).scored,
    }
    callbacks = [
        EvaluatorCallback(each, lambda *_: None, lambda _: {}, eval_step=1, name=name) for name, each in wires.items()
    ]
    factory = NeuralModuleFactory(placement=DeviceType.CPU, set_default=False)
    loss = connect(shared, data_layer, training=True).loss
    assert loss is not None
    factory.train([loss], callbacks=callbacks, optimizer="sgd", optimization_params={"max_steps": 1, "lr": 0.01})
    written = capfd.readouterr()
    lines = [line for line in (written.err + written.out).splitlines() if "Evaluation " in line]  # warnings first
    told = [line for line in lines if "training" in line or "no effect" in line]
    assert len(told) == 5
    assert "Evaluation labels: audio_to_text_data_layer.labels is not that of training: got 'b' at 0" in told[0]
    assert "Evaluation stride: audio_to_mel_spectrogram_preprocessor.window_stride is not that of" in told[1]
    assert "Evaluation augmented: shuffle=True has no effect in evaluation: every item comes once" in told[2]
    assert "Evaluation augmented: multiply_batch (MultiplyBatch) has no effect in evaluation" in told[3]
    assert "Evaluation augmented: spectrogram_augmentation (SpectrogramAugmentation) has no" in told[4]
