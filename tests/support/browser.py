"""A real browser for tests: headless Chromium, controlled over a pipe (DevTools protocol)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from queue import Empty, Queue
from types import TracebackType
from typing import Any

SECONDS = 60.0
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    """The path of the program, or None if this machine has none."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One page of a new browser; `complaints` has the page's errors (scripts, policy)."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        theirs_in, self._orders = os.pipe()
        answers, theirs_out = os.pipe()
        self._process = subprocess.Popen(  # it reads descriptor 3 and writes descriptor 4
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "-", program, *_FLAGS,
             f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._folder.name},
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._answers: Queue[dict[str, Any]] = Queue()
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()
        self._asked = 0
        self._session = ""
        self.complaints: list[str] = []

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as pipe:
            rest = b""
            while data := pipe.read1(1 << 16):
                *messages, rest = (rest + data).split(b"\0")
                for message in messages:
                    self._answers.put(json.loads(message))

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Make one call of the protocol; AssertionError if the call fails or gets no answer."""
        self._asked += 1
        order: dict[str, Any] = {"id": self._asked, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while True:
            try:
                answer = self._answers.get(timeout=SECONDS)
            except Empty:
                raise AssertionError(f"no answer to {method} in {SECONDS} s") from None
            if answer.get("id") == self._asked:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found
            self._listen(answer)

    def _listen(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded":
            entry = event["params"]["entry"]
            if entry["level"] in ("warning", "error"):
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")

    def open(self, url: str, width: int = 1100, height: int = 900) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Log", "Runtime", "Page"):
            self.ask(f"{domain}.enable")
        self.resize(width, height)
        self.ask("Page.navigate", url=url)

    def resize(self, width: int, height: int = 900) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """The visible text of an element; "" if there is no such element."""
        return str(self.evaluate(f"document.querySelector({selector!r})?.innerText ?? ''"))

    def scheme(self, name: str) -> None:
        """Set the preferred colour scheme: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self) -> bytes:
        """A PNG of the whole page."""
        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self._session = ""
            self.ask("Browser.close")
        os.close(self._orders)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        self._folder.cleanup()
