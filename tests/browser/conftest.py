"""Headless Chromium, driven over its DevTools protocol with what the project has anyway.

`make browser` needs Debian's chromium and, for the accessibility checker, npm's axe-core below
.make/browser; a test whose tool is missing is skipped and says so.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import Ping, TextMessage

from luxrelay.client.exchange import Endpoint, Exchanges
from luxrelay.client.transport import Line

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / ".make" / "browser" / "node_modules" / "axe-core" / "axe.min.js"
SHOTS = Path(os.environ.get("LUXRELAY_SCREENSHOTS", ""))
"""Where pictures go; nowhere unless it is set."""


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, folder: Path, binary: str) -> None:
        """Start it."""
        self._profile = folder / "profile"
        self._process = subprocess.Popen(
            [
                binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                "--disable-component-update", "--remote-debugging-port=0",
                f"--user-data-dir={self._profile}", "--window-size=1440,1000", "about:blank",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.errors: list[str] = []
        """Errors that the page's scripts wrote or threw."""
        self.network_errors: list[str] = []
        """Errors of loading, which a node that is down causes."""
        self.requests: list[str] = []
        """Addresses that the page asked for."""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._connect()

    def _connect(self) -> None:
        port_file = self._profile / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text().count("\n")):
            assert self._process.poll() is None, "chromium ended"
            assert time.monotonic() < deadline, "chromium is not there after a minute"
            time.sleep(0.05)
        port = port_file.read_text().split("\n", 1)[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=20) as answer:
            target = next(each for each in json.load(answer) if each["type"] == "page")
        endpoint = Endpoint.of(f"127.0.0.1:{port}")
        self._line = Line.open(endpoint, 60.0, None)
        path = target["webSocketDebuggerUrl"].split(port, 1)[1]
        received = self._line.run(Exchanges(endpoint).upgrade(path, bytes(16)))
        self._frames = Connection(ConnectionType.CLIENT, trailing_data=received)
        self._parts: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a DevTools command."""
        self._number += 1
        number = self._number
        text = json.dumps({"id": number, "method": method, "params": params})
        self._line.send(self._frames.send(TextMessage(data=text)))
        while number not in self._answers:
            self._receive()
        answer = self._answers.pop(number)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> None:
        self._frames.receive_data(self._line.receive())
        for event in self._frames.events():
            if isinstance(event, Ping):
                self._line.send(self._frames.send(event.response()))
            elif isinstance(event, TextMessage):
                self._parts.append(event.data)
                if event.message_finished:
                    whole, self._parts = "".join(self._parts), []
                    self._take(json.loads(whole))

    def _take(self, said: dict[str, Any]) -> None:
        if "id" in said:
            self._answers[said["id"]] = said
            return
        params = said.get("params", {})
        match said.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning", "assert"}:
                self.errors.append(json.dumps(params["args"])[:500])
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                entry = params["entry"]
                kept = self.network_errors if entry["source"] == "network" else self.errors
                kept.append(f"{entry['text']} {entry.get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Network.webSocketCreated":
                self.requests.append(params["url"])

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        result = self.command(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, script: str, seconds: float = 20.0) -> Any:
        """Return the first true value of an expression; fail when none comes in time."""
        deadline = time.monotonic() + seconds
        while not (found := self.evaluate(script)):
            assert time.monotonic() < deadline, f"not within {seconds} s: {script}"
            time.sleep(0.02)
        return found

    def open(self, address: str, *, width: int = 1440, height: int = 1000, dark: bool) -> None:
        """Show a page at a size, in dark or light."""
        self.shape(width, height, dark=dark)
        self.command("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def shape(self, width: int, height: int, *, dark: bool) -> None:
        """Give the page a size, and dark or light."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, name: str) -> None:
        """Write a picture of the whole page, if pictures are wanted."""
        if SHOTS.name:
            shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True)
            SHOTS.mkdir(parents=True, exist_ok=True)
            (SHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End it."""
        self._line.close()
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A headless Chromium."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    if binary is None:
        pytest.skip("chromium is not installed")
    made = Browser(tmp_path, binary)
    yield made
    made.close()


@pytest.fixture
def axe() -> str:
    """The accessibility checker's script."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed below .make/browser; make browser does it")
    return AXE.read_text()


Maker = Callable[[str], Any]
