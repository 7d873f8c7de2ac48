"""A headless Chromium that a test drives through a pipe: DevTools' protocol, nothing to install.

``CHROMIUM`` is None where there is none. A page is a file of the disk; the browser has no network.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # whatever the page asks of the network fails
)  # fmt: skip
PATIENCE = 120.0  # seconds until a page is ready, on a busy machine


class Page:
    """A tab. ``errors``: texts of exceptions. ``requests``: beginnings of all addresses."""

    def __init__(self, read: int, write: int):
        self._read, self._write = os.fdopen(read, "rb"), write
        self._number, self._session = 0, ""
        self._left = b""
        self._loaded = False
        self.errors: list[str] = []
        self.requests: list[str] = []

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            some = self._read.read1(1 << 16)
            if not some:
                raise RuntimeError("the browser has ended")
            self._left += some
        found, _, self._left = self._left.partition(b"\0")
        return json.loads(found)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == self._number:
                assert "error" not in found, found["error"]
                return found["result"]
            self._hear(found)

    def _hear(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            found = parameters["exceptionDetails"]
            self.errors.append(found.get("exception", {}).get("description", found["text"]))
        elif event.get("method") == "Page.loadEventFired":
            self._loaded = True
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"][:80])

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        made = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = made["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def open(self, file: Path) -> None:
        self._loaded = False
        self.call("Page.navigate", url=file.resolve().as_uri())
        while not self._loaded:
            self._hear(self._message())

    def value(self, script: str) -> Any:
        """The value of an expression, which may be a promise."""
        made = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in made, made["exceptionDetails"]
        return made["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.value(script):
            assert time.monotonic() < end, (script, self.errors)
            time.sleep(0.05)

    def click(self, script: str) -> None:
        """The mouse, on the middle of the element that an expression gives."""
        self.value(f"({script}).scrollIntoView({{block: 'center'}})")
        box = self.value(
            f"(() => {{ const r = ({script}).getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1],
                button="none" if kind == "mouseMoved" else "left", clickCount=1,
            )  # fmt: skip

    def key(self, name: str, code: int) -> None:
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name,
                windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    def picture(self, file: Path, whole: bool = False) -> None:
        made = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(made["data"]))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with one tab; it ends with the block."""
    assert CHROMIUM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    # The browser reads commands from 3 and writes to 4.
    shell = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
    started = subprocess.Popen(
        ["bash", "-c", shell, CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    page = Page(from_read, to_write)
    try:
        page.attach()
        yield page
    finally:
        with contextlib.suppress(OSError):
            os.killpg(started.pid, 15)
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, 9)
            started.wait()
        page._read.close()
        os.close(to_write)
