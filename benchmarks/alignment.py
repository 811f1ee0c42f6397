"""How far `nemo-lite align` is from the true starts of words: made speech, whose synthesiser says when each begins.

    python benchmarks/alignment.py [--model runs/demo] [--quick]

Sentences of the demo's kind by its voices, alone and five in a row with 0.6 s between and noise of -66 dBFS. Without
--model the weights are random: that says nothing but that it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

import nemo_asr
from nemo_asr.corpora import synth
from nemo_asr.corpora.espeak import Synthesizer, Voice
from nemo_asr.run.cli.align import main as align

RATE = 16000
_WORD = 1  # espeakEVENT_WORD


class Event(ctypes.Structure):
    """From the library's public header, speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # milliseconds
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_void_p),
    )


def speak(library: Synthesizer, text: str, voice: Voice) -> tuple[np.ndarray[Any, Any], list[float]]:
    """The samples at 16 kHz, and when each word starts, in seconds."""
    pieces, starts = list[bytes](), list[float]()

    def collect(samples: int | None, count: int, events: int) -> int:
        if samples and count > 0:
            pieces.append(ctypes.string_at(samples, 2 * count))
        while events and (event := Event.from_address(events)).type:
            if event.type == _WORD:
                starts.append(event.audio_position / 1000)
            events += ctypes.sizeof(Event)
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(collect)
    with library._loaded() as loaded:
        loaded.espeak_SetSynthCallback(callback)
        loaded.espeak_SetVoiceByName(voice.name.encode())
        loaded.espeak_SetParameter(1, voice.rate, 0)
        spoken = text.encode() + b"\0"
        loaded.espeak_Synth(spoken, ctypes.c_size_t(len(spoken)), 0, 1, 0, 1, None, None)
        rate = library.sample_rate
    samples = np.frombuffer(b"".join(pieces), np.int16).astype(np.float32) / 65536
    return soxr.resample(samples, rate, RATE), starts


def make(folder: Path, number: int, in_row: int, seed: int) -> list[list[float]]:
    """A manifest ``all.json`` and its recordings; when the words of each begin."""
    rng, lines, starts = np.random.default_rng(seed), list[str](), list[list[float]]()
    with Synthesizer() as library:
        for recording in range(number // in_row):
            pieces, texts, begins = [np.zeros(0, np.float32)], list[str](), list[float]()
            while len(texts) < in_row:
                voice = Voice(synth.SEEN_VOICES[recording % 10], rate=int(rng.integers(130, 190)))
                text = synth.sentence(rng)
                samples, own = speak(library, text, voice)
                if len(own) == len(text.split()):  # it says two words as one: "of the"
                    begins += [sum(map(len, pieces)) / RATE + start for start in own]
                    pieces += [samples, np.zeros(int(0.6 * RATE), np.float32)] if in_row > 1 else [samples]
                    texts.append(text)
            whole = np.concatenate(pieces)
            whole = whole + rng.normal(0, 5e-4, len(whole)).astype(np.float32)
            soundfile.write(folder / f"{recording}.wav", whole, RATE)
            line = {"audio_filepath": f"{recording}.wav", "duration": len(whole) / RATE, "text": ". ".join(texts)}
            lines.append(json.dumps(line) + "\n")
            starts.append(begins)
    (folder / "all.json").write_text("".join(lines))
    return starts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a trained model of English")
    parser.add_argument("--quick", action="store_true", help="few sentences")
    parser.add_argument("--seed", type=int, default=7, help="of texts, voices and noise")
    args = parser.parse_args(arguments)
    print("sentences        words   median error   90 % below")
    for name, in_row in (("alone", 1), ("five in a row", 5)):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            model = args.model or str(folder / "model")
            if args.model is None:
                recipe = nemo_asr.load_recipe("demo.yaml")
                nemo_asr.TrainedModel("new", recipe, recipe.model(), nemo_asr.describe(recipe)).save(model)
            starts = make(folder, 10 if args.quick else 100, in_row, args.seed)
            told = io.StringIO()
            with contextlib.redirect_stdout(told), contextlib.redirect_stderr(io.StringIO()):
                align([model, str(folder / "all.json"), "--placement", "CPU"])
            found = [json.loads(line) for line in told.getvalue().splitlines()]
        words = [[w["start"] for part in line["segments"] for w in part["words"]] for line in found]
        errors = np.abs(np.concatenate(words) - np.concatenate(starts)) * 1000
        print(f"{name:15} {len(errors):6} {np.median(errors):11.0f} ms {np.quantile(errors, 0.9):9.0f} ms")


if __name__ == "__main__":
    main()
