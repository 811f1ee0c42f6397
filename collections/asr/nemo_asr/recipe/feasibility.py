"""Transcripts longer than the encoder's output: CTC cannot align them."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_asr.data.preflight import Infeasible
from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_lite import Dag, DataLayerNM, NeuralModule, NmTensor, logging
from nemo_lite.core.shapes import frames_of
from nemo_lite.errors import UsageError

_MAX_SHOWN = 20


def leave_out_infeasible(data_layer: DataLayerNM, log_probs: NmTensor, loss: NeuralModule | None = None) -> int:
    """Train without the utterances whose frames, after the encoder's stride, cannot hold their text; list them.

    Their CTC loss is infinite. Those that fit, but not when perturbations make them as short as they can, are listed
    too, and kept: the steps in which they do not fit leave them out. Audio is read only where silence at its ends is
    left out. A data layer of another kind than `SpeechDataLayer` keeps all.

    Args:
        data_layer: the utterances.
        log_probs: the wire whose time axis the text has to fit in.
        loss: the loss of training; only CTC needs a frame for each label. None: CTC.

    Returns:
        How many there are.

    Raises:
        DataError: all are.
    """
    if isinstance(data_layer, SpeechDataLayer):
        data_layer.leave_out_textless()
    found = find_infeasible(data_layer, log_probs, loss, training=True)
    _list(data_layer, [each for each in found if not each.is_always], "steps that make them too short leave them out")
    left_out = [each for each in found if each.is_always]
    _list(data_layer, left_out, "they are left out of training")
    if left_out and isinstance(data_layer, SpeechDataLayer):
        data_layer.leave_out([each.row for each in left_out], "with a text that does not fit its frames")
    return len(left_out)


def warn_of_infeasible(data_layer: DataLayerNM, log_probs: NmTensor, loss: NeuralModule | None = None) -> int:
    """List the utterances of an evaluation set whose frames cannot hold their text; returns how many."""
    found = find_infeasible(data_layer, log_probs, loss)
    _list(data_layer, found, "they count as they are recognised, and their loss is infinite")
    return len(found)


def find_infeasible(
    data_layer: DataLayerNM, log_probs: NmTensor, loss: NeuralModule | None = None, *, training: bool = False
) -> list[Infeasible]:
    """The utterances whose frames cannot hold their text; in training also those that may become too short.

    None where the loss does not say ``is_ctc``: others may take more labels than frames.
    """
    if not isinstance(data_layer, SpeechDataLayer) or not (loss is None or getattr(loss, "is_ctc", False)):
        return []
    try:
        num_frames = frames_of(Dag([log_probs]), log_probs)
    except UsageError as error:
        logging.warning("Transcripts are not compared with the encoder's output: %s", error)
        return []
    return data_layer.infeasible(num_frames, training=training)


def _list(data_layer: DataLayerNM, found: Sequence[Infeasible], consequence: str) -> None:
    for infeasible in found[:_MAX_SHOWN]:
        logging.warning("%s", infeasible)
    if found and isinstance(data_layer, SpeechDataLayer):
        more = f" ({len(found) - _MAX_SHOWN} more are not listed)" if len(found) > _MAX_SHOWN else ""
        sometimes = "" if found[0].is_always else " always"
        count = f"{len(found)} of {len(data_layer)} texts do not{sometimes} fit their frames{more}"
        logging.warning(f"{data_layer.utterances.name}: {count}: {consequence} (a smaller stride gives more frames)")
