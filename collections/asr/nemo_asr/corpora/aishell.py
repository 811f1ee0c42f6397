"""Manifests of AISHELL-1 (Bu et al., O-COCOSDA 2017: read Mandarin). ``python -m nemo_asr.corpora.aishell SOURCE OUT``

The corpus comes as ``data_aishell/transcript/aishell_transcript_v0.8.txt`` and ``data_aishell/wav/`` with an archive
for each speaker, or with what these hold: ``{train,dev,test}/<speaker>/<utterance>.wav``. This writes ``train.json``,
``dev.json`` and ``test.json`` under OUT, and a configuration whose labels are the characters of the training texts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nemo_asr.corpora.archives import PublishedCorpus, unpack
from nemo_asr.corpora.lists import transcripts
from nemo_asr.corpora.writing import (
    CORPUS,
    as_written,
    check_corpus_files,
    filling_folder,
    seconds_of,
    write_corpus_file,
)
from nemo_asr.run.manifest import Entry, write_manifest
from nemo_asr.shipped import config_path
from nemo_asr.tasks.recipe import recipe_from_text
from nemo_lite.base.config import Config, load_config
from nemo_lite.base.errors import DataError, reported_to_user
from nemo_lite.base.files import make_writable_folder
from nemo_lite.base.options import OneLineParser
from nemo_lite.base.outputs import check_ours

SPLITS = ("train", "dev", "test")
MODEL_CONFIG = "quartznet15x5_zh"
AUDIO = "aishell_wav"

_TRANSCRIPT = Path("transcript") / "aishell_transcript_v0.8.txt"
_ARCHIVE = ".tar.gz"
_CORPUS = PublishedCorpus(
    name="AISHELL-1",
    folder="data_aishell",
    mark=_TRANSCRIPT,
    wanted=f"data_aishell/{_TRANSCRIPT} in it",
    suffixes=(_TRANSCRIPT.name, ".wav", _ARCHIVE),
    max_bytes=64 << 30,  # the corpus has about 16 GB packed
)
_MAX_SPEAKER_BYTES = 1 << 30


@dataclass(frozen=True)
class AishellFiles:
    """The files that were written.

    Attributes:
        manifests: what each manifest holds, by split.
        labels: the characters of the training texts, in the order of their code points.
        config: the configuration with these labels.
        without_text: how many recordings have no transcript, and are in no manifest.
    """

    manifests: dict[str, list[Entry]]
    labels: list[str]
    config: Path
    without_text: int


def make(source: str | Path, out: str | Path, model_config: str = MODEL_CONFIG) -> AishellFiles:
    """Write the manifests and the configuration under ``out``.

    Audio that is packed is unpacked to ``out/aishell_wav``; other audio stays where it is. Transcripts lose the spaces
    between words, which nobody writes, and are in Unicode NFC.

    Args:
        source: ``data_aishell`` or the folder that holds it, or the archive of it.
        out: the folder to write to.
        model_config: the configuration whose labels are replaced: a file, or the name of one that comes with the
            package. It is written to ``out`` under its own name.

    Raises:
        DataError: the corpus is incomplete or damaged; names the file and the line.
        ConfigError: the configuration is not there, or is wrong.
        UsageError: ``out`` cannot be written to, or holds other files of these names.
    """
    base = config_path(model_config)
    config = load_config(base)  # before hours of unpacking
    root = make_writable_folder(out)
    files = {split: root / f"{split}.json" for split in SPLITS}
    new_config = root / f"{base.stem}.yaml"
    check_corpus_files(new_config, *files.values())
    check_ours(root / AUDIO, CORPUS)
    source = Path(source).expanduser()
    with _CORPUS.opened(source, root) as corpus:
        texts = {
            utterance: (place, unicodedata.normalize("NFC", "".join(words.split())))
            for place, utterance, words in transcripts(corpus / _TRANSCRIPT)
        }
        audio = dict(_recordings(_audio_folder(corpus, root, is_unpacked_here=not source.is_dir())))
    manifests: dict[str, list[Entry]] = {split: [] for split in SPLITS}
    for utterance, (place, text) in sorted(texts.items()):
        if utterance not in audio:
            raise DataError("the recording is missing", place=place, wanted=f"{utterance}.wav")
        split, path = audio[utterance]
        manifests[split].append(
            {
                "audio_filepath": as_written(path, root),
                "duration": seconds_of(path, "WAV", place),
                "text": text,
                "speaker": path.parent.name,
            }
        )
    for split, entries in manifests.items():
        if not entries:
            raise DataError(f"the corpus has no utterance of {split}", place=str(source), wanted=f"wav/{split}")
    labels = sorted({character for entry in manifests["train"] for character in entry["text"]})
    text = Config({**config, "labels": labels}, config.source).as_yaml()
    recipe_from_text(text, str(base))  # its other parts may contradict the labels
    comment = f"# {base.name} with the {len(labels)} characters of the training texts of AISHELL-1.\n"
    write_corpus_file(new_config, lambda temporary: temporary.write_text(comment + text, encoding="utf-8"))
    for split, entries in manifests.items():
        write_corpus_file(files[split], partial(write_manifest, entries=entries))
    return AishellFiles(manifests, labels, new_config, len(audio.keys() - texts.keys()))


def _audio_folder(corpus: Path, root: Path, *, is_unpacked_here: bool) -> Path:
    """The folder with the recordings; what is packed, alone or with the whole corpus, goes to one under ``root``."""
    wav = corpus / "wav"
    if not is_unpacked_here and any(wav.rglob("*.wav")):
        return wav
    with filling_folder(root / AUDIO) as folder:
        for archive in sorted(wav.rglob(f"*{_ARCHIVE}")):
            unpack(archive, folder / archive.parent.relative_to(wav), (".wav",), max_bytes=_MAX_SPEAKER_BYTES)
            if is_unpacked_here:
                archive.unlink()  # else the disk would hold the corpus three times
        for recording in list(wav.rglob("*.wav")):
            target = folder / recording.relative_to(wav)
            target.parent.mkdir(parents=True, exist_ok=True)
            recording.rename(target)
    return root / AUDIO


def _recordings(folder: Path) -> Iterator[tuple[str, tuple[str, Path]]]:
    """Each utterance's id, with its set and its file."""
    for path in folder.rglob("*.wav"):
        splits = [part for part in path.relative_to(folder).parts if part in SPLITS]
        if not splits:
            raise DataError(
                "the recording belongs to no set", place=str(path), wanted=f"a folder {' or '.join(SPLITS)}"
            )
        yield path.stem, (splits[0], path)


