"""A server under load: latency, throughput and texts of many clients at once, against one request at a time.

    python benchmarks/serving.py MODEL MANIFEST [--clients 32] [--requests 256] [--rounds 3]

Starts ``nemo-lite serve MODEL`` on this machine and sends it the recordings of MANIFEST, from one client and from many
at once, in turns. Then the same recordings are transcribed by one call of ``model.transcribe``, which is as fast
as batches can make it, and texts are compared. With ``--url`` another server with OpenAI's API on this machine is asked
in the same way, in the same turns. Ends after ten minutes at most.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

import numpy as np

import nemo_asr
import nemo_lite
from nemo_asr.data.manifest import read_lines
from nemo_asr.transcribe.onnx_model import SUFFIX, OnnxModel

_MOST_SECONDS, _MOST_REQUESTS, _MOST_CLIENTS = 600.0, 5000, 64
_BOUNDARY = "serving-benchmark"


class Load(NamedTuple):
    """What some clients saw."""

    seconds: float
    latencies: list[float]
    texts: dict[int, str]


def form_of(path: Path) -> bytes:
    """A request's body with one file."""
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{path.name}"\r\n\r\n'
    model = f'\r\n--{_BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--{_BOUNDARY}--\r\n'
    return head.encode() + path.read_bytes() + model.encode()


def ask(address: str, forms: Sequence[bytes], num_clients: int, deadline: float) -> Load:
    """Send all forms from so many clients, each of which waits for its answer before it sends the next one."""
    numbers = iter(range(len(forms)))
    lock, latencies, texts = threading.Lock(), list[float](), dict[int, str]()

    def work() -> None:
        connection = http.client.HTTPConnection(address, timeout=120)
        while time.monotonic() < deadline:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            started = time.perf_counter()
            kind = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
            connection.request("POST", "/v1/audio/transcriptions", forms[number], kind)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, content
            with lock:
                latencies.append(time.perf_counter() - started)
                texts[number] = json.loads(content)["text"].strip()
        connection.close()

    started = time.perf_counter()
    with ThreadPoolExecutor(num_clients) as executor:
        for client in [executor.submit(work) for _ in range(num_clients)]:
            client.result()
    return Load(time.perf_counter() - started, latencies, texts)


@contextmanager
def started(model: str) -> Iterator[str]:
    """The address of a server of our own."""
    command = [sys.executable, "-m", "nemo_lite", "serve", model, "--port", "0", "--placement", "CPU"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = list[str]()
        while not (lines and (found := re.search(r"Serving at http://([\d.:]+)", lines[-1]))):
            lines.append(process.stderr.readline())
            if not lines[-1]:
                sys.exit("".join(lines))
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)


def transcribed(model: str, paths: Sequence[Path]) -> tuple[float, list[str]]:
    """The seconds and the texts of one call."""
    names = list(map(str, paths))
    if model.endswith(SUFFIX):
        exported = OnnxModel(model)
        begin = time.perf_counter()
        found = exported.transcribe(names).transcripts
    else:
        factory = nemo_lite.NeuralModuleFactory(placement=nemo_lite.DeviceType.CPU, set_default=False)
        loaded = nemo_asr.load_model(model, factory=factory)
        begin = time.perf_counter()
        found = loaded.transcribe(names, factory=factory)
    return time.perf_counter() - begin, [transcript.text for transcript in found]


def tell(name: str, loads: Sequence[Load], audio_seconds: float) -> None:
    """Of each round the same; the median is printed, and the range of the throughput."""
    latencies = np.concatenate([load.latencies for load in loads])
    rates = [len(load.latencies) / load.seconds for load in loads]
    speed = audio_seconds / len(loads[0].latencies) * np.median(rates)
    print(
        f"{name}: {np.median(rates):.1f} requests a second ({min(rates):.1f} to {max(rates):.1f}), "
        f"{speed:.0f} s of audio a second; latency {1000 * np.median(latencies):.0f} ms, "
        f"95 % below {1000 * np.quantile(latencies, 0.95):.0f} ms"
    )


def main() -> None:
    """One client and many, in turns, on each server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("manifest")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", help="another server, such as http://127.0.0.1:9000")
    args = parser.parse_args()
    deadline = time.monotonic() + _MOST_SECONDS
    source, lines = read_lines(args.manifest, "audio")
    named = [(Path(source.resolve(line.path)), line.duration or 0.0) for _, line in lines]
    drawn = [named[number % len(named)] for number in range(min(args.requests, _MOST_REQUESTS))]
    forms, audio_seconds = [form_of(path) for path, _ in drawn], sum(seconds for _, seconds in drawn)
    with started(args.model) as address:
        addresses = {"nemo-lite serve": address}
        if args.url:
            other = urlparse(args.url)
            if other.hostname not in ("127.0.0.1", "localhost", "::1"):
                sys.exit("--url: only a server on this machine is put under load")
            addresses[args.url] = other.netloc
        loads: dict[tuple[str, int], list[Load]] = {}
        for name, place in addresses.items():
            ask(place, forms[:8], 2, deadline)  # so that caches are warm
            loads |= {(name, clients): [] for clients in (1, min(args.clients, _MOST_CLIENTS))}
        for _ in range(args.rounds):
            for (name, clients), done in loads.items():
                done.append(ask(addresses[name], forms, clients, deadline))
    for (name, clients), done in loads.items():
        tell(f"{name}, {clients} at once", done, audio_seconds)
    took, texts = transcribed(args.model, [path for path, _ in drawn])
    print(f"one call of transcribe: {len(drawn) / took:.1f} recordings a second, {audio_seconds / took:.0f} s of audio")
    for (name, clients), done in loads.items():
        same = [sum(load.texts.get(number) == text for number, text in enumerate(texts)) for load in done]
        print(f"{name}, {clients} at once: texts as of transcribe {min(same)} to {max(same)} of {len(drawn)}")


if __name__ == "__main__":
    main()
