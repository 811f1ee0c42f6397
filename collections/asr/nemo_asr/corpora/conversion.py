"""Manifests of corpora as people have them: ``KINDS`` is the table of what can be read, a file of this folder each.

What all kinds share is here: finding the kind, reading the lengths, writing the manifests.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from nemo_asr.corpora import cuts, kaldi, lists, stm, tables
from nemo_asr.corpora.listed import CorpusKind, Listed, Sets, Utterances
from nemo_asr.corpora.writing import CORPUS, as_written
from nemo_asr.run.audio.files import open_audio
from nemo_asr.run.audio.reading import open_part
from nemo_asr.run.audio.segments import DEFAULT_CUTTING, frame_levels, frame_samples, speech_spans
from nemo_asr.run.manifest import Entry, write_manifest
from nemo_asr.run.text.labels import Marks, shown_symbols
from nemo_lite.base.errors import DataError, FileInTheWayError, UnknownNameError, counted, listed
from nemo_lite.base.files import DOWNLOAD, check_writable_folder, is_address, make_writable_folder, names_in
from nemo_lite.base.outputs import InputFiles, check_output

KINDS = {  # the first one that recognises a path reads it
    "common_voice": CorpusKind(
        "a language of Common Voice (TSV files beside clips/)",
        tables.common_voice_tables,
        tables.told_utterances,
        tables.common_voice_names,
    ),
    "kaldi": CorpusKind(
        "data folders of Kaldi or WeNet (wav.scp, text, perhaps segments)", kaldi.kaldi_folders, kaldi.kaldi_utterances
    ),
    "shar": CorpusKind(
        "a Shar folder of lhotse (cuts.*.jsonl.gz, recording.*.tar)", cuts.shar_folders, cuts.shar_utterances
    ),
    "lhotse": CorpusKind("cuts of lhotse (.jsonl, .jsonl.gz)", cuts.cut_files, cuts.lhotse_utterances),
    "wenet": CorpusKind(
        "a list of WeNet (a JSON object a line, with wav and txt)",
        cuts.wenet_files,
        cuts.wenet_utterances,
        lambda files: {file.name.split(".")[0]: file for file in files},
    ),
    "lists": CorpusKind(
        "folders of LibriSpeech (*.trans.txt), MLS (transcripts.txt) or VoxForge (PROMPTS)",
        lists.list_files,
        lists.list_utterances,
        by_folder=True,
    ),
    "stm": CorpusKind("STM files, as TED-LIUM has them", stm.stm_files, stm.stm_utterances, by_folder=True),
    "table": CorpusKind("CSV or TSV files with columns for audio and text", tables.tables_in, tables.told_utterances),
    "folder": CorpusKind(
        "a folder of audio with a .txt of the same name beside each",
        lists.recordings_in,
        lists.folder_utterances,
        by_folder=True,
    ),
}
# Lists that people have beside recordings, and of which no kind above is.
_LISTS_OF_OBJECTS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".list")
_SPREADSHEETS = (".xlsx", ".xls", ".ods", ".parquet", ".arrow", ".csv.gz", ".tsv.gz", ".zip")
_AT_ONCE = 512  # utterances whose lengths are read before more are listed
_MOST_SECONDS = 1e7  # four months
_SLACK_SECONDS = 0.05  # by which a part may end behind the end of its file, as lists round
_LEAST_SECONDS = 0.01


@dataclass
class ConvertedCorpus:
    """The manifests that were written.

    Attributes:
        kind: of the corpus.
        manifests: what each holds, by its path.
        problems: a line for each utterance that is left out.
        notes: what is worth knowing and no fault.
    """

    kind: str
    manifests: dict[Path, list[Entry]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Seen(NamedTuple):
    """What was seen in utterances that are used, by how often.

    Attributes:
        marks: such as ``<unk>`` in the texts.
        notation: see `Listed`.
        averaged: recordings of several channels, of which none is named; how many utterances.
        contradicted: places with the recording and the part of another line, and another text.
        texts: of each part of a recording, by its hash.
        trimmed: seconds of silence that the line of each leaves out.
    """

    marks: Counter[str]
    notation: Counter[str]
    averaged: Counter[str]
    contradicted: Counter[str]
    texts: dict[tuple[object, ...], int]
    trimmed: list[float]

    def add(self, utterance: Listed, entry: Entry, marks: Sequence[str], num_channels: int) -> None:
        """Count an utterance."""
        self.marks.update(marks)
        self.notation.update(utterance.notation)
        if num_channels > 1 and "channel" not in entry:
            self.averaged[str(utterance.audio)] += 1
        part = tuple(entry.get(key) for key in ("audio_filepath", "offset", "duration", "channel"))
        if self.texts.setdefault(part, hash(entry["text"])) != hash(entry["text"]):
            self.contradicted[utterance.place] += 1

    def notes(self) -> Iterator[str]:
        """A line for each kind."""
        if self.marks:
            consequence = "training leaves them out and counts them, unless they are labels"
            yield f"marks in the texts that are no words: {shown_symbols(self.marks)}; {consequence}"
        if self.notation:
            how = "of alternatives the first is taken, words in brackets as said, sounds (%) are left out"
            yield f"notation of NIST in the texts: {shown_symbols(self.notation)}; {how}"
        if self.averaged:
            some = f"{counted(self.averaged.total(), 'utterance')} of recordings with several channels"
            yield f"{some}, and none is named: their average is heard ({next(iter(self.averaged))})"
        if any(self.trimmed):
            some = counted(sum(map(bool, self.trimmed)), "utterance")
            yield f"{math.fsum(self.trimmed):.1f} s of silence before and behind the speech of {some} are left out"
        if self.contradicted:
            some = counted(self.contradicted.total(), "utterance")
            first = next(iter(self.contradicted))
            which = f"{some} with the recording of another one and another text ({first})"
            yield f"{which}: nemo-lite data check lists them"


def make(
    source: str | Path,
    out: str | Path | None = None,
    *,
    kind: str = "",
    overwrite: bool = False,
    shares: Mapping[str, float] | None = None,
    trim: bool = False,
    num_workers: int | None = None,
) -> ConvertedCorpus:
    """Write a manifest for each set of a corpus. Audio stays where it is; its heads are read for the lengths.

    Args:
        source: the folder or file.
        out: the folder to write to; by default that of the corpus.
        kind: one of ``KINDS``; by default the first that recognises ``source``.
        overwrite: manifests that are there already are replaced.
        shares: names of sets and the share of the seconds that each takes of a corpus of one set, which keeps the
            rest as ``train``. A speaker, or else a recording, is in one set only.
        trim: lines leave out the silence before and behind the speech, by its level: all audio is decoded for it.
        num_workers: threads that read; None: one for each core.

    Raises:
        DataError: there is no such file, it is of no known kind, or has no utterance that can be used.
        UnknownNameError: there is no such kind.
        FileInTheWayError: a manifest is there already, or is the source itself.
        UsageError: ``out`` cannot be written to.
    """
    path = Path(source).expanduser()
    made = ConvertedCorpus(kind or kind_of(path))
    if made.kind not in KINDS:
        raise UnknownNameError("kind", made.kind, KINDS)
    if path.is_dir() and not KINDS[made.kind].recognises(path):  # a file may have any name
        wanted, remedy = KINDS[made.kind].description, "name the folder that has them, or leave --kind out"
        raise DataError(f"the folder is none of kind {made.kind}", place=str(path), wanted=wanted, remedy=remedy)
    sets = KINDS[made.kind].sets(path)
    if shares and len(sets) == 1:
        sets_written: Sequence[str] = ("train", *shares)
    elif shares:
        raise DataError("the corpus has sets already", place=str(path), got=", ".join(sets), remedy="give no shares")
    else:
        sets_written = [*sets]
    root = Path(out or (path if path.is_dir() else path.parent)).expanduser()
    check_writable_folder(root)
    files = {name: root / f"{name}.json" for name in sets_written}
    if (in_the_way := [file for file in files.values() if os.path.lexists(file)]) and not overwrite:
        remedy = "give another folder with --out, or --overwrite"
        raise FileInTheWayError("the manifest exists already", place=str(in_the_way[0]), remedy=remedy)
    for file in files.values():
        check_output(file, CORPUS, inputs=InputFiles([path]), overwrite=True)
    seen = _Seen(Counter(), Counter(), Counter(), Counter(), {}, [])
    manifests = {
        name: _entries(name, utterances, root, made.problems, seen, num_workers, trim)
        for name, utterances in sets.items()
    }
    made.notes += seen.notes()
    if made.kind == "table" and path.is_dir():
        made.notes += [f"{path / name} is not read: {_why_not(path / name)}" for name in _tables_beside(path, sets)]
    if shares:
        ((_, entries),) = manifests.items()
        manifests = divided(entries, shares)
    if not any(manifests.values()):
        hint = _corpus_near(path) or _lists_in(path) if made.kind == "folder" else ""
        raise DataError(f"no utterance of {path} can be used{hint}:\n{listed(made.problems, len(made.problems))}")
    make_writable_folder(root)
    for name, entries in manifests.items():
        if not entries:
            made.problems.append(f"{files[name]}: no utterance is left for this set: it is not written")
            continue
        write_manifest(files[name], entries)
        made.manifests[files[name]] = entries
    return made


def kind_of(path: Path) -> str:
    """The name of the first kind that recognises a path.

    Raises:
        DataError: there is no such file, or none does.
    """
    if is_address(path):
        raise DataError("the corpus is an address, no file or folder", place=str(path), remedy=DOWNLOAD)
    if not path.exists():
        raise DataError("there is no such file or folder", place=str(path))
    for name, kind in KINDS.items():
        if kind.recognises(path):
            return name
    got, by_name = (_why_not(path), "name it with --kind; ") if path.is_file() else ("neither audio nor lists", "")
    problem, wanted = "this is no corpus of a known kind", f"one of {', '.join(KINDS)}"
    remedy = f"{by_name}nemo-lite data make --help says what they are"
    raise DataError(problem, place=str(path), got=got, wanted=wanted, remedy=remedy)


def _corpus_near(folder: Path) -> str:
    """A corpus of another kind in one of its lists, or around ``clips``, as the end of a message; "" for none."""
    inside = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    for path in ([folder.parent] if folder.name == "clips" else []) + inside:
        name = kind_of(path) if any(kind.recognises(path) for kind in KINDS.values()) else "folder"
        if name != "folder":
            return f"; {path} is {KINDS[name].description}: name that"
    return ""


def _tables_beside(folder: Path, sets: Sets) -> list[str]:
    """The names of tables in a folder that are none of these sets."""
    named = (name for name in sorted(names_in(folder)) if name.lower().endswith(tables.TABLE_SUFFIXES))
    used = {*sets, *(f"{name}{ending}" for name in sets for ending in tables.TABLE_SUFFIXES)}
    return [name for name in named if not used & {name, name.replace(".", "_")} and (folder / name).is_file()]


def _lists_in(folder: Path) -> str:
    """Lists in a folder that nothing reads, each with the reason, as the end of a message; "" for none."""
    files = [folder / name for name in sorted(names_in(folder))] if folder.is_dir() else []
    reasons = [f"{file}: {reason}" for file in files if file.is_file() and (reason := _why_not(file))]
    return f"; a list there is not read: {listed(reasons, len(reasons))}" if reasons else ""


def _why_not(file: Path) -> str:
    """Why a list is not read; "" for what is none."""
    name = file.name.lower()
    if name.endswith(tables.TABLE_SUFFIXES):
        try:
            next(tables.table_utterances(file), None)
        except DataError as error:
            return f"{error.problem} ({error.got or error.remedy})"
        return "it has no row"
    if name.endswith(_LISTS_OF_OBJECTS):
        return cuts.why_no_cuts(file)
    if name.endswith(_SPREADSHEETS):
        return "this kind is not read: save it as CSV"
    return "a list of Kaldi without wav.scp beside it" if name in ("text", "segments", "utt2spk") else ""


def _entries(
    name: str,
    utterances: Utterances,
    root: Path,
    problems: list[str],
    seen: _Seen,
    num_workers: int | None,
    trim: bool,
) -> list[Entry]:
    entries: list[Entry] = []
    marks = Marks()
    waiting = iter(utterances)
    with (
        ThreadPoolExecutor(num_workers or os.cpu_count() or 1) as pool,
        tqdm(desc=name, unit=" utterances", disable=None) as bar,
    ):
        while some := list(islice(waiting, _AT_ONCE)):
            results = pool.map(lambda utterance: _entry(utterance, root, trim), some)
            for utterance, result in zip(some, results, strict=True):
                if isinstance(result, DataError) or isinstance(utterance, DataError):
                    problems.append(str(result))
                    continue
                entry, num_channels, left_out = result
                seen.trimmed.append(left_out)
                entries.append(entry)
                seen.add(utterance, entry, marks.in_text(entry["text"]), num_channels)
            bar.update(len(some))
    return entries


def _entry(utterance: Listed | DataError, root: Path, trim: bool) -> tuple[Entry, int, float] | DataError:
    """The manifest line, how many channels its recording has, seconds that are trimmed; or why there can be none."""
    if isinstance(utterance, DataError):
        return utterance
    made = _whole_entry(utterance, root)
    if isinstance(made, DataError):
        return made
    entry, num_channels = made
    try:
        trimmed = _trimmed(entry, utterance) if trim else entry
    except DataError as error:
        return error
    return trimmed, num_channels, entry["duration"] - trimmed["duration"]


def _trimmed(entry: Entry, utterance: Listed) -> Entry:
    """A manifest line without the silence before and behind the speech, as `transcribe` finds it; pauses stay.

    Raises:
        DataError: the recording is no file, is damaged, or nobody speaks in it.
    """
    if utterance.seconds is not None:
        got = f"{utterance.audio} in a tar file"
        raise DataError("a recording that is no file cannot be trimmed", place=utterance.place, got=got)
    offset, duration, channel = entry.get("offset", 0.0), entry["duration"], entry.get("channel")
    audio = str(utterance.audio)
    with open_part(audio, offset=offset, duration=duration, channel=channel, place=utterance.place) as part:
        frame_seconds = frame_samples(part.source_rate) / part.source_rate
        spans = speech_spans(frame_levels(part.pieces(), part.source_rate), frame_seconds, DEFAULT_CUTTING)
    if not spans:
        raise DataError(f"nobody speaks in {audio}, by its level", place=utterance.place, remedy="listen to it")
    start, end = spans[0].start, min(spans[-1].end, duration)
    return {**entry, "offset": round(offset + start, 4), "duration": round(end - start, 4)}


def _whole_entry(utterance: Listed, root: Path) -> tuple[Entry, int] | DataError:
    """The manifest line, and how many channels its recording has; or why there can be none."""
    place, text = utterance.place, " ".join(utterance.text.split())
    if not text:
        return DataError("the text is empty", place=place, remedy="write the words, or remove the recording")
    try:
        if utterance.seconds is None:
            seconds, num_channels = _length_of(str(utterance.audio))
            audio = as_written(utterance.audio, root)
        else:
            seconds, num_channels, audio = utterance.seconds, 1, str(utterance.audio)
    except DataError as error:
        return DataError(error.problem, place=place, got=error.got, wanted=error.wanted, remedy=error.remedy)
    end = seconds if utterance.end is None else utterance.end
    if not 0.0 <= utterance.start < end <= seconds + _SLACK_SECONDS:
        got, wanted = f"{utterance.start:g} to {end:g} s", f"a part of {utterance.audio}, which has {seconds:g} s"
        return DataError("the part is not in its recording", place=place, got=got, wanted=wanted)
    duration = round(min(end, seconds) - utterance.start, 4)
    if duration < _LEAST_SECONDS:
        return DataError(f"{utterance.audio} is too short", place=place, got=f"{duration:g} s")
    entry: Entry = {"audio_filepath": audio, "duration": duration, "text": text}
    if utterance.start > 0.0 or end < seconds - _SLACK_SECONDS:
        entry["offset"] = round(utterance.start, 4)
    if utterance.speaker:
        entry["speaker"] = utterance.speaker
    channel = utterance.channel
    if utterance.seconds is not None:  # nobody looked into the recording
        if isinstance(channel, int):
            entry["channel"] = channel
        return entry, num_channels
    if channel is not None and (num_channels > 1 or (isinstance(channel, int) and channel > 0)):
        if isinstance(channel, str) or channel >= num_channels:
            problem = f"{utterance.audio} has no such channel"
            got = f"{channel!r}" if isinstance(channel, str) else f"channel {channel}, counted from 0"
            wanted = f"one of its {num_channels}" if num_channels > 1 else "none, for it has only one"
            return DataError(problem, place=place, got=got, wanted=wanted)
        if num_channels > 1:
            entry["channel"] = channel
    return entry, num_channels


@lru_cache(maxsize=4096)  # the parts of one recording are neighbours
def _length_of(audio: str) -> tuple[float, int]:
    """Seconds and channels of a file, by its head."""
    with open_audio(audio, audio, "") as file:
        if not 0.0 < file.seconds <= _MOST_SECONDS:
            raise DataError(f"{audio} does not say how long it is", remedy="write it again with another program")
        return file.seconds, file.num_channels


def divided(entries: Sequence[Entry], shares: Mapping[str, float]) -> dict[str, list[Entry]]:
    """A set divided by speakers, or by recordings where a speaker is not told; the same for the same entries.

    Args:
        entries: all of them.
        shares: of the seconds, by set; ``train`` keeps what is left.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.get("speaker") or entry["audio_filepath"], []).append(entry)
    names = sorted(groups, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())
    total = math.fsum(entry["duration"] for entry in entries)
    sets: dict[str, list[Entry]] = {"train": [], **{name: [] for name in shares}}
    exact = dict.fromkeys(shares, Fraction())  # seconds of each set so far: a float would depend on the order
    lacking = {name: share * total for name, share in shares.items()}
    for name in names:
        fewest = max(shares, key=lacking.__getitem__)
        if lacking[fewest] < _seconds(groups[name]) / 2:
            sets["train"] += groups[name]
            continue
        sets[fewest] += groups[name]
        exact[fewest] += sum(Fraction(entry["duration"]) for entry in groups[name])
        lacking[fewest] = shares[fewest] * total - float(exact[fewest])
    return sets


def _seconds(entries: Iterable[Entry]) -> float:
    return math.fsum(entry["duration"] for entry in entries)


def summary(made: ConvertedCorpus) -> Iterator[str]:
    """A line about each manifest."""
    for path, entries in made.manifests.items():
        minutes = _seconds(entries) / 60
        length = f"{minutes / 60:.1f} h" if minutes >= 120 else f"{minutes:.1f} min"
        letters = {letter for entry in entries for letter in entry["text"] if not letter.isspace()}
        speakers = {entry["speaker"] for entry in entries if "speaker" in entry}
        told = f", {counted(len(speakers), 'speaker')}" if speakers else ""
        different = counted(len(letters), "different character")
        yield f"{path}: {counted(len(entries), 'utterance')}, {length}, {different}{told}"