def _summary(made: AishellFiles, root: Path) -> Iterator[str]:
    """A line for each file that was written."""
    labels = set(made.labels)
    for split, entries in made.manifests.items():
        hours = sum(entry["duration"] for entry in entries) / 3600
        characters = [character for entry in entries for character in entry["text"]]
        new = len(set(characters) - labels)
        unseen = f", {new} of them not in train" if new else ""
        kinds = f"{len(characters)} characters ({len(set(characters))} different{unseen})"
        speakers = len({entry["speaker"] for entry in entries})
        yield f"{root / split}.json: {len(entries)} utterances, {hours:.1f} h, {kinds}, {speakers} speakers"
    if made.without_text:
        yield f"{made.without_text} recordings have no transcript and are left out"
    yield f"{made.config}: a model with {len(made.labels)} labels"


def main(argv: Sequence[str] | None = None, program: str = "python -m nemo_asr.corpora.aishell") -> None:
    """The command line; ``program`` is what the user typed."""
    description = "Write manifests of AISHELL-1 and a configuration with its characters."
    parser = OneLineParser(prog=program, description=description)
    parser.add_argument("source", help="data_aishell, or the archive of it (data_aishell.tgz)")
    parser.add_argument("out", help="folder to write to")
    config_help = "configuration whose labels are replaced: a file or a name (default: %(default)s)"
    parser.add_argument("--model_config", default=MODEL_CONFIG, help=config_help)
    options = parser.parse_args(argv)
    with reported_to_user(program):
        made = make(options.source, options.out, options.model_config)
        print(*_summary(made, Path(options.out)), sep="\n")


if __name__ == "__main__":
    main()
