"""Transcribe audio files, folders, manifests or stdin with a trained model, in whatever runtime it has."""

from __future__ import annotations

import re
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nemo_asr.run.audio.kinds import ALL_KINDS, ALL_SUFFIXES, AUDIO_SUFFIXES
from nemo_asr.run.audio.segments import DEFAULT_CUTTING, Cutting
from nemo_asr.run.engines import BATCH_SECONDS, BATCH_SIZE, TranscriptionSettings, open_engines
from nemo_asr.run.onnx.voice_activity import load_detector
from nemo_asr.run.options import (
    WITH_WEIGHTS,
    BeamSize,
    OnnxRuntime,
    OwnModules,
    PromptOptions,
    SearchArguments,
    check_search_options,
    named_files,
    search_options,
)
from nemo_asr.run.transcribe.doubts import TEMPERATURES
from nemo_asr.run.transcribe.driver import transcribe
from nemo_asr.run.transcribe.inputs import EACH, MICROPHONE, STDIN, Recording, channel_choice, recordings_of
from nemo_asr.run.transcribe.transcript import FORMATS, SUBTITLES, Transcribed, Transcript
from nemo_lite.base.errors import UsageError, counted, marked, printable
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.nemo_logging import logging
from nemo_lite.base.options import (
    Device,
    Launch,
    LaunchedParser,
    OneLineParser,
    arguments_of,
    fold_precision,
    names_of,
    option,
    option_group,
    seconds,
)
from nemo_lite.base.outputs import InputFiles, check_output, write_output
from nemo_lite.base.ranges import NotNegativeFloat, NotNegativeInt, PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from nemo_asr.run.transcribe.alignment import Alignment

# Any: a namespace has no types.

PROGRAM = "nemo-lite transcribe"
MODEL_HELP = f"{WITH_WEIGHTS}, or a file of nemo-lite export"
MODEL_MISSING = "MODEL may be the name of a published one: nemo-lite models list"
_MOST_DIGITS = 5  # of a channel
# Words of which the model is unsure: so many times the doubt (1 - confidence) that is usual for it, and some more. The
# demo's model: 0.94 for its own set, 0.66 to 0.86 for sentences of other words. One by one, 8 of 1200 recordings of its
# own sets are told (at 1.5 times: 27), and 40 of 40 of other words.
_LEAST_WORDS, _MUCH_DOUBT, _SOME_DOUBT = 5, 2.0, 0.02
_MOST_MARKED = 5  # recordings of which is told why the model may not know them
_BY_FRAMES = ("silence", "pause", "longest_part")  # options of --stream frames alone


def main(arguments: Sequence[str]) -> int:
    """Transcribe, and tell on stderr how it went; results alone go to stdout.

    Returns:
        0; 1 where some recordings could not be read, 2 where none could.
    """
    args = TranscribeParser().parse_args(arguments)
    with logging.patch_stdout_handler(sys.stderr):
        if args.model.lower().endswith(tuple(AUDIO_SUFFIXES)) and Path(args.model).is_file():
            problem, remedy = "the model comes first, then the recordings", f"write {PROGRAM} MODEL {args.model}"
            raise UsageError(problem, got=args.model, wanted="MODEL", remedy=remedy)
        if args.stream is not None:
            from nemo_asr.run.transcribe.streaming import transcribe_stream

            return transcribe_stream(args)
        recordings = recordings_of(args.audio, args.channel)
        _check_out(args, recordings)
        (engine,) = open_engines([args.model], args)
        if args.temperature_fallback and not engine.may_invent:
            problem = "only texts of an attention decoder are drawn anew"
            raise UsageError(problem, place=args.model, got="--temperature_fallback", remedy="leave it out")
        settings = TranscriptionSettings(
            batch_size=args.batch_size,
            batch_seconds=args.batch_seconds,
            num_workers=args.num_workers,
            worker_timeout=args.worker_timeout,
            search=engine.new_search(search_options(args)),
            nbest=args.nbest or 1,
            temperatures=TEMPERATURES if args.temperature_fallback else (),
            cutting=cutting_of(args),
            detector=load_detector(args.vad) if args.vad else None,
            calibration=engine.calibration,
            verbose=True,
        )
        start = time.perf_counter()
        result = transcribe(engine, recordings, settings)
        took = time.perf_counter() - start
        engine.on_first(lambda: _tell(args, result, took, engine.usual_confidence()))
        if not result.faults:
            return 0
        return 2 if len(result.faults) == len(recordings) else 1


