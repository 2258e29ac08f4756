"""A headless Chromium that a test drives by the DevTools protocol, over two pipes: without any library."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_PATIENCE_S = 90.0


class Page:
    """A page that is shown; `messages` are the console's, and `requests` the URLs that it asked for."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._unread = commands, answers, b""
        self._number, self._session = 0, ""
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.loads = 0
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """Return the result of a command."""
        self._number += 1
        command: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
        raise TimeoutError(method)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("Chromium does not answer")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        self._note(answer.get("method", ""), answer.get("params", {}))
        return answer

    def _note(self, event: str, values: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(values["exceptionDetails"])[:2000])
        elif event == "Runtime.consoleAPICalled":
            self.messages.append(json.dumps(values["args"])[:2000])
        elif event == "Log.entryAdded":
            self.messages.append(values["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif event == "Page.loadEventFired":
            self.loads += 1

    def open(self, path: Path, width: int, height: int = 900) -> None:
        """Show a file in a window of this size, and wait until it is loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        before = self.loads
        self.send("Page.navigate", url=path.as_uri())
        until = time.monotonic() + _PATIENCE_S
        while self.loads == before:
            self._receive(until)

    def ask(self, expression: str) -> Any:  # noqa: ANN401 - any JSON
        """Return the value of an expression of JavaScript."""
        found = self.send(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def touch(self, start: Sequence[tuple[float, float]], end: Sequence[tuple[float, float]]) -> None:
        """Move fingers on the screen, in three steps."""
        self.send("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=len(start))
        for step in range(4):
            points = [
                {"x": x + (to_x - x) * step / 3, "y": y + (to_y - y) * step / 3, "id": number}
                for number, ((x, y), (to_x, to_y)) in enumerate(zip(start, end, strict=True))
            ]
            kind = "touchMove" if step else "touchStart"
            self.send("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.send("Emulation.setTouchEmulationEnabled", enabled=False)

    def prefer(self, scheme: str) -> None:
        """Prefer light or dark colours, as the desktop would."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


@contextmanager
def open_chromium(work: Path) -> Iterator[Page]:
    """Yield an empty page of a Chromium that is started, and ended afterwards."""
    assert PROGRAM is not None
    commands, their_answers = os.pipe(), os.pipe()
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    quiet = ("--disable-background-networking", "--disable-component-update", "--no-proxy-server")
    # Chromium reads commands from descriptor 3 and answers on 4; a shell puts the pipes there.
    script = f'exec "$@" 3<&{commands[0]} 4>&{their_answers[1]}'
    argv = [PROGRAM, *options, *quiet, "--remote-debugging-pipe", f"--user-data-dir={work}"]
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *argv],
        pass_fds=(commands[0], their_answers[1]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(commands[0])
    os.close(their_answers[1])
    try:
        yield Page(commands[1], their_answers[0])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(commands[1])
        os.close(their_answers[0])
