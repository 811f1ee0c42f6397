"""Published kinds of models beside transformers and sherpa-onnx: processor time and memory.

    PYTHONPATH=tests:TRANSFORMERS python benchmarks/published_models.py [--rounds 3] [--threads 2] [--quick]

TRANSFORMERS is a folder with transformers 5.24 (pip install --target). Models have random weights and the sizes of
published ones, in folders of transformers, which both read: Whisper tiny and base, wav2vec 2.0 base, and a Canary of 17
layers with 512 channels and 4 layers of its decoder. A text of an attention decoder never ends by itself: each has as
many labels as there are positions. sherpa-onnx, where it is installed, runs the file that `nemo-lite export` writes.

Each figure is of a process of its own, which reads the folder, transcribes one recording and then four others, one by
one; programs take turns, the table shows medians. Processor seconds are those of the four, for a second of audio. On a
busy machine give --threads 1: threads that wait for each other take processor time too. Memory is the most that the
process held, less what it held before it read the model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from toys import prompted_models

from nemo_asr.run.text.byte_pairs import ALPHABET

RATE, RECORDINGS, LABELS = 16000, 4, 60
_END, _START, _ENGLISH, _TRANSCRIBE, _NO_TIMES, _TOKENS = 50257, 50258, 50259, 50359, 50363, 51865
WHISPERS = {"whisper-tiny": (384, 6, 4), "whisper-base": (512, 8, 6)}  # channels, heads, layers
CANARY, WAV2VEC = "canary of 17 layers", "wav2vec2-base"
QUICK = {"num_hidden_layers": 1}


def audio(seconds: float, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Noise, in different loudness from second to second."""
    draws = np.random.default_rng(number)
    size = int(RATE * seconds)
    loudness = np.repeat(draws.uniform(0.01, 0.2, -(-size // RATE)), RATE)[:size]
    return (draws.standard_normal(size) * loudness).astype(np.float32)


# Folders with random weights.


def write(folder: Path, name: str, is_quick: bool) -> None:
    """Write the folder of a model, as transformers writes it, with a tokenizer of pieces that stand for none."""
    torch.manual_seed(0)
    transformers = import_module("transformers")
    if name in WHISPERS:
        model, files = _whisper(transformers, *WHISPERS[name], is_quick)
    elif name == WAV2VEC:
        config = transformers.Wav2Vec2Config(vocab_size=32, pad_token_id=0, **(QUICK if is_quick else {}))
        model = transformers.Wav2Vec2ForCTC(config)
        tokens = ["<pad>", "<s>", "</s>", "<unk>", "|", *map(chr, range(65, 91)), "'"]
        files = {
            "vocab.json": {token: number for number, token in enumerate(tokens)},
            "tokenizer_config.json": {"tokenizer_class": "Wav2Vec2CTCTokenizer"},
            "preprocessor_config.json": {"do_normalize": True, "sampling_rate": RATE},
        }
    else:
        model, files = _canary(transformers, is_quick)
    model.save_pretrained(folder)
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))


def _whisper(transformers: Any, size: int, heads: int, layers: int, is_quick: bool) -> tuple[Any, dict[str, Any]]:
    parts = {
        f"{part}_{key}": value
        for part in ("encoder", "decoder")
        for key, value in (("layers", 1 if is_quick else layers), ("attention_heads", heads), ("ffn_dim", 4 * size))
    }
    config = transformers.WhisperConfig(
        vocab_size=_TOKENS, d_model=size, max_target_positions=LABELS + 4, **parts, **_ends(_END), pad_token_id=_END,
        decoder_start_token_id=_START, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    several = ("".join(letters) for length in (2, 3) for letters in product(ALPHABET.values(), repeat=length))
    pieces = [*ALPHABET.values(), *islice(several, _END - len(ALPHABET))]
    special = {"<|endoftext|>": _END, "<|startoftranscript|>": _START, "<|en|>": _ENGLISH}
    special |= {"<|transcribe|>": _TRANSCRIBE, "<|notimestamps|>": _NO_TIMES}
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    added = [{"id": number, "content": token, "special": True} for token, number in special.items()]
    generation = {
        **_ends(_END),
        "pad_token_id": _END,
        "decoder_start_token_id": _START,
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": _ENGLISH},
        "task_to_id": {"transcribe": _TRANSCRIBE},
        "no_timestamps_token_id": _NO_TIMES,
        "suppress_tokens": [*range(_END, _TOKENS)],
        "language": "en",
        "task": "transcribe",
        "max_length": LABELS + 4,
    }
    tokenizer = {
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "added_tokens": added,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    features = {"feature_size": 80, "sampling_rate": RATE, "chunk_length": 30}
    files = {"tokenizer.json": tokenizer, "generation_config.json": generation, "preprocessor_config.json": features}
    return transformers.WhisperForConditionalGeneration(config), files


def _ends(number: int) -> dict[str, int]:
    return {"eos_token_id": number, "bos_token_id": number}


def _canary(transformers: Any, is_quick: bool) -> tuple[Any, dict[str, Any]]:
    config = prompted_models.config_of("canary")
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
    config["encoder_config"] |= {**sizes, "num_hidden_layers": 17, "subsampling_conv_channels": 256, "layerdrop": 0.0}
    config["decoder_config"] |= {**sizes, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 4}
    config["decoder_config"]["max_position_embeddings"] = LABELS + len(prompted_models.prompt_of("canary"))
    for part in ("encoder_config", "decoder_config") if is_quick else ():
        config[part] |= QUICK
    kind = transformers.CanaryForConditionalGeneration
    model = kind(kind.config_class(**{key: value for key, value in config.items() if key != "model_type"}))
    with torch.no_grad():
        model.proj_out.bias[: len(prompted_models.SPECIAL) + 1] = -1e4
    files = {
        "config.json": config,
        "tokenizer.json": prompted_models.tokenizer(),
        "processor_config.json": {"feature_extractor": {"feature_size": 80, "sampling_rate": RATE}},
    }
    return model, files


# Programs: each gives a function from samples to a text.


def open_nemo_lite(folder: Path, name: str) -> Callable[[Any], str]:
    """The model folder as `transcribe` takes it."""
    import nemo_asr

    model = nemo_asr.load_model(folder)
    return lambda samples: str(model.transcribe([samples], RATE, cutting=None)[0].text)


def open_transformers(folder: Path, name: str) -> Callable[[Any], str]:
    """The classes of transformers with their features; ids stand for a text."""
    transformers = import_module("transformers")
    if name == WAV2VEC:
        ctc = transformers.Wav2Vec2ForCTC.from_pretrained(folder).eval()
        of_waves = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)

        def of_ctc(samples: Any) -> str:
            inputs = of_waves(samples, sampling_rate=RATE, return_tensors="pt")
            return str(torch.unique_consecutive(ctc(inputs.input_values).logits[0].argmax(-1)).tolist())

        return of_ctc
    if name in WHISPERS:
        whisper = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
        extractor = transformers.WhisperFeatureExtractor(feature_size=80)

        def of_whisper(samples: Any) -> str:
            features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
            return str(whisper.generate(features, force_unique_generate_call=True)[0].tolist())

        return of_whisper
    canary = transformers.CanaryForConditionalGeneration.from_pretrained(folder).eval()
    of_canary = transformers.ParakeetFeatureExtractor(feature_size=80)
    prompt = torch.tensor([prompted_models.prompt_of("canary")])

    def of_prompt(samples: Any) -> str:
        inputs = dict(of_canary([samples], sampling_rate=RATE, return_tensors="pt"))
        told = {"decoder_input_ids": prompt, "max_new_tokens": LABELS, "num_beams": 1, "do_sample": False}
        return str(canary.generate(**inputs, **told)[0].tolist()[prompt.shape[1] :])

    return of_prompt


def open_sherpa(folder: Path, name: str) -> Callable[[Any], str]:
    """sherpa-onnx with the exported file beside the folder."""
    sherpa_onnx = import_module("sherpa_onnx")
    place = folder.with_name(f"{folder.name}-sherpa")
    recognizer = sherpa_onnx.OfflineRecognizer.from_omnilingual_asr_ctc(
        model=str(place / "model.onnx"), tokens=str(place / "tokens.txt"), num_threads=torch.get_num_threads()
    )

    def of_stream(samples: Any) -> str:
        stream = recognizer.create_stream()
        stream.accept_waveform(RATE, samples)
        recognizer.decode_stream(stream)
        return str(stream.result.text)

    return of_stream


PROGRAMS = {"nemo_lite": open_nemo_lite, "transformers": open_transformers, "sherpa-onnx": open_sherpa}


def most_memory() -> float:
    """MiB that this process has held at most. getrusage would count what the process held that started this one."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def measure(program: str, folder: Path, name: str, seconds: float, threads: int) -> None:
    """Print the figures of this process as JSON."""
    torch.set_num_threads(threads)
    if program == "transformers":
        import_module("transformers").WhisperForConditionalGeneration  # noqa: B018  # is imported when it is named
    elif program == "nemo_lite":
        import_module("nemo_asr")
    before = most_memory()
    with torch.inference_mode():
        recognise = PROGRAMS[program](folder, name)
        recognise(audio(seconds, 0))
        clock, processor = time.perf_counter(), time.process_time()
        texts = [recognise(audio(seconds, number)) for number in range(1, RECORDINGS + 1)]
    total = RECORDINGS * seconds
    figures = {
        "processor": (time.process_time() - processor) / total,
        "clock": (time.perf_counter() - clock) / total,
        "memory": most_memory() - before,
        "texts": texts,
    }
    print(json.dumps(figures))


def run(program: str, folder: Path, name: str, seconds: float, threads: int) -> dict[str, Any]:
    """The figures of a process."""
    command = [sys.executable, __file__, "--program", program, "--folder", str(folder), "--name", name]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    options = ["--seconds", str(seconds), "--threads", str(threads)]
    made = subprocess.run([*command, *options], capture_output=True, text=True, check=True, env=environment)
    figures: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Published kinds of models beside other programs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a recording")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=[*WHISPERS, WAV2VEC, CANARY])
    parser.add_argument("--quick", action="store_true", help="models of one layer; the figures mean nothing")
    for name in ("program", "folder", "name"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.program:
        measure(args.program, Path(args.folder), args.name, args.seconds, args.threads)
        return
    print(f"{'model':<20} {'program':<13} {'processor s for 1 s':>19} {'clock':>7} {'MiB':>6}  ratio to transformers")
    with tempfile.TemporaryDirectory() as place:
        for name in args.models:
            folder = Path(place) / name.replace(" ", "-")
            write(folder, name, args.quick)
            programs = ["transformers", "nemo_lite"]
            if name == WAV2VEC:
                target = folder.with_name(f"{folder.name}-sherpa")
                export = ["nemo-lite", "export", str(folder), str(target), "--format", "sherpa-onnx"]
                if subprocess.run(export, capture_output=True, check=False).returncode == 0:
                    programs.append("sherpa-onnx")
            found: dict[str, list[dict[str, Any]]] = {program: [] for program in programs}
            for _ in range(args.rounds):
                for program, figures in found.items():
                    figures.append(run(program, folder, name, args.seconds, args.threads))
            medians = {
                program: [statistics.median(each[key] for each in figures) for key in ("processor", "clock", "memory")]
                for program, figures in found.items()
            }
            theirs = medians["transformers"]
            for program, (processor, clock, memory) in medians.items():
                ratios = f"{processor / theirs[0]:.2f} x, memory {memory / theirs[2]:.2f} x"
                print(f"{name:<20} {program:<13} {processor:>19.4f} {clock:>7.4f} {memory:>6.0f}  {ratios}", flush=True)


if __name__ == "__main__":
    main()