def cutting_of(args: Namespace) -> Cutting | None:
    """How recordings are cut, by the options; None: not at all."""
    return Cutting(**arguments_of(args, Segments)) if args.segments == "energy" else None


def _channel(text: str) -> int | str | None:
    """A type of argparse: the number of a channel, ``mix`` or ``each``."""
    channel = int(text) if text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS else text
    try:
        return channel_choice(channel)
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from None


@option_group
class TranscriptionOptions(OwnModules):
    """What is written of recordings, and their batches."""

    page: ClassVar[str] = "data"
    format: str = option("text", "what to write", choices=tuple(FORMATS))
    out: Path | None = option(
        None,
        "file to write; a folder, which is made, for the subtitles of several recordings, of a folder or of each "
        "channel (default: stdout)",
        metavar="PATH",
        type=Path,
    )
    overwrite: bool = option(
        False, "let --out replace files that this command did not write, or that were changed since"
    )
    segments: Literal["energy", "off"] = option(
        "energy",
        "cut recordings at pauses, by their levels (energy), or transcribe them as they are (off)",
        page="segments",
    )
    channel: int | str | None = option(
        None,
        "of recordings with several: 0 for the first, 1 for the second, mix for their average (default), or each for a "
        "transcript of each; a channel in a manifest's line comes before it",
        type=_channel,
        metavar="{0,1,mix,each}",
    )
    vad: str | None = option(
        None,
        "a voice-activity model in the place of levels: a classifier with the label speech, silero (the installed "
        "package silero-vad), or its ONNX file",
        page="segments",
        metavar="MODEL",
    )
    temperature_fallback: bool = option(
        False,
        "of an attention decoder such as Whisper's: a text that repeats itself or is improbable is drawn anew, at "
        "temperatures from 0.2 to 1.0; runs repeat",
        page="decoding",
    )
    nbest: BeamSize | None = option(
        None, "write the N most probable texts of each recording with their scores, as text or json", metavar="N"
    )
    batch_size: PositiveInt = option(BATCH_SIZE, "most recordings in a batch")
    batch_seconds: float = option(
        BATCH_SECONDS,
        "most seconds of audio computed at once; longer recordings are cut into overlapping windows",
        type=seconds,
    )
    num_workers: NotNegativeInt = option(0, "processes that read audio")
    worker_timeout: NotNegativeFloat | None = option(None, "seconds a batch may take in them (600; 0: no limit)")


@option_group
class Segments:
    """Where recordings are cut into segments, of which each is transcribed alone."""

    page: ClassVar[str] = "segments"
    min_pause: PositiveFloat = option(DEFAULT_CUTTING.min_pause, "seconds of a pause at which a recording is cut")
    min_segment: NotNegativeFloat = option(
        DEFAULT_CUTTING.min_segment, "seconds of the shortest speech; shorter sounds are left out"
    )
    max_segment: PositiveFloat = option(
        DEFAULT_CUTTING.max_segment, "seconds of the longest segment; longer ones are cut where they are quietest"
    )
    segment_padding: NotNegativeFloat = option(
        DEFAULT_CUTTING.padding, "seconds that are kept of the pauses around a segment", passed_as="padding"
    )


