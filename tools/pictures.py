"""The picture of README.md of the server's page: a model, and a recording that it hears. Needs Chromium.

``make pictures`` takes the run of ``make demo``.
"""

from __future__ import annotations

import argparse
import base64
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
WIDTH, HEIGHT = 900, 820
START_SECONDS = 300.0


def main() -> None:
    """Write server.png."""
    from toys.browser import CHROMIUM, opened  # lies in tests, which are on the path since above

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("recording", type=Path, help="what the page transcribes")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures")
    options = parser.parse_args()
    if CHROMIUM is None:
        parser.error("Chromium is not installed")
    with tempfile.TemporaryDirectory() as profile, serving(options.run) as address, opened(profile) as page:
        page.size(WIDTH, HEIGHT)
        page.open(f"{address}?lang=en")
        page.wait("document.body.dataset.state === 'idle'")
        page.upload("#file", options.recording.resolve())
        page.wait("document.querySelector('.word') && !document.getElementById('picture').hidden")
        time.sleep(1)  # the spectrogram is drawn
        shown = page.call("Page.captureScreenshot")  # the window, not the whole page
        (options.out / "server.png").write_bytes(base64.b64decode(shown["data"]))


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """The address of a server with the model of a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "nemo_lite", "serve", run, "--port", str(port)])
    address, deadline = f"http://127.0.0.1:{port}/", time.monotonic() + START_SECONDS
    try:
        while True:
            try:
                urlopen(address, timeout=30).close()
                break
            except URLError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
