"""Published kinds of models beside other programs: processor time, memory, and whether the texts are the same.

    PYTHONPATH=tests:TRANSFORMERS python benchmarks/published_models.py [--rounds 3] [--threads 2] [--quick]

TRANSFORMERS is a folder with transformers 5.24 (pip install --target), and, to measure it too, faster-whisper with
ctranslate2 and av. Models have random weights and the sizes of published ones, in folders of transformers, which both
read: Whisper tiny and base, wav2vec 2.0 base, and a Canary of 17 layers with 512 channels, 4 layers of its decoder and
few labels. A text of an attention decoder never ends by itself: each has as many labels as there are positions.
onnx-asr and sherpa-onnx, where they are installed, run the files that `nemo-lite export` writes; faster-whisper, where
it is, runs the folder that ctranslate2 makes of that of transformers.
All search greedily, in float32, and are told the language.

Each figure is of a process of its own, which reads the model, transcribes one recording and then four others, one by
one; programs take turns, the table shows medians. Processor seconds are those of the four, for a second of audio. On a
busy machine give --threads 1: threads that wait for each other take processor time too. Memory is the most that the
process held, less what it held before it read the model, when packages were imported. The last column counts the texts
of the four that are those of transformers, but for spaces.
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
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import soundfile
import torch
from toys import prompted_models

from nemo_asr.run.text.byte_pairs import ALPHABET

RATE, RECORDINGS, LABELS = 16000, 4, 60
_END, _START, _ENGLISH, _TRANSCRIBE, _NO_TIMES, _TOKENS = 50257, 50258, 50259, 50359, 50363, 51865
_NUM_PROMPT = 4  # the start, a language, a task, no times
_LAST = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")  # special ones before times
WHISPERS = {"whisper-tiny": (384, 6, 4), "whisper-base": (512, 8, 6)}  # channels, heads, layers
CANARY, WAV2VEC = "canary of 17 layers", "wav2vec2-base"
# The package of each program, which is imported before memory is counted.
PACKAGES = {
    "transformers": "transformers",
    "nemo_lite": "nemo_asr",
    "onnx-asr": "onnx_asr",
    "sherpa-onnx": "sherpa_onnx",
    "faster-whisper": "faster_whisper",
}
OTHERS = {
    **{name: ["onnx-asr", "faster-whisper"] for name in WHISPERS},
    WAV2VEC: ["sherpa-onnx"],
    CANARY: ["onnx-asr", "sherpa-onnx"],
}
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
        with torch.no_grad():
            model.lm_head.bias[1:4] = -1e4  # programs write them in their own ways
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
        vocab_size=_TOKENS, d_model=size, max_target_positions=LABELS + _NUM_PROMPT, **parts,
        **_ends(_END), pad_token_id=_END, decoder_start_token_id=_START,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    several = ("".join(letters) for letters in product(ascii_lowercase, repeat=4))
    # The last piece of the published ones is empty. By it, ctranslate2 knows a Whisper of many languages.
    pieces = [*ALPHABET.values(), *islice(several, _END - len(ALPHABET) - 1), ""]
    # Those of other languages have names of no meaning, as ctranslate2 counts tokens.
    names = ["endoftext", "startoftranscript", "en", *map(str, range(_ENGLISH + 1, _TRANSCRIBE - 1)), *_LAST]
    special = {number: f"<|{name}|>" for number, name in enumerate(names, _END)}
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": number, "content": token, "special": True, **flags} for number, token in special.items()]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
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
        "max_length": LABELS + _NUM_PROMPT,
    }
    tokenizer = {
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
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
    """The classes of transformers with their features and tokenizers."""
    transformers = import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if name == WAV2VEC:
        ctc = transformers.Wav2Vec2ForCTC.from_pretrained(folder).eval()
        of_waves = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)

        def of_ctc(samples: Any) -> str:
            inputs = of_waves(samples, sampling_rate=RATE, return_tensors="pt")
            return str(tokenizer.decode(ctc(inputs.input_values).logits[0].argmax(-1)))

        return of_ctc
    if name in WHISPERS:
        whisper = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
        extractor = transformers.WhisperFeatureExtractor(feature_size=80)

        def of_whisper(samples: Any) -> str:
            features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
            ids = whisper.generate(features, force_unique_generate_call=True)[0]
            return str(tokenizer.decode(ids, skip_special_tokens=True))

        return of_whisper
    canary = transformers.CanaryForConditionalGeneration.from_pretrained(folder).eval()
    of_canary = transformers.ParakeetFeatureExtractor(feature_size=80)
    prompt = torch.tensor([prompted_models.prompt_of("canary")])

    def of_prompt(samples: Any) -> str:
        inputs = dict(of_canary([samples], sampling_rate=RATE, return_tensors="pt"))
        told = {"decoder_input_ids": prompt, "max_new_tokens": LABELS, "num_beams": 1, "do_sample": False}
        return str(tokenizer.decode(canary.generate(**inputs, **told)[0][prompt.shape[1] :]))

    return of_prompt


def open_onnx_asr(folder: Path, name: str) -> Callable[[Any], str]:
    """onnx-asr with the exported files."""
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    kind = "whisper" if name in WHISPERS else "nemo-conformer-aed"
    model = import_module("onnx_asr").load_model(kind, folder, sess_options=options)
    return lambda samples: str(model.recognize(samples, sample_rate=RATE, language="en"))


def open_sherpa(folder: Path, name: str) -> Callable[[Any], str]:
    """sherpa-onnx with the exported files."""
    loaders = import_module("sherpa_onnx").OfflineRecognizer
    common = {"tokens": str(folder / "tokens.txt"), "num_threads": torch.get_num_threads()}
    if name == CANARY:
        files = {part: str(folder / f"{part}.onnx") for part in ("encoder", "decoder")}
        recognizer = loaders.from_nemo_canary(**files, **common, src_lang="en", tgt_lang="en")
    else:
        recognizer = loaders.from_omnilingual_asr_ctc(model=str(folder / "model.onnx"), **common)

    def of_stream(samples: Any) -> str:
        stream = recognizer.create_stream()
        stream.accept_waveform(RATE, samples)
        recognizer.decode_stream(stream)
        return str(stream.result.text)

    return of_stream


def open_faster_whisper(folder: Path, name: str) -> Callable[[Any], str]:
    """faster-whisper without what it does beside the model: no times, no second try, nothing taken for silence.

    Of the labels of prompt and text that it may have, it says at most half.
    """
    threads, kind = torch.get_num_threads(), import_module("faster_whisper").WhisperModel
    model = kind(str(folder), device="cpu", compute_type="float32", cpu_threads=threads)
    greedy: dict[str, Any] = {
        **dict.fromkeys(("compression_ratio_threshold", "log_prob_threshold", "no_speech_threshold")),
        **{"language": "en", "beam_size": 1, "temperature": 0.0, "without_timestamps": True},
        **{"suppress_tokens": [*range(_END, _TOKENS)], "suppress_blank": False},
        "max_new_tokens": 2 * LABELS - _NUM_PROMPT,
    }

    def of_segments(samples: Any) -> str:
        segments, _ = model.transcribe(samples, **greedy)
        return "".join(segment.text for segment in segments)

    return of_segments


PROGRAMS = {
    "transformers": open_transformers,
    "nemo_lite": open_nemo_lite,
    "onnx-asr": open_onnx_asr,
    "sherpa-onnx": open_sherpa,
    "faster-whisper": open_faster_whisper,
}


def write_for(program: str, folder: Path, name: str, seconds: float) -> Path | None:
    """The folder for another program, made of that of transformers. None, and why: there is none."""
    problem = "not installed"
    target = folder.with_name(f"{folder.name}-{program}")
    if find_spec(PACKAGES[program]) is not None:
        if program == "faster-whisper":
            converter = "import sys, ctranslate2.converters.transformers as c; c.main()"
            files = ["--copy_files", "tokenizer.json", "preprocessor_config.json"]
            command = [sys.executable, "-c", converter, "--model", str(folder), "--output_dir", str(target), *files]
        else:
            command = ["nemo-lite", "export", str(folder), str(target), "--format", program]
        if (program, name) == ("sherpa-onnx", CANARY):
            command += ["--audio", *map(str, write_recordings(folder.parent, seconds))]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode == 0:
            return target
        problem = (made.stderr.strip() or made.stdout.strip()).splitlines()[-1]
    print(f"{name:<20} {program:<14} left out: {problem}", flush=True)
    return None


def write_recordings(folder: Path, seconds: float) -> list[Path]:
    """Files of those that are measured."""
    paths = [folder / f"{number}.wav" for number in range(1, RECORDINGS + 1)]
    for number, path in enumerate(paths, 1):
        soundfile.write(path, audio(seconds, number), RATE, subtype="FLOAT")
    return paths


def most_memory() -> float:
    """MiB that this process has held at most. getrusage would count what the process held that started this one."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def measure(program: str, folder: Path, name: str, seconds: float, threads: int) -> None:
    """Print the figures of this process as JSON."""
    torch.set_num_threads(threads)
    package = import_module(PACKAGES[program])
    if program == "transformers":
        package.WhisperForConditionalGeneration  # noqa: B018  # is imported when it is named
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
        "texts": [" ".join(text.split()) for text in texts],
    }
    print(json.dumps(figures))