@option_group
class Streaming:
    """Audio that is transcribed while it arrives."""

    page: ClassVar[str] = "streaming"
    stream: Literal["frames", "segments"] | None = option(
        None,
        "write a line of JSON for each partial and final text while audio arrives: by frames, with the text of the "
        "whole recording, or in segments between pauses, with any model. AUDIO is a file, microphone, or - for samples "
        "on stdin: 16 bits, little-endian, one channel",
        nargs="?",
        const="frames",
        metavar="frames|segments",
    )
    stream_rate: PositiveInt = option(
        16000, "samples a second on stdin, and of a growing file without a header", needs="stream"
    )
    stream_chunk: PositiveFloat = option(0.1, "seconds of audio that are taken together", needs="stream")
    silence: PositiveFloat = option(
        2.4, "seconds without words after which a part ends in which nothing was said", needs="stream"
    )
    pause: PositiveFloat = option(1.2, "seconds without words after which a part ends, and is final", needs="stream")
    longest_part: PositiveFloat = option(
        20.0, "seconds after which a part ends before its last word", needs="stream", passed_as="longest"
    )
    follow: PositiveFloat | None = option(
        None,
        "AUDIO is still being written, a WAV file or samples as on stdin: go on until it has not grown for so many "
        "seconds (10), or Ctrl-C",
        nargs="?",
        const=10.0,
        metavar="SECONDS",
        needs="stream",
    )


class TranscribeParser(LaunchedParser):
    """The options of ``nemo-lite transcribe``."""

    groups = (TranscriptionOptions, Segments, Streaming, SearchArguments, PromptOptions, Device, OnnxRuntime, Launch)
    on_missing = MODEL_MISSING
    most_used = "format out channel segments decoder lm nbest batch_size num_workers placement"
    pages = {
        "data": "what is written, batches, modules of your own",
        "segments": "where recordings are cut: pauses, lengths",
        "streaming": "audio while it arrives: partial and final texts",
        "decoding": "beam search, lexicon, language model, hot words",
        "launching": "devices, precision, several processes and machines",
    }

    def __init__(self) -> None:
        super().__init__(prog=PROGRAM, description="Audio to text with a trained model")
        add = self.add_argument
        add("model", metavar="MODEL", help=MODEL_HELP)
        audio_help = f"audio files ({ALL_KINDS}), folders of them, manifests, or - for stdin"
        add("audio", metavar="AUDIO", nargs="+", help=audio_help)

    def _remedies(self, unknown: Sequence[str], words: Sequence[str]) -> str:
        is_audio = any(Path(word).suffix.lower() in ALL_SUFFIXES for word in unknown)
        remedy = "; AUDIO comes before the options; a shell makes several names of a pattern such as *.wav"
        return super()._remedies(unknown, words) + (remedy if is_audio else "")

    def check(self, parsed: Any) -> None:
        """What the options of decoding, precision and results mean together."""
        super().check(parsed)
        others = [TranscriptionOptions, Segments, Device, OnnxRuntime, Launch]
        known = ["imports", "channel", "placement", "local_rank", *names_of(OnnxRuntime)]
        check_streaming(self, parsed, others, but=known)
        check_search_options(self, parsed)
        if parsed.nbest and parsed.temperature_fallback:
            self.error("--temperature_fallback contradicts --nbest; leave one out")
        if parsed.nbest and parsed.format in SUBTITLES:
            self.error(f"--nbest has no effect with --format {parsed.format}; leave it out")
        check_segments(self, parsed)
        fold_precision(self, parsed)
        parsed.out = place_of(parsed.out)


def check_streaming(parser: OneLineParser, parsed: Any, others: Sequence[type], but: Sequence[str] = ()) -> None:
    """End the command where options contradict ``--stream``.

    Args:
        parser: knows the defaults.
        parsed: the options.
        others: groups of options that have no effect on streams,
        but: except for these.
    """
    if parsed.stream is None:
        return
    useless = names_of(*others) - {*but} | (set(_BY_FRAMES) if parsed.stream == "segments" else set())
    for name in sorted(useless):
        if getattr(parsed, name, None) != parser.get_default(name):
            parser.error(f"--{name} has no effect with --stream {parsed.stream}; leave it out")
    if parsed.follow is not None and parsed.audio[0] in (STDIN, MICROPHONE):
        parser.error(f"--follow is for a file, got {parsed.audio[0]}; leave it out")
    if len(parsed.audio) > 1:
        parser.error(f"--stream takes one recording, got {len(parsed.audio)}; run the command for each")


