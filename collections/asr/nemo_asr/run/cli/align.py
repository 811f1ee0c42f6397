"""Find when each word of known texts is said; cut long recordings with their texts into utterances."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from nemo_asr.run.arguments import paths_in
from nemo_asr.run.cli.transcribe import (
    MODEL_HELP,
    Segments,
    check_segments,
    cutting_of,
    file_names,
    is_folder,
    place_of,
    refuse_name_of_audio,
    to_file,
)
from nemo_asr.run.engines import BATCH_SECONDS, BATCH_SIZE, Engine, TranscriptionSettings, open_engines
from nemo_asr.run.manifest import Manifest, Utterance, write_manifest
from nemo_asr.run.onnx.voice_activity import load_detector
from nemo_asr.run.options import OnnxRuntime, OwnModules, named_files
from nemo_asr.run.transcribe.alignment import (
    Aligned,
    Alignment,
    SentenceCutting,
    align_texts,
    as_ctm,
    as_json,
    as_subtitles,
    as_textgrid,
    manifest_lines,
)
from nemo_asr.run.transcribe.inputs import Recording, recording_of_utterance
from nemo_lite.base.errors import UsageError, counted, marked, printable
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.nemo_logging import logging
from nemo_lite.base.options import Device, OneLineParser, fold_precision, option, option_group, seconds
from nemo_lite.base.outputs import InputFiles, check_output, write_output
from nemo_lite.base.ranges import Between, NotNegativeFloat, NotNegativeInt, PositiveFloat, PositiveInt

# Any: a namespace has no types.

PROGRAM = "nemo-lite align"
_PROGRESS_SECONDS = 10.0  # between two lines about how far it is
_CUT = f"{PROGRAM} --cut"
_ENDINGS = {"textgrid": "TextGrid", "srt": "srt"}  # a file for each recording
_WRITERS: dict[str, Callable[[Alignment], str]] = {"textgrid": as_textgrid, "srt": as_subtitles}


@option_group
class Aligning(OwnModules):
    """What is written of aligned texts, and their batches."""

    page: ClassVar[str] = "data"
    format: str = option("json", "what to write", choices=("json", "ctm", "textgrid", "srt"))
    out: Path | None = option(
        None,
        "file to write, or a folder for TextGrids and subtitles of several recordings (default: stdout)",
        metavar="PATH",
        type=Path,
    )
    cut: Path | None = option(
        None,
        "write a manifest in which each sentence is an utterance, with a score; then JSON goes to --out alone",
        metavar="MANIFEST",
        type=Path,
    )
    overwrite: bool = option(
        False, "let --out and --cut replace files that this command did not write, or that were changed since"
    )
    longest: PositiveFloat = option(
        SentenceCutting.longest,
        "most seconds of such an utterance; a longer sentence is cut at its longest pauses",
        needs="cut",
    )
    shortest: NotNegativeFloat = option(
        SentenceCutting.shortest,
        "fewest seconds of one; a shorter sentence is joined to its neighbour, unless a long pause is between",
        needs="cut",
    )
    pause: PositiveFloat = option(
        SentenceCutting.pause, "seconds of a pause between words that ends an utterance", needs="cut"
    )
    min_score: Annotated[float, Between(-1e6, 0.0)] | None = option(
        None, "leave utterances with a lower score out of the manifest", needs="cut"
    )
    delay: NotNegativeFloat | None = option(
        None, "seconds by which the model writes labels behind their sounds (default: measured where speech begins)"
    )
    segments: Literal["energy", "off"] = option(
        "energy",
        "cut recordings at pauses, by their levels (energy), or compute them as they are (off)",
        page="segments",
    )
    vad: str | None = option(
        None,
        "a voice-activity model in the place of levels: a classifier with the label speech, silero (the installed "
        "package silero-vad), or its ONNX file",
        page="segments",
        metavar="MODEL",
    )
    batch_size: PositiveInt = option(BATCH_SIZE, "most recordings in a batch")
    batch_seconds: float = option(
        BATCH_SECONDS,
        "most seconds of audio computed at once; longer recordings are cut into overlapping windows",
        type=seconds,
    )
    num_workers: NotNegativeInt = option(0, "processes that read audio")


class AlignParser(OneLineParser):
    """The options of ``nemo-lite align``."""

    groups = (Aligning, Segments, Device, OnnxRuntime)
    most_used = "format out cut longest min_score batch_size placement"
    pages = {
        "data": "what is written, batches, modules of your own",
        "segments": "where recordings are cut: pauses, lengths",
        "launching": "devices, precision",
    }

    def __init__(self) -> None:
        super().__init__(prog=PROGRAM, description="When each word of known texts is said")
        add = self.add_argument
        add("model", metavar="MODEL", help=MODEL_HELP)
        add("manifests", metavar="MANIFEST", nargs="+", help="recordings with their texts")

    def check(self, parsed: Any) -> None:
        """What would have no effect ends the command."""
        super().check(parsed)
        fold_precision(self, parsed)
        for name in ("longest", "shortest", "pause", "min_score") if parsed.cut is None else ():
            if getattr(parsed, name) != self.get_default(name):
                self.error(f"--{name} has no effect without --cut; leave it out")
        check_segments(self, parsed)
        parsed.out, parsed.cut = place_of(parsed.out), parsed.cut and parsed.cut.expanduser()


def main(arguments: Sequence[str]) -> int:
    """Align, and tell on stderr how it went; results alone go to stdout.

    Returns:
        0; 1 where some texts could not be aligned, 2 where none could.

    Raises:
        UsageError: a place that cannot be written to.
        CheckpointError, DataError: the model or a manifest cannot be read.
    """
    args = AlignParser().parse_args(arguments)
    with logging.patch_stdout_handler(sys.stderr):
        return _align(args)


def _align(args: Namespace) -> int:
    manifest = Manifest.open([part for path in args.manifests for part in paths_in(path)], lenient=True)
    utterances = [manifest.utterance(row) for row in range(len(manifest))]
    _check_places(args, utterances)
    recordings = [recording_of_utterance(each, manifest.reader, source=each.audio_path) for each in utterances]
    (engine,) = open_engines([args.model], args)
    start = time.perf_counter()
    aligned = _aligned(args, engine, recordings, [utterance.text for utterance in utterances])
    took = time.perf_counter() - start
    if aligned.alignments:
        logging.info("Labels come %.0f ms behind their sounds; times are those of the sounds", 1000 * aligned.delay)
    _write(args, aligned.alignments, is_one=len(utterances) == 1)
    for position in sorted(aligned.faults):
        fault = f"{utterances[position].place}: {aligned.faults[position]}"
        print(f"{PROGRAM}: {marked('error:')} {printable(fault)}", file=sys.stderr)
    count, bad = len(aligned.alignments), len(aligned.faults)
    audio = sum(alignment.duration for alignment in aligned.alignments)
    more = f" ({bad} more could not be aligned)" if bad else ""
    print(f"{counted(count, 'text')} aligned{more}, {audio:.1f} s of audio in {took:.1f} s", file=sys.stderr)
    return 0 if not bad else 1 if count else 2


def _aligned(args: Namespace, engine: Engine, recordings: Sequence[Recording], texts: Sequence[str]) -> Aligned:
    settings = TranscriptionSettings(
        batch_size=args.batch_size,
        batch_seconds=args.batch_seconds,
        num_workers=args.num_workers,
        cutting=cutting_of(args),
        detector=load_detector(args.vad) if args.vad else None,
    )
    sentences = SentenceCutting(args.longest, args.shortest, args.pause) if args.cut else None
    return align_texts(engine, recordings, texts, settings, sentences, args.delay, _Progress(len(recordings)))


class _Progress:
    """A line now and then that tells how much speech has been computed.

    Args:
        num_recordings: how many there are.
    """

    def __init__(self, num_recordings: int) -> None:
        self._recordings = counted(num_recordings, "recording")
        self._seconds, self._told = 0.0, time.perf_counter()

    def __call__(self, seconds: float) -> None:
        """Count so many seconds."""
        self._seconds += seconds
        if time.perf_counter() - self._told >= _PROGRESS_SECONDS:
            self._told = time.perf_counter()
            logging.info("%.1f min of speech of %s computed so far", self._seconds / 60, self._recordings)


def _check_places(args: Namespace, utterances: Sequence[Utterance]) -> None:
    """UsageError where the results have no place to go to; before any work is done."""
    several = args.format in _WRITERS and len(utterances) > 1
    needs_folder = several or (args.format in _WRITERS and is_folder(args.out))
    if several and args.out is None:
        problem, got = f"{args.format} files of several recordings need a folder", f"{len(utterances)} recordings"
        raise UsageError(problem, got=got, remedy="give --out FOLDER")
    audio = (utterance.audio_path for utterance in utterances)
    inputs = InputFiles([*named_files(args), *audio])
    names = file_names([Recording(utterance.audio_path, "") for utterance in utterances]) if needs_folder else []
    texts = [args.out / f"{name}.{_ENDINGS[args.format]}" for name in names] if needs_folder else [args.out]
    for path, kind in (*((path, PROGRAM) for path in texts), (args.cut, _CUT)):
        if path is not None:
            refuse_name_of_audio(path)
            check_output(path, kind, inputs=inputs, overwrite=args.overwrite)
            make_writable_folder(path.parent)
    if args.cut is not None and args.cut.absolute() in [path.absolute() for path in texts if path is not None]:
        raise UsageError("--out and --cut name one file", got=str(args.cut), remedy="give two names")


def _write(args: Namespace, alignments: Sequence[Alignment], is_one: bool) -> None:
    names = file_names(alignments)
    if args.cut is not None:
        lines = [line for alignment in alignments for line in manifest_lines(alignment, args.segment_padding)]
        least = float("-inf") if args.min_score is None else args.min_score
        kept = [line for line in lines if line["score"] >= least]
        write_output(args.cut, partial(write_manifest, entries=kept), _CUT, overwrite=args.overwrite)
        left_out = f", {len(lines) - len(kept)} below the score {least:g} left out" if len(kept) < len(lines) else ""
        print(f"{args.cut}: {counted(len(kept), 'utterance')}{left_out}", file=sys.stderr)
    if args.format in _WRITERS and (not is_one or is_folder(args.out)):
        for name, alignment in zip(names, alignments, strict=True):
            path = args.out / f"{name}.{_ENDINGS[args.format]}"
            to_file(path, _WRITERS[args.format](alignment), PROGRAM, args.overwrite)
        return
    writer = _WRITERS.get(args.format, as_json)
    is_ctm = args.format == "ctm"
    texts = (as_ctm(each, name) if is_ctm else writer(each) for name, each in zip(names, alignments, strict=True))
    text = "".join(texts).encode("utf-8", errors="backslashreplace").decode("utf-8")
    if args.out is not None:
        to_file(args.out, text, PROGRAM, args.overwrite)
    elif args.cut is None or args.format != "json":
        sys.stdout.write(text)
        sys.stdout.flush()
