"""A server under load: latency, throughput and texts of many clients at once, against one request at a time.

    python benchmarks/serving.py MODEL MANIFEST [--clients 32] [--requests 256] [--rounds 3] [--url URL ...]

Starts ``nemo-lite serve MODEL`` on this machine and sends it the recordings of MANIFEST, from one client and from many
at once, in turns. Then the same recordings are transcribed by one call of ``model.transcribe``, which is as fast
as batches can make it, and texts are compared. With ``--url`` other servers on this machine are asked in the same
turns: ``http://127.0.0.1:PORT`` has OpenAI's API, ``ws://127.0.0.1:PORT`` is sherpa-onnx-offline-websocket-server,
which gets samples, no files. On Linux the servers' CPU time is printed, too: other programs change it little.
Ends after ten minutes at most.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

import numpy as np
import soundfile

import nemo_asr
import nemo_lite
from nemo_asr.run.manifest import read_lines
from nemo_asr.run.onnx.onnx_model import SUFFIX, OnnxModel

_MOST_SECONDS, _MOST_REQUESTS, _MOST_CLIENTS = 600.0, 5000, 64
_BOUNDARY = "serving-benchmark"


class Load(NamedTuple):
    """What some clients saw, and the CPU time of the server (nan where it is not known)."""

    seconds: float
    cpu_seconds: float
    latencies: list[float]
    texts: dict[int, str]


class OpenAiClient:
    """A connection to a server with OpenAI's API."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=120)

    @staticmethod
    def request_of(path: Path) -> bytes:
        """A form with one file."""
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{path.name}"\r\n\r\n'
        model = f'\r\n--{_BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1'
        return head.encode() + path.read_bytes() + f"{model}\r\n--{_BOUNDARY}--\r\n".encode()

    def text(self, request: bytes) -> str:
        """Of the recording in a request."""
        kind = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
        self._connection.request("POST", "/v1/audio/transcriptions", request, kind)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return str(json.loads(content)["text"])

    def close(self) -> None:
        """Leave."""
        self._connection.close()


class SherpaClient:
    """A connection to sherpa-onnx-offline-websocket-server."""

    def __init__(self, address: str) -> None:
        from websockets.sync.client import connect

        self._connection = connect(f"ws://{address}", max_size=None)
        self._socket = self._connection.__enter__()

    @staticmethod
    def request_of(path: Path) -> bytes:
        """Sample rate, number of bytes, samples; little endian."""
        samples, rate = soundfile.read(path, dtype="float32")
        return struct.pack("<ii", rate, samples.nbytes) + bytes(samples.tobytes())

    def text(self, request: bytes) -> str:
        """Of the recording in a request; its server keeps double spaces."""
        self._socket.send(request)
        return " ".join(json.loads(self._socket.recv(timeout=120))["text"].split())

    def close(self) -> None:
        """Leave."""
        self._socket.send("Done")
        self._connection.__exit__(None, None, None)


_CLIENTS: dict[str, type[OpenAiClient] | type[SherpaClient]] = {"http": OpenAiClient, "ws": SherpaClient}


def cpu_seconds(port: int | None) -> float:
    """Of the process that listens on a port; nan where /proc does not tell it."""
    with suppress(OSError):
        fields = map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        inodes = {line[9] for line in fields if line[3] == "0A" and int(line[1].rpartition(":")[2], 16) == port}
        for name in Path("/proc").glob("[0-9]*/fd/*"):
            with suppress(OSError):
                if os.readlink(name).removeprefix("socket:[").rstrip("]") in inodes:
                    times = name.parents[1].joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
                    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return float("nan")


def ask(url: str, requests: Sequence[bytes], num_clients: int, deadline: float) -> Load:
    """Send all requests from so many clients, each of which waits for its answer before it sends the next one."""
    numbers = iter(range(len(requests)))
    lock, latencies, texts = threading.Lock(), list[float](), dict[int, str]()
    place = urlparse(url)
    cpu_before = cpu_seconds(place.port)

    def work() -> None:
        client = _CLIENTS[place.scheme](place.netloc)
        while time.monotonic() < deadline:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            started = time.perf_counter()
            text = client.text(requests[number])
            with lock:
                latencies.append(time.perf_counter() - started)
                texts[number] = text.strip()
        client.close()

    started = time.perf_counter()
    with ThreadPoolExecutor(num_clients) as executor:
        for client in [executor.submit(work) for _ in range(num_clients)]:
            client.result()
    return Load(time.perf_counter() - started, cpu_seconds(place.port) - cpu_before, latencies, texts)


@contextmanager
def started(model: str) -> Iterator[str]:
    """The URL of a server of our own."""
    command = [sys.executable, "-m", "nemo_lite", "serve", model, "--port", "0", "--placement", "CPU"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = list[str]()
        while not (lines and (found := re.search(r"Serving at (http://[\d.:]+)", lines[-1]))):
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
    cpu = np.median([1000 * load.cpu_seconds / len(load.latencies) for load in loads])
    speed = audio_seconds / len(loads[0].latencies) * np.median(rates)
    print(
        f"{name}: {np.median(rates):.1f} requests a second ({min(rates):.1f} to {max(rates):.1f}), "
        f"{speed:.0f} s of audio a second; latency {1000 * np.median(latencies):.0f} ms, "
        f"95 % below {1000 * np.quantile(latencies, 0.95):.0f} ms; CPU {cpu:.1f} ms a request"
    )


def main() -> None:
    """One client and many, in turns, on each server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("manifest")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", action="append", default=[], help="another server, such as http://127.0.0.1:9000")
    args = parser.parse_args()
    deadline = time.monotonic() + _MOST_SECONDS
    source, lines = read_lines(args.manifest, "audio")
    named = [(Path(source.resolve(line.path)), line.duration or 0.0) for _, line in lines]
    drawn = [named[number % len(named)] for number in range(min(args.requests, _MOST_REQUESTS))]
    audio_seconds = sum(seconds for _, seconds in drawn)
    requests = {
        scheme: [client.request_of(path) for path, _ in drawn]
        for scheme, client in _CLIENTS.items()
        if scheme in {"http", *(urlparse(url).scheme for url in args.url)}
    }
    for url in args.url:
        if urlparse(url).hostname not in ("127.0.0.1", "localhost", "::1") or urlparse(url).scheme not in _CLIENTS:
            sys.exit(f"--url {url}: wanted http:// or ws:// and a server on this machine")
    with started(args.model) as own:
        urls = {"nemo-lite serve": own, **{url: url for url in args.url}}
        loads: dict[tuple[str, int], list[Load]] = {}
        for name, url in urls.items():
            ask(url, requests[urlparse(url).scheme][:8], 2, deadline)  # so that caches are warm
            loads |= {(name, clients): [] for clients in (1, min(args.clients, _MOST_CLIENTS))}
        for _ in range(args.rounds):
            for (name, clients), done in loads.items():
                done.append(ask(urls[name], requests[urlparse(urls[name]).scheme], clients, deadline))
    for (name, clients), done in loads.items():
        tell(f"{name}, {clients} at once", done, audio_seconds)
    took, texts = transcribed(args.model, [path for path, _ in drawn])
    print(f"one call of transcribe: {len(drawn) / took:.1f} recordings a second, {audio_seconds / took:.0f} s of audio")
    for (name, clients), done in loads.items():
        same = [sum(load.texts.get(number) == text for number, text in enumerate(texts)) for load in done]
        print(f"{name}, {clients} at once: texts as of transcribe {min(same)} to {max(same)} of {len(drawn)}")


if __name__ == "__main__":
    main()
