"""How golden.py runs its cases: the corpus, the processes, and the text that they print without what always differs."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import golden_cases as cases
import numpy as np
import soundfile
from golden_cases import Case

ROOT = Path(__file__).resolve().parents[1]
ASR = ROOT / "examples" / "asr"
API = Path(__file__).resolve().with_name("golden_api.py")
RATE = 16000  # samples a second
TIMEOUT = 600  # seconds, of one case; a machine with other work on it is several times slower
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Run:
    """A case that has run: its folder, and of each process the exit code and what it printed, as lines."""

    case: Case
    folder: Path
    codes: list[int]
    out: list[list[str]]
    err: list[list[str]]

    @property
    def is_mistake(self) -> bool:
        return self.case in cases.MISTAKES + cases.LATER_MISTAKES

    def files(self, pattern: str = "*") -> list[Path]:
        """The files that it left, sorted."""
        return sorted(path for path in self.folder.rglob(pattern) if path.is_file())

    def name_of(self, path: Path) -> str:
        """The path in its folder, without times and process ids."""
        return normal(path.relative_to(self.folder).as_posix(), self.folder.parent)

    def matching(self, pattern: str) -> list[str]:
        """The lines on the standard output, of all processes, where the pattern is found."""
        return [line for lines in self.out for line in lines if re.search(pattern, line)]


# The corpus


def tones(text: str) -> np.ndarray:
    """A text as audio: for each letter a tone of 0.12 s, and a little noise."""
    time = np.arange(int(0.12 * RATE)) / RATE
    silence = np.zeros(int(0.02 * RATE))
    parts = [part for c in text for part in (0.3 * np.sin(2 * np.pi * cases.FREQUENCIES[c] * time), silence)]
    samples = np.concatenate(parts)
    return samples + np.random.default_rng(len(text)).normal(0, 1e-3, len(samples))


def write_manifest(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_corpus(folder: Path) -> None:
    """Audio, manifests (also those that cannot be used) and configurations."""
    folder.mkdir()
    sets: dict[str, list[dict[str, object]]] = {}
    for name, texts in (("train", cases.TEXTS), ("dev", cases.TEXTS[:4]), ("other", cases.TEXTS[4:8])):
        sets[name] = []
        for number, text in enumerate(texts):
            samples = tones(text)
            # Audio of "other" is labelled with a higher rate: it is resampled, and its tones are higher.
            rate = 18000 if name == "other" else RATE
            soundfile.write(folder / f"{name}{number}.wav", samples, rate)
            line = {"audio_filepath": f"{name}{number}.wav", "duration": len(samples) / rate, "text": text}
            sets[name].append(line)
    soundfile.write(folder / "stereo.flac", np.stack([tones("abcab")] * 2, axis=1), RATE)
    (folder / "corrupt.wav").write_bytes(b"corrupt" * 100)
    for name, lines in {**sets, "val_seen_voices": sets["dev"], "val_unseen_voices": sets["other"]}.items():
        write_manifest(folder / f"{name}.json", lines)
    for name, changes in cases.MANIFESTS.items():
        line = {key: value for key, value in {**sets["train"][2], **changes}.items() if value is not None}
        write_manifest(folder / f"{name}.json", [*sets["train"][:2], line, *sets["train"][3:]])
    for name, text in cases.TEXT_MANIFESTS.items():
        (folder / f"{name}.json").write_text(text)
    for name, replaced in cases.CONFIGS.items():
        text = cases.CONFIG
        for old, new in replaced:
            text = text.replace(old, new)
        (folder / f"{name}.yaml").write_text(text)


# Running


def free_port() -> int:
    """A port below those that the system gives to connections, so that no other case gets it meanwhile."""
    while True:
        port = random.randrange(20000, 30000)
        with closing(socket.socket()) as one:
            if one.connect_ex(("127.0.0.1", port)):
                return port


def environments(launcher: cases.Launcher) -> list[dict[str, str]]:
    """The environment of each process to start."""
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    packages = os.pathsep.join([str(ROOT), str(ROOT / "collections" / "asr")])
    alone = {**kept, "PYTHONPATH": packages, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""}
    alone["NEMO_LITE_LOG_STYLE"] = "nemo"  # its lines have all digits of a loss
    if launcher != "ranks":
        return [alone]
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**alone, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]


def run_case(work: Path, case: Case) -> Run:
    """Run it in its folder; a process that takes too long is killed, which its exit code says."""
    folder = work / case.name
    folder.mkdir()
    script = str(API if case.script == "api" else ASR / case.script)
    launcher = []
    if case.launcher == "torchrun":
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    command = [sys.executable, *launcher, script, *case.words.split()]
    start = partial(subprocess.Popen, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    processes = [start(command, env=env) for env in environments(case.launcher)]
    with ThreadPoolExecutor(len(processes)) as pool:
        printed = list(pool.map(printed_by, processes))
    out, err = ([normal(both[i], work).splitlines() for both in printed] for i in (0, 1))
    return Run(case, folder, [process.returncode for process in processes], out, err)


def printed_by(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


def needed(sections: Sequence[str]) -> tuple[list[Case], list[Case]]:
    """The cases that these sections are made of, and those to run behind them because they use their checkpoints."""
    first: list[Case] = []
    later: list[Case] = []
    trains, shows = set(sections) - {"plan", "errors"}, set(sections) - {"errors"}
    if shows:
        first += [*cases.OTHERS, *cases.PLANS]
    if trains:
        first += cases.TRAININGS
        later += [*cases.RESUMED, *cases.EVALUATIONS]
    if "errors" in sections:
        first += [*cases.MISTAKES, *([] if trains else cases.TRAININGS[:1])]
        later += cases.LATER_MISTAKES
    return first, later


def run_all(work: Path, sections: Sequence[str], names: Container[str] | None = None) -> Iterator[Run]:
    """Run all cases that the sections need, or those of them with these names, two at a time."""
    make_corpus(work / "corpus")
    (work / "configs").symlink_to(ASR / "configs")
    with ThreadPoolExecutor(2) as pool:
        for stage in needed(sections):
            chosen = [case for case in stage if names is None or case.name in names]
            yield from list(pool.map(partial(run_case, work), chosen))


# What differs from run to run is taken out


def normal(text: str, work: Path) -> str:
    """The text without times, paths, process ids, host names and places of log lines."""
    for old, new in ((sys.executable, "PYTHON"), (str(work), "WORK"), (str(ROOT), "ROOT")):
        text = text.replace(old, new)
    for pattern, new in (
        (r"\[NeMo (\w) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [\w.]+:\d+\]", r"[NeMo \1]"),
        (r"\d{4}-\d\d-\d\d[ _T]\d\d[:-]\d\d[:-]\d\d", "TIME"),
        (r"events\.out\.tfevents\.[\w.-]+", "events"),
        (r"\d+(\.\d+)?(e-?\d+)? seconds\b", "N seconds"),
        (rf"\b{re.escape(socket.gethostname())}\b", "HOST"),
        (r"(pid:? )\d+", r"\1N"),
    ):
        text = re.sub(pattern, new, text)
    return text