def check_segments(parser: OneLineParser, parsed: Any) -> None:
    """End the command where options of segments have no effect."""
    remedy = "give --segments energy" if parser.get_default("segments") == "off" else "leave it out"
    for name in ("vad", *names_of(Segments)) if parsed.segments == "off" else ():
        if getattr(parsed, name, None) != parser.get_default(name):
            parser.error(f"--{name} has no effect with --segments off; {remedy}")


def _check_out(args: Namespace, recordings: Sequence[Recording]) -> None:
    """UsageError where the results have no place to go to; before any work is done."""
    several = args.format in SUBTITLES and len(recordings) > 1
    # A folder may hold one recording today and two tomorrow, and so may a file its channels.
    may_be_several = args.channel == EACH or any(Path(name).expanduser().is_dir() for name in args.audio)
    into_folder = args.out is not None and (is_folder(args.out) or may_be_several)
    needs_folder = several or (args.format in SUBTITLES and into_folder)
    if several and args.out is None:
        problem, got = f"{args.format} files of several recordings need a folder", f"{len(recordings)} recordings"
        raise UsageError(problem, got=got, remedy="give --out FOLDER")
    if args.out is None:
        return
    inputs = InputFiles([*named_files(args), *(each.audio for each in recordings if isinstance(each.audio, str))])
    if needs_folder:
        make_writable_folder(args.out)
        for name in file_names(recordings):
            check_output(args.out / f"{name}.{args.format}", PROGRAM, inputs=inputs, overwrite=args.overwrite)
    else:
        refuse_name_of_audio(args.out)
        check_output(args.out, PROGRAM, inputs=inputs, overwrite=args.overwrite)
        make_writable_folder(args.out.parent)


def refuse_name_of_audio(out: Path) -> None:
    """UsageError for a text with the name of a recording: a shell has made ``--out a.wav b.wav`` of ``--out *.wav``."""
    if out.suffix.lower() in ALL_SUFFIXES:
        problem, wanted = "this is the name of a recording", "the name of a text file"
        remedy = "a shell makes several names of *.wav, of which --out takes the first"
        raise UsageError(problem, place=str(out), wanted=wanted, remedy=remedy)


def place_of(out: Path | None) -> Path | None:
    """What an option names as the place of results; None: stdout."""
    return None if out is None or str(out) in (STDIN, "/dev/stdout") else out.expanduser()


def is_folder(out: Path | None) -> bool:
    """Whether the results go into a folder that is there, also those of one recording."""
    return out is not None and out.is_dir()


def _tell(args: Namespace, result: Transcribed, took: float, usual: tuple[str, float] | None) -> None:
    """Write the transcripts; the bad recordings, the speed, and whether the model is unsure, go to stderr."""
    count, bad = len(result.transcripts), len(result.faults)
    if count:
        _write(args, result.transcripts, is_one=count + bad == 1)
    for position in sorted(result.faults):
        print(f"{PROGRAM}: {marked('error:')} {printable(result.faults[position])}", file=sys.stderr)
    without_words = [transcript for transcript in result.transcripts if not transcript.words]
    is_cut = args.segments != "off"
    uncut = [transcript.name for transcript in without_words if is_cut and not transcript.segments]
    unheard = [transcript.name for transcript in without_words if not is_cut or transcript.segments]
    _warn(f"no speech was found by {args.vad or 'levels'} in", uncut, count, "; --segments off takes all of them")
    _warn("the model heard nothing in", unheard, count)
    marked_ones = [transcript for transcript in result.transcripts if transcript.unfamiliar]
    for transcript in marked_ones[:_MOST_MARKED]:
        told = printable(f"{transcript.name}: {'; '.join(transcript.unfamiliar)}")
        print(f"{PROGRAM}: {marked('warning:')} the model may not know what it hears in {told}", file=sys.stderr)
    if len(marked_ones) > _MOST_MARKED:
        told = f"in {len(marked_ones)} of {counted(count, 'recording')} in all; --format json has each (unfamiliar)"
        print(f"{PROGRAM}: {marked('warning:')} the model may not know what it hears {told}", file=sys.stderr)
    if usual is not None and not marked_ones:
        _warn_of_doubt(result.transcripts, *usual)
    if count:
        recordings = counted(count, "recording") + (f" ({bad} more could not be read)" if bad else "")
        factor = f"real-time factor {took / max(result.seconds, 1e-3):.2g}"
        print(f"{recordings}, {result.seconds:.1f} s of audio in {took:.1f} s: {factor}", file=sys.stderr)


