"""Texts that do not fit the frames of a model, or its decoder: they are listed, and not trained on.

The loss says what fits frames; an attention decoder has positions for so many labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nemo_asr.data.check import Finding
from nemo_asr.data.speech_data_layer import Infeasible, Misfit, SpeechDataLayer, in_one_part
from nemo_asr.run.manifest import Manifest
from nemo_asr.run.text.parser import CharParser
from nemo_asr.tasks import kept_misfits
from nemo_asr.tasks.family import FAMILY_OF_TASK, Model, connect, family_of
from nemo_asr.tasks.recipe import Recipe
from nemo_lite import Dag, DataLayerNM, NeuralModule, NeuralModuleFactory, NmTensor, logging
from nemo_lite.base.errors import DataError, UsageError, listed
from nemo_lite.core.shapes import frames_of

_MAX_SHOWN = 20
_SHOWN_CHARACTERS = 60


def leave_out_infeasible(
    data_layer: DataLayerNM,
    frames: NmTensor,
    loss: NeuralModule | None = None,
    factory: NeuralModuleFactory | None = None,
) -> int:
    """Train without the utterances whose frames, after the encoder's stride, cannot hold their text; list them.

    Those that fit, but not when perturbations make them as short as they can, are listed too, and kept: the steps in
    which they do not fit leave them out. Audio is read only where silence at its ends is left out. A data layer of
    another kind than `SpeechDataLayer` keeps all.

    Args:
        data_layer: the utterances.
        frames: the wire whose time axis the text has to fit in: ``Wires.frames``.
        loss: the loss of training; its ``frames_needed(labels)`` says how many frames a text of these label ids
            needs, at most two for each label; a loss without it takes any text. None: as CTC.
        factory: its ranks share the work, and all call this. None: this process does all of it.

    Returns:
        How many there are.

    Raises:
        DataError: all are.
    """
    if isinstance(data_layer, SpeechDataLayer):
        data_layer.leave_out_textless()
    misfits = find_infeasible(data_layer, frames, loss, training=True, factory=factory)
    sometimes, always = ([misfit for misfit in misfits if misfit.is_always is wanted] for wanted in (False, True))
    _list(data_layer, sometimes, "steps that make them too short leave them out")
    _list(data_layer, always, "they are left out of training")
    if always and isinstance(data_layer, SpeechDataLayer):
        data_layer.leave_out([misfit.row for misfit in always], "with a text that does not fit its frames")
    return len(always)


def warn_of_infeasible(
    data_layer: DataLayerNM,
    frames: NmTensor,
    loss: NeuralModule | None = None,
    factory: NeuralModuleFactory | None = None,
) -> int:
    """List the utterances of an evaluation set whose frames cannot hold their text; returns how many.

    Arguments as of :func:`leave_out_infeasible`.
    """
    misfits = find_infeasible(data_layer, frames, loss, factory=factory)
    _list(data_layer, misfits, "they count as they are recognised, and their loss is infinite")
    return len(misfits)


def leave_out_long(data_layer: DataLayerNM, model: Model, factory: NeuralModuleFactory | None = None) -> int:
    """Train without the texts that have more labels than an attention decoder has positions; list them.

    Args:
        data_layer: the utterances; another one than `SpeechDataLayer` keeps all.
        model: a decoder of its modules says ``most_labels``; others take texts of any length.
        factory: as of :func:`leave_out_infeasible`.

    Returns:
        How many there are.

    Raises:
        DataError: all are.
    """
    found = _long_texts(data_layer, model, factory)
    for _, line in found[:_MAX_SHOWN]:
        logging.warning("%s", line)
    if found and isinstance(data_layer, SpeechDataLayer):
        more = f" ({len(found) - _MAX_SHOWN} more are not listed)" if len(found) > _MAX_SHOWN else ""
        count = f"{len(found)} of {len(data_layer)} texts are longer than the decoder's positions{more}"
        logging.warning(f"{data_layer.utterances.name}: {count}: they are left out of training")
        data_layer.leave_out([row for row, _ in found], "with a text that is longer than the decoder's positions")
    return len(found)


def refuse_long(data_layer: DataLayerNM, model: Model, factory: NeuralModuleFactory | None = None) -> None:
    """See that an evaluation set has no such text: each of its utterances counts.

    Arguments as of :func:`leave_out_long`.

    Raises:
        DataError: a text has more labels than the decoder has positions: the first few, and how many.
    """
    if found := _long_texts(data_layer, model, factory):
        raise DataError(listed([f"{line}; cut the utterance, or leave it out" for _, line in found], len(found)))


def _long_texts(data_layer: DataLayerNM, model: Model, factory: NeuralModuleFactory | None) -> list[tuple[int, str]]:
    """The position of each utterance with such a text, and a line about it."""
    limits = [getattr(module, "most_labels", None) for module in model.modules.values()]
    known = [limit for limit in limits if limit is not None]
    if not known or not isinstance(data_layer, SpeechDataLayer):
        return []
    share_work, most = in_one_part if factory is None else factory.share_work, min(known)
    problem = f"the decoder has positions for {most}"
    return [
        (row, f"{data_layer.place_of(row)}: the text has {count} labels, {problem}")
        for row, count in data_layer.longer_than(most, share_work)
    ]


def find_infeasible(
    data_layer: DataLayerNM,
    frames: NmTensor,
    loss: NeuralModule | None = None,
    *,
    training: bool = False,
    factory: NeuralModuleFactory | None = None,
) -> list[Infeasible]:
    """The utterances whose frames cannot hold their text; in training also those that may become too short.

    Of a large set of JSON lines the rows are kept for the next run, see `kept_misfits`.
    """
    default = family_of(FAMILY_OF_TASK["transcription"])
    frames_needed: Callable[[Sequence[int]], int] | None = getattr(loss or default, "frames_needed", None)
    if frames_needed is None or not isinstance(data_layer, SpeechDataLayer):
        return []
    try:
        num_frames = frames_of(Dag([frames]), frames)
    except UsageError as error:
        logging.warning("Transcripts are not compared with the encoder's output: %s", error)
        return []
    share_work = in_one_part if factory is None else factory.share_work
    from_first: Callable[[Callable[[], Any]], Any] = (lambda make: make()) if factory is None else factory.from_first
    name: str = from_first(lambda: kept_misfits.name_of(data_layer, num_frames, loss, training))
    kept: list[Misfit] | None = from_first(lambda: kept_misfits.read(name, len(data_layer))) if name else None
    misfits = data_layer.misfits(num_frames, frames_needed, training, share_work) if kept is None else kept
    if name and kept is None:
        from_first(lambda: kept_misfits.write(name, misfits))
    return [data_layer.infeasible_of(misfit) for misfit in misfits]


def _list(data_layer: DataLayerNM, misfits: Sequence[Infeasible], consequence: str) -> None:
    for infeasible in misfits[:_MAX_SHOWN]:
        logging.warning("%s", infeasible)
    if misfits and isinstance(data_layer, SpeechDataLayer):
        more = f" ({len(misfits) - _MAX_SHOWN} more are not listed)" if len(misfits) > _MAX_SHOWN else ""
        sometimes = "" if misfits[0].is_always else " always"
        count = f"{len(misfits)} of {len(data_layer)} texts do not{sometimes} fit their frames{more}"
        logging.warning(f"{data_layer.utterances.name}: {count}: {consequence} (a smaller stride gives more frames)")


_KIND = "frames"
_TOO_LONG = "text is longer than the decoder's positions"


def misfits_in(recipe: Recipe, manifests: str, training: bool, strict: bool = False) -> list[Finding]:
    """Findings of ``nemo-lite data check`` about texts, labels, frames and positions: what never fits is a problem.

    What the labels cannot write of a text is told too: letters, numbers that are not read out, marks such as ``<unk>``.

    Args:
        recipe: of the model; its labels, its stride and its decoder's positions count.
        manifests: the set; several manifests are separated by commas.
        training: whether the set is trained on: then perturbations may make audio shorter.
        strict: what the labels cannot write is a problem, as training with ``strict_data`` takes it.
    """
    try:
        data_layer = recipe.data_layer(manifests, training=training, batch_size=1)
        # By the manifest: for training the data layer leaves out the texts of which the labels can write nothing.
        manifest = Manifest.open(manifests, lenient=True)
        unwritten = _unwritten(manifest, data_layer.new_parser()) if isinstance(data_layer, SpeechDataLayer) else []
        labels = f"{manifests}: {len(unwritten)} of {len(manifest)} utterances with what the labels cannot write"
        model = recipe.model(with_weights=False)
        frames = connect(model, data_layer, training=training).frames
        misfits = find_infeasible(data_layer, frames, model.loss, training=training)
        long = [line for _, line in _long_texts(data_layer, model, None)]
    except DataError as error:
        return [Finding(_KIND, True, f"{manifests}: the model's data layer cannot read the set", [str(error)])]
    never = [str(misfit) for misfit in misfits if misfit.is_always]
    sometimes = [str(misfit) for misfit in misfits if not misfit.is_always]
    problem = "text does not fit the model's frames"
    findings = [
        Finding("labels", strict, f"{labels}; training leaves that out of the texts", unwritten),
        Finding(_KIND, True, f"{manifests}: {len(never)} of {len(data_layer)} utterances whose {problem}", never),
        Finding(
            _KIND, False, f"{manifests}: {len(sometimes)} whose {problem} when perturbations shorten them", sometimes
        ),
        Finding("positions", True, f"{manifests}: {len(long)} of {len(data_layer)} utterances whose {_TOO_LONG}", long),
    ]
    return [finding for finding in findings if finding.details]


def _unwritten(manifest: Manifest, parser: CharParser) -> list[str]:
    """A line for each utterance with letters, numbers or marks that the labels lack."""
    lines = []
    for row in range(len(manifest)):
        utterance = manifest.utterance(row)
        try:
            parser.check_letters(utterance.text, "")
        except DataError as error:
            lines.append(f'{utterance.place}: {error.got} of "{utterance.text[:_SHOWN_CHARACTERS]}"')
    return lines
