"""Find when each word of known texts is said; cut long recordings with their texts into utterances."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import nemo_asr
import nemo_lite
from nemo_asr.audio.segments import DEFAULT_CUTTING, Cutting, Span, frame_levels, frame_samples, speech_spans
from nemo_asr.cli.transcribe import Segments, check_segments, cutting_of, file_names, is_folder, to_file
from nemo_asr.corpora.writing import write_manifest
from nemo_asr.data.manifest import Utterance
from nemo_asr.options import OwnModules
from nemo_asr.text.parser import CharParser
from nemo_asr.transcribe.alignment import (
    Alignment,
    Part,
    SaidText,
    Sentence,
    alignment_of,
    as_ctm,
    as_json,
    as_subtitles,
    as_textgrid,
    delay_of,
    find_text,
    frames_of_parts,
    manifest_lines,
    sentences_of,
)
from nemo_asr.transcribe.engine import RowFrames, log_probs_of_rows
from nemo_asr.transcribe.inputs import BATCH_SECONDS, BATCH_SIZE, Recording, named
from nemo_asr.transcribe.model import TrainedModel
from nemo_asr.transcribe.onnx_model import SUFFIX
from nemo_asr.transcribe.texts import open_texts, text_layer
from nemo_lite.config import Between
from nemo_lite.errors import DataError, UsageError, counted, marked, printable
from nemo_lite.files import check_replaceable, make_writable_folder
from nemo_lite.options import (
    Device,
    NotNegativeFloat,
    NotNegativeInt,
    OneLineParser,
    PositiveFloat,
    PositiveInt,
    arguments_of,
    fold_precision,
    option,
    seconds,
)
from nemo_lite.utils import logging

# Any: a namespace has no types.

PROGRAM = "nemo-lite align"
MOST_SECONDS = 3600.0  # of recordings whose frames are in memory at once, unless one alone is longer
_ENDINGS = {"textgrid": "TextGrid", "srt": "srt"}  # a file for each recording
_WRITERS: dict[str, Callable[[Alignment], str]] = {"textgrid": as_textgrid, "srt": as_subtitles}


@dataclass(frozen=True)
class Aligning(OwnModules):
    """What is written of aligned texts, and their batches.

    Attributes:
        format: what to write.
        out: file to write, or a folder for TextGrids and subtitles of several recordings (default: stdout).
        cut: write a manifest in which each sentence is an utterance, with a score; then JSON goes to --out alone.
        longest: most seconds of such an utterance; a longer sentence is cut at its longest pauses.
        min_score: leave utterances with a lower score out of the manifest.
        delay: seconds by which the model writes labels behind their sounds (default: measured where speech begins).
        segments: cut recordings at pauses, by their levels (energy), or compute them as they are (off).
        batch_size: most recordings in a batch.
        batch_seconds: most seconds of audio computed at once; longer recordings are cut into overlapping windows.
        num_workers: processes that read audio.
    """

    page: ClassVar[str] = "data"
    format: str = option("json", choices=("json", "ctm", "textgrid", "srt"))
    out: Path | None = option(None, metavar="PATH", type=Path)
    cut: Path | None = option(None, metavar="MANIFEST", type=Path)
    longest: PositiveFloat = option(20.0, needs="cut")
    min_score: Annotated[float, Between(-1e6, 0.0)] | None = option(None, needs="cut")
    delay: NotNegativeFloat | None = None
    segments: Literal["energy", "off"] = option("energy", page="segments")
    batch_size: PositiveInt = BATCH_SIZE
    batch_seconds: float = option(BATCH_SECONDS, type=seconds)
    num_workers: NotNegativeInt = 0


class AlignParser(OneLineParser):
    """The options of ``nemo-lite align``."""

    groups = (Aligning, Segments, Device)
    most_used = "format out cut longest min_score batch_size placement"
    pages = {
        "data": "what is written, batches, modules of your own",
        "segments": "where recordings are cut: pauses, lengths",
        "launching": "devices, precision",
    }

    def __init__(self) -> None:
        super().__init__(prog=PROGRAM, description="When each word of known texts is said")
        add = self.add_argument
        add("model", metavar="MODEL", help="a run's folder, a model folder, or a folder of checkpoints")
        add("manifests", metavar="MANIFEST", nargs="+", help="recordings with their texts")

    def check(self, parsed: Any) -> None:
        """What would have no effect ends the command."""
        super().check(parsed)
        fold_precision(self, parsed)
        for name in ("longest", "min_score") if parsed.cut is None else ():
            if getattr(parsed, name) != self.get_default(name):
                self.error(f"--{name} has no effect without --cut; leave it out")
        check_segments(self, parsed)
        for name in ("out", "cut"):
            path = getattr(parsed, name)
            setattr(parsed, name, path and path.expanduser())


def main(arguments: Sequence[str]) -> int:
    """Align, and tell on stderr how it went; results alone go to stdout.

    Returns:
        0; 1 where some texts could not be aligned, 2 where none could.

    Raises:
        UsageError: an ONNX file, or a place that cannot be written to.
        CheckpointError, DataError: the model or a manifest cannot be read.
    """
    args = AlignParser().parse_args(arguments)
    if args.model.endswith(SUFFIX):
        remedy = "give the model folder that it was exported from"
        raise UsageError("texts are aligned by a model folder, not by an ONNX file", place=args.model, remedy=remedy)
    with logging.patch_stdout_handler(sys.stderr):
        return _align(args)


def _align(args: Namespace) -> int:
    manifest = open_texts(args.manifests)
    utterances = [manifest.utterance(row) for row in range(len(manifest))]
    _check_places(args, utterances)
    factory = nemo_lite.NeuralModuleFactory(**arguments_of(args, Device))
    model = nemo_asr.load_model(args.model, factory=factory)
    parser = text_layer(model.recipe, list(manifest.paths)).new_parser()
    start = time.perf_counter()
    alignments, faults = list[Alignment](), list[str]()
    for result in aligned(args, model, parser, utterances, factory):
        if isinstance(result, str):
            faults.append(result)
        else:
            alignments.append(result)
    took = time.perf_counter() - start
    _write(args, alignments, is_one=len(utterances) == 1)
    for fault in faults:
        print(f"{PROGRAM}: {marked('error:')} {printable(fault)}", file=sys.stderr)
    audio = sum(alignment.duration for alignment in alignments)
    bad = f" ({len(faults)} more could not be aligned)" if faults else ""
    print(f"{counted(len(alignments), 'text')} aligned{bad}, {audio:.1f} s of audio in {took:.1f} s", file=sys.stderr)
    return 0 if not faults else 1 if alignments else 2


def aligned(
    args: Namespace,
    model: TrainedModel,
    parser: CharParser,
    utterances: Sequence[Utterance],
    factory: nemo_lite.NeuralModuleFactory,
) -> Iterator[Alignment | str]:
    """The alignment of each utterance, or why there is none, in their order.

    Frames of at most `MOST_SECONDS` of recordings are in memory at once, unless one recording is longer.
    """
    waiting: list[tuple[Recording, list[Sentence]]] = []
    for utterance in utterances:
        path = utterance.audio_path
        recording = Recording(
            path, path, offset=utterance.offset, duration=utterance.duration, channel=utterance.channel
        )
        try:
            sentences, recording = sentences_of(utterance.text, parser), recording.measured()
        except DataError as error:
            yield from _of_recordings(args, model, waiting, factory)
            waiting = []
            yield f"{utterance.place}: {named(recording, error)}"
            continue
        if waiting and sum(each.seconds for each, _ in waiting) + recording.seconds > MOST_SECONDS:
            yield from _of_recordings(args, model, waiting, factory)
            waiting = []
        waiting.append((recording, sentences))
    yield from _of_recordings(args, model, waiting, factory)


def _of_recordings(
    args: Namespace,
    model: TrainedModel,
    recordings: Sequence[tuple[Recording, list[Sentence]]],
    factory: nemo_lite.NeuralModuleFactory,
) -> Iterator[Alignment | str]:
    if not recordings:
        return
    card, reading = model.card, model.recipe.reading
    rows, faults, spans_of = list[Recording](), dict[int, str](), list[list[tuple[int, float]] | str]()
    for recording, _ in recordings:
        try:
            parts = list(_parts(recording, cutting_of(args)))
        except DataError as error:
            spans_of.append(named(recording, error))
            continue
        spans_of.append([(len(rows) + number, onset) for number, (_, onset) in enumerate(parts)])
        rows += [part for part, _ in parts]
    computed: dict[int, RowFrames] = {}
    frame_seconds = card.frame_seconds
    for frames in log_probs_of_rows(
        model.modules,
        card.sample_rate,
        rows,
        faults,
        batch_size=args.batch_size,
        batch_seconds=args.batch_seconds,
        num_workers=args.num_workers,
        factory=factory,
        trim_silence=reading.trim_silence,
        int_values=reading.int_values,
    ):
        computed[frames.row] = frames
        frame_seconds = frame_seconds or frames.frame_seconds
    results = list[SaidText | str]()
    for (recording, sentences), own in zip(recordings, spans_of, strict=True):
        reason = own if isinstance(own, str) else next((faults[row] for row, _ in own if row in faults), None)
        if isinstance(own, str) or reason is not None:
            results.append(str(reason))
            continue
        first, in_row = recording.offset or 0.0, list[Part]()
        for row, onset in own:
            start = (rows[row].offset or 0.0) - first if rows[row] is not recording else 0.0
            in_row.append(Part(computed[row].log_probs, start + computed.pop(row).start, onset))
        try:
            if not in_row:
                raise DataError("nobody speaks in the recording", remedy="give --segments off to align all of it")
            results.append(find_text(frames_of_parts(in_row, frame_seconds), sentences, card.labels, recording))
        except DataError as error:
            results.append(named(recording, error))
    texts = [text for text in results if not isinstance(text, str)]
    delay = delay_of(texts) if args.delay is None else args.delay
    if texts:
        logging.info("Labels come %.0f ms behind their sounds; times are those of the sounds", 1000 * delay)
    longest = args.longest if args.cut else float("inf")
    for text in results:
        yield text if isinstance(text, str) else alignment_of(text, card.labels, delay, longest)


def _parts(recording: Recording, cutting: Cutting | None) -> Iterator[tuple[Recording, float]]:
    """The parts of a recording, and when somebody begins to speak in each, in seconds from its beginning.

    Raises:
        DataError: it cannot be read.
    """
    with recording.pieces() as (pieces, sample_rate):
        levels, seconds = frame_levels(pieces, sample_rate), frame_samples(sample_rate) / sample_rate
    usual = cutting or DEFAULT_CUTTING
    onsets = [span.start for span in speech_spans(levels, seconds, replace(usual, padding=0.0))]
    if cutting is None:
        yield recording, onsets[0] if onsets else 0.0
        return
    for span in speech_spans(levels, seconds, cutting):
        span = Span(span.start, min(span.end, recording.seconds))
        inside = [onset for onset in onsets if span.start <= onset < span.end]
        yield recording.part(span), inside[0] if inside else span.start


def _check_places(args: Namespace, utterances: Sequence[Utterance]) -> None:
    """UsageError where the results have no place to go to; before any work is done."""
    several = args.format in _WRITERS and len(utterances) > 1
    needs_folder = several or (args.format in _WRITERS and is_folder(args.out))
    if several and args.out is None:
        problem, got = f"{args.format} files of several recordings need a folder", f"{len(utterances)} recordings"
        raise UsageError(problem, got=got, remedy="give --out FOLDER")
    for path, for_folder in ((args.out, needs_folder), (args.cut, False)):
        if path is not None:
            if not for_folder:
                check_replaceable(path)
            make_writable_folder(path if for_folder else path.parent)


def _write(args: Namespace, alignments: Sequence[Alignment], is_one: bool) -> None:
    names = file_names(alignments)
    if args.cut is not None:
        lines = [line for alignment in alignments for line in manifest_lines(alignment, args.segment_padding)]
        least = float("-inf") if args.min_score is None else args.min_score
        kept = [line for line in lines if line["score"] >= least]
        write_manifest(args.cut, kept)
        left_out = f", {len(lines) - len(kept)} below the score {least:g} left out" if len(kept) < len(lines) else ""
        print(f"{args.cut}: {counted(len(kept), 'utterance')}{left_out}", file=sys.stderr)
    if args.format in _WRITERS and (not is_one or is_folder(args.out)):
        for name, alignment in zip(names, alignments, strict=True):
            to_file(args.out / f"{name}.{_ENDINGS[args.format]}", _WRITERS[args.format](alignment))
        return
    writer = _WRITERS.get(args.format, as_json)
    is_ctm = args.format == "ctm"
    texts = (as_ctm(each, name) if is_ctm else writer(each) for name, each in zip(names, alignments, strict=True))
    text = "".join(texts).encode("utf-8", errors="backslashreplace").decode("utf-8")
    if args.out is not None:
        to_file(args.out, text)
    elif args.cut is None or args.format != "json":
        sys.stdout.write(text)
        sys.stdout.flush()