def _warn_of_doubt(transcripts: Sequence[Transcript], known_set: str, usual: float) -> None:
    """Warn where the model doubts words much more than those of a set that it was evaluated on."""
    confidences = [word.confidence for transcript in transcripts for word in transcript.words]
    mean = sum(confidences) / max(len(confidences), 1)
    if len(confidences) >= _LEAST_WORDS and 1.0 - mean > _MUCH_DOUBT * (1.0 - usual) + _SOME_DOUBT:
        print(
            f"{PROGRAM}: {marked('warning:')} the words have a mean confidence of {mean:.2f}, those of {known_set} "
            f"{usual:.2f}: the model may not know such words, voices or recordings",
            file=sys.stderr,
        )


def _warn(what: str, names: Sequence[str], count: int, remedy: str = "") -> None:
    """Tell which recordings have an empty transcript, and why."""
    if names:
        some = f"{len(names)} of {counted(count, 'recording')}: {', '.join(names[:3])}"
        more = ", ..." if len(names) > 3 else ""
        print(f"{PROGRAM}: {marked('warning:')} {what} {printable(some)}{more}{remedy}", file=sys.stderr)


_NEW_LINE = re.compile(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")  # as of str.splitlines


def _write(args: Namespace, transcripts: Sequence[Transcript], is_one: bool) -> None:
    write = FORMATS[args.format]
    if args.format in SUBTITLES and (not is_one or is_folder(args.out)):
        for name, transcript in zip(file_names(transcripts), transcripts, strict=True):
            to_file(args.out / f"{name}.{args.format}", write(transcript), PROGRAM, args.overwrite)
        return
    with_names = args.format == "text" and not is_one
    lines = (
        (_NEW_LINE.sub(lambda found: ascii(found[0])[1:-1], transcript.name), line)
        for transcript in transcripts
        for line in write(transcript).removesuffix("\n").split("\n")
    )
    text = "".join(f"{name}: {line}\n" if with_names else f"{line}\n" for name, line in lines)
    # Bytes of a file's name that are no UTF-8 become escapes, which JSON knows as well.
    text = text.encode("utf-8", errors="backslashreplace").decode("utf-8")
    if args.out is not None:
        to_file(args.out, text, PROGRAM, args.overwrite)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()


def to_file(path: Path, text: str, kind: str, overwrite: bool) -> None:
    """Write a text, all of it or nothing; see `nemo_lite.base.outputs.write_output`."""
    write_output(path, lambda file: file.write_text(text, encoding="utf-8"), kind, overwrite=overwrite)


def file_names(transcripts: Sequence[Transcript] | Sequence[Alignment] | Sequence[Recording]) -> list[str]:
    """A file's name without its ending for each transcript, or recording that will have one: the recording's.

    Where two recordings differ in their endings alone, as ``memo.m4a`` and ``memo.wav``, the endings stay; where they
    are in different folders, the second one has a number. Of one channel it ends in ``_channel0``, where that is the
    first.
    """
    names: list[str] = []
    sources = {Path(transcript.source) for transcript in transcripts}
    same_stem = Counter((source.parent, source.stem) for source in sources)
    for transcript in transcripts:
        source = Path(transcript.source)
        name = source.stem if same_stem[source.parent, source.stem] == 1 else source.name
        if transcript.channel is not None:
            name = f"{name}_channel{transcript.channel}"
        numbered = (f"{name}_{number}" for number in range(2, len(names) + 3))
        names.append(name if name not in names else next(candidate for candidate in numbered if candidate not in names))
    return names
