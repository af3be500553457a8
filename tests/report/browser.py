"""A real headless Chromium, driven through its own protocol over a pipe: one start for all that a test wants to see.

Source: https://chromedevtools.github.io/devtools-protocol/ ; --remote-debugging-pipe reads from descriptor 3 and writes to 4.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-headless-shell", "google-chrome", "chrome")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """events: what the page told, in order."""

    def __init__(self, program: str, folder: Path, timeout_s: float = 60.0) -> None:
        self.events: list[dict[str, Any]] = []
        self._until = time.monotonic() + timeout_s
        self._number, self._left, self._session = 0, b"", ""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs_in, theirs_out)]

        def place() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        argv = [
            program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
            f"--user-data-dir={folder / 'profile'}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            argv, preexec_fn=place, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        for fd in (theirs_in, theirs_out, *high):
            os.close(fd)
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        body = {"id": self._number, "method": method, "params": params, **({"sessionId": self._session} if self._session else {})}
        os.write(self._out, json.dumps(body).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told["error"]
                return told["result"]
            self.events.append(told)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            assert select.select([self._in], [], [], max(0.0, self._until - time.monotonic()))[0], "the browser says nothing"
            read = os.read(self._in, 1 << 20)
            assert read, "the browser has ended"
            self._left += read
        line, _, self._left = self._left.partition(b"\0")
        return json.loads(line)  # type: ignore[no-any-return]

    def show(self, page: Path, width: int, dark: bool = False) -> None:
        """Loaded when this returns."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def shoot(self, place: Path) -> None:
        """The whole page, as PNG."""
        taken = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        place.write_bytes(b64decode(taken["data"]))

    def print(self, place: Path) -> None:
        printed = self.ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        place.write_bytes(b64decode(printed["data"]))

    def close(self) -> None:
        try:
            self._session = ""
            self.ask("Browser.close")
        except (AssertionError, OSError):
            pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
