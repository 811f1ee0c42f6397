"""AudioToTextDataLayer, and transcripts that stand in files of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_asr.arguments import BatchSeconds, BatchSize, Duration, SampleRate, Unusable, Workers
from nemo_asr.audio.augmentation import AudioAugmentor, Perturbations
from nemo_asr.data.manifest import Manifest, ManifestPaths, check_limits
from nemo_asr.data.speech_data_layer import SpeechDataLayer, parser_maker, with_file_durations
from nemo_asr.data.utterances import ItemTensors, Reading
from nemo_asr.scoring.rates import Clusters, clusters_of
from nemo_lite import DataLayerNM
from nemo_lite.backends.pytorch.data.cost_sampling import Batching, CostWords
from nemo_lite.files import Content, digest_of, make_writable_folder, write_atomically

# AudioToTextDataLayer: transcribed speech from manifests. What it shares with other sources: `speech_data_layer`.


_WORDS = CostWords("max_batch_seconds", "utterance", " s", "raise it, or lower max_duration")


class AudioToTextDataLayer(SpeechDataLayer):
    """Utterances of JSON-lines manifests: audio (B, T) at ``sample_rate``, label ids (B, U), and their lengths (B,).

    Every manifest line is checked here; of at most 20,000 lines, evenly spread, also whether the audio file is there
    and the vocabulary can write the text. What cannot be used later (a damaged file) is skipped in training, counted,
    and listed at the end of the epoch; see ``max_corrupt``.

    Durations: an utterance is ``duration`` seconds from its ``offset``, or what the file has of them. Files that are
    longer or shorter by more than 0.1 s and 1 % are counted: of 1,000 files, evenly spread, before training, and of all
    where one of these differs; otherwise while they are read. Durations of 0 or less are left out and counted.
    Texts may be missing, empty, or nothing that the vocabulary can write: training leaves such utterances out and
    counts them, evaluation scores them against the text as it is.
    Relative paths start at the manifest's folder; one that leads nowhere there starts at the working directory.

    Args:
        manifest_filepath: one manifest, several separated by commas, or a list.
        labels: the vocabulary; a label's position is its id.
        batch_size: utterances in a batch on one rank; -1 for the whole set.
        sample_rate: samples a second; files of another rate are resampled.
        int_values: read through 32-bit integers: floats beyond full scale are clipped.
        bos_id: id before each text, or None.
        eos_id: id after each text, or None.
        pad_id: id that fills up shorter texts; None is 0.
        min_duration: seconds; shorter utterances are left out and counted.
        max_duration: seconds; longer utterances are left out and counted. None: no limit.
        normalize_transcripts: let the parser rewrite texts (case, white space, numbers), or take them as they are.
        trim_silence: leave out what is more than 60 dB below the loudest part at both ends.
        load_audio: False gives audio of no samples, for work on the texts.
        drop_last: in training, leave out the utterances that do not fill the last step.
        shuffle: in training, another order in each epoch.
        num_workers: processes that load batches; 0 loads in this one. None: 0, or a GPU's share of the cores.
        augmentor: perturbations in training, ``{name: {prob: ..., ...}}`` or an `AudioAugmentor`.
        bucketing: in training, utterances of similar duration in a batch, and batches of equal cost on all ranks.
        max_batch_seconds: with bucketing, at most so many seconds in a batch, padding included.
        max_corrupt: how many utterances may be unusable on all ranks together (below 1: which share) before the run
            ends. None: in training one in a thousand, or ten where that is more, but never over a tenth; in evaluation
            none.
        parser: how texts are rewritten. ``auto``: by ``language`` and labels; as ``base`` where a digit is a label.
            ``en``: English; numbers, dates, units, abbreviations and symbols become words, Latin letters with accents
            ASCII. ``base``: any language; Unicode NFC, single spaces, no letter becomes another one. ``none``: as they
            are. Except with ``none`` texts take the case of the labels, where these have one case only.
        language: of the texts, with ``parser: auto``: ``en`` reads them as English, another code (``de``, ``zh``)
            reads numbers out in that language, ``none`` leaves them. None: what the script of the labels tells.
        pin_memory: page-locked tensors, which go to a GPU faster. None: where there is one.
        strict_data: a duration that is not its file's, a path that does not start at the manifest's folder, and a line
            without a text are errors, and so is a text with letters that the labels lack.
        strip_marks: leave out the vowel marks of Arabic and Hebrew, and tatweel, in training, references and what is
            compared with them. None: where the labels have none. Not with ``parser: none`` and ``en``.
        name: the module's name.

    Raises:
        UsageError: arguments that contradict each other.
        DataError: a manifest that is missing, empty or has lines that are not valid; audio files that are not there.
        ConfigError: labels that cannot be a vocabulary.
    """

    def __init__(
        self,
        manifest_filepath: ManifestPaths,
        labels: Sequence[str],
        batch_size: BatchSize,
        sample_rate: SampleRate = 16000,
        int_values: bool = False,
        bos_id: int | None = None,
        eos_id: int | None = None,
        pad_id: int | None = None,
        min_duration: Duration | None = 0.1,
        max_duration: Duration | None = None,
        normalize_transcripts: bool = True,
        trim_silence: bool = False,
        load_audio: bool = True,
        drop_last: bool = False,
        shuffle: bool = True,
        num_workers: Workers | None = None,
        augmentor: Perturbations | AudioAugmentor | None = None,
        bucketing: bool = False,
        max_batch_seconds: BatchSeconds | None = None,
        max_corrupt: Unusable | None = None,
        parser: str = "auto",
        language: str | None = None,
        pin_memory: bool | None = None,
        strict_data: bool = False,
        name: str | None = None,
        strip_marks: bool | None = None,
    ) -> None:
        # What costs nothing to check comes before a large manifest is read.
        new_parser = parser_maker(labels, parser, normalize_transcripts, language, strip_marks)
        check_limits(min_duration, max_duration)
        reading = Reading(sample_rate, int_values, trim_silence, load_audio, bos_id, eos_id, pad_id, strict_data)
        batching = Batching(batch_size, shuffle, bucketing, drop_last, max_batch_seconds, _WORDS)
        written = Manifest.open(manifest_filepath, strict=strict_data, lenient=not strict_data)
        manifest = with_file_durations(written) if load_audio and not strict_data else written
        reading = replace(reading, durations_told=manifest is not written)
        super().__init__(
            manifest.between(min_duration, max_duration),
            new_parser,
            reading=reading,
            batching=batching,
            augmentor=augmentor,
            max_corrupt=max_corrupt,
            num_workers=num_workers,
            pin_memory=pin_memory,
            name=name,
        )

    @property
    def _dataset(self) -> ItemTensors:
        """Items by position, for scripts of NeMo that read them."""
        return ItemTensors(self.utterances, self._new_dataset())

    @property
    def manifest(self) -> Manifest:
        """The utterances, and what was left out."""
        assert isinstance(self.utterances, Manifest)
        return self.utterances

    def fingerprint(self) -> Mapping[str, Any]:
        """Also the durations: they follow from the audio files, which may differ between machines."""
        durations = self.durations[~self._textless]  # the same before and after training left the others out
        return {**super().fingerprint(), f"durations of {self.label}": Content(digest_of(durations.tobytes()))}


# Transcripts of an evaluated set in a file: what was said and what was recognised, a line for each utterance.


def write_transcripts(
    path: Path, data_layer: DataLayerNM, items: Sequence[int], references: Sequence[str], hypotheses: Sequence[str]
) -> None:
    """Write one JSON object a line, all or nothing: place, audio_filepath, offset, duration, reference, hypothesis.

    ``speaker`` is there where the manifest has it, as a text. Where the data layer knows no audio files, an object has
    only the place and the texts.

    Args:
        path: the file, made with its folder or replaced.
        data_layer: where the utterances come from.
        items: their positions in it.
        references: what was said, one for each item.
        hypotheses: what was recognised.

    Raises:
        UsageError: it cannot be written.
        DataError: the manifest has changed since it was opened.
    """
    rows = zip(items, references, hypotheses, strict=True)
    objects = ({**_about(data_layer, item), "reference": said, "hypothesis": heard} for item, said, heard in rows)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in objects)
    make_writable_folder(path.parent)
    write_atomically(path, lambda file: file.write_text(lines, encoding="utf-8"))


def _about(data_layer: DataLayerNM, item: int) -> dict[str, Any]:
    if not isinstance(data_layer, SpeechDataLayer):
        return {"place": data_layer.place_of(item)}
    utterance = data_layer.utterance_of(item)
    where: dict[str, Any] = {"offset": utterance.offset, "duration": utterance.duration}
    if utterance.speaker is not None:
        where["speaker"] = speaker_name(utterance.speaker)
    return {"place": utterance.place, "audio_filepath": utterance.audio_path, **where}


def speaker_name(speaker: object) -> str:
    """A manifest's ``speaker``, which may be any JSON value, as a text."""
    return speaker if isinstance(speaker, str) else json.dumps(speaker, ensure_ascii=False, sort_keys=True)