def run(program: str, folder: str, name: str, seconds: float, threads: int) -> dict[str, Any]:
    """The figures of a process."""
    command = [sys.executable, __file__, "--program", program, "--folder", folder, "--name", name]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    options = ["--seconds", str(seconds), "--threads", str(threads)]
    made = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True, check=True, env=environment)
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
    columns = f"{'processor s for 1 s':>19} {'clock':>7} {'MiB':>6}  ratio to transformers"
    print(f"{'model':<20} {'program':<14} {columns}")
    with tempfile.TemporaryDirectory() as place:
        for name in args.models:
            folder = Path(place) / name.replace(" ", "-")
            write(folder, name, args.quick)
            folders: dict[str, Path | None] = {"transformers": folder, "nemo_lite": folder}
            folders |= {program: write_for(program, folder, name, args.seconds) for program in OTHERS[name]}
            found: dict[str, list[dict[str, Any]]] = {program: [] for program, made in folders.items() if made}
            for _ in range(args.rounds):
                for program, figures in found.items():
                    figures.append(run(program, str(folders[program]), name, args.seconds, args.threads))
            for program, figures in found.items():
                show(name, program, figures, found["transformers"])


def show(name: str, program: str, figures: list[dict[str, Any]], reference: list[dict[str, Any]]) -> None:
    """Print the line of a program."""
    processor, clock, memory = medians(figures)
    their_processor, _, their_memory = medians(reference)
    pairs = zip(figures[0]["texts"], reference[0]["texts"], strict=True)
    ratios = f"{processor / their_processor:.2f} x, memory {memory / their_memory:.2f} x"
    same = f"{sum(text == theirs for text, theirs in pairs)} of {RECORDINGS} texts"
    print(f"{name:<20} {program:<14} {processor:>19.4f} {clock:>7.4f} {memory:>6.0f}  {ratios}, {same}", flush=True)


def medians(figures: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Of processor time, time and memory."""
    of = {key: statistics.median(each[key] for each in figures) for key in ("processor", "clock", "memory")}
    return of["processor"], of["clock"], of["memory"]


if __name__ == "__main__":
    main()
