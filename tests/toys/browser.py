"""Chromium without a window, driven by its DevTools protocol: a page, its elements, its pictures."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
    "--autoplay-policy=no-user-gesture-required",
]
START_SECONDS = 60.0


class Page:
    """An open page.

    Attributes:
        problems: errors of scripts, and messages of the console that are errors.
        requests: addresses that the page asked for.
    """

    def __init__(self, socket):
        self._socket, self._number = socket, 0
        self.problems, self.requests = [], []
        for domain in ("Page", "Runtime", "DOM", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Run a command of the protocol; its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            self._note(message)
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def _note(self, message):
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"].get("exception", params)))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def value(self, script):
        """The value of an expression of JavaScript."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, condition, seconds=60.0):
        """Until an expression is true; its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.value(condition)):
            assert time.monotonic() < deadline, f"{condition} stays false: {self.value('document.body.innerText')}"
            time.sleep(0.05)
        return value

    def upload(self, selector, path):
        """Choose a file in an input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            text = key if len(key) == 1 and kind == "keyDown" else ""
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text)

    def size(self, width, height, is_dark=False):
        """Of the window, and what the system is said to prefer."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        features = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, path):
        """Write what is seen as PNG."""
        content = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        Path(path).write_bytes(base64.b64decode(content))


@contextmanager
def opened(folder, microphone=None):
    """A `Page` of a new Chromium.

    Args:
        folder: for its profile; it must be empty.
        microphone: a WAV file that it hears, once.
    """
    from websockets.sync.client import connect

    flags = [*FLAGS, f"--user-data-dir={folder}"]
    if microphone:
        flags.append(f"--use-file-for-fake-audio-capture={microphone}%noloop")
    with open(f"{folder}.log", "wb") as log:
        process = subprocess.Popen([CHROMIUM, *flags, "about:blank"], stdout=log, stderr=log)
    try:
        port_file = Path(folder) / "DevToolsActivePort"
        deadline = time.monotonic() + START_SECONDS
        while not port_file.is_file() or len(port_file.read_text().split()) < 2:
            assert process.poll() is None, Path(f"{folder}.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.05)
        port = port_file.read_text().split()[0]
        with connect(_address_of_page(port), max_size=None, compression=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(30)


def _address_of_page(port):
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
        pages = json.load(answer)
    return next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