def references_in_data(data_layer: DataLayerNM, items: Sequence[int], texts: Sequence[str]) -> list[str]:
    """The texts against which the utterances at these positions are scored: see `CharParser.reference`.

    A missing text is empty, so every word said about it is an insertion. Where the data layer does not read texts, what
    the label ids say.

    Args:
        data_layer: where the utterances come from.
        items: their positions in it.
        texts: what their label ids say, one for each: without what the vocabulary cannot write.

    Raises:
        DataError: the manifest has changed since it was opened.
    """
    if not isinstance(data_layer, SpeechDataLayer):
        return list(texts)
    parser = data_layer.new_parser()
    return [parser.reference(data_layer.utterance_of(item).text) for item in items]


def hypotheses_in_data(data_layer: DataLayerNM, texts: Sequence[str]) -> list[str]:
    """Texts that a model wrote, as they are compared with `references_in_data`: see `CharParser.hypothesis`.

    Args:
        data_layer: where the utterances come from.
        texts: what was recognised.
    """
    if not isinstance(data_layer, SpeechDataLayer):
        return list(texts)
    return list(map(data_layer.new_parser().hypothesis, texts))


def clusters_in_data(data_layer: DataLayerNM, items: Sequence[int]) -> Clusters | None:
    """Which of the utterances at these positions belong together, by speaker or recording; None: that is not known.

    Raises:
        DataError: the manifest has changed since it was opened.
    """
    if not isinstance(data_layer, SpeechDataLayer):
        return None
    utterances = [data_layer.utterance_of(item) for item in items]
    speakers = [None if utterance.speaker is None else speaker_name(utterance.speaker) for utterance in utterances]
    return clusters_of(speakers, [utterance.audio_path for utterance in utterances])
