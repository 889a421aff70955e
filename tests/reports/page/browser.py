"""A headless Chromium that is spoken to through pipes (the DevTools protocol), without a library."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
# Chromium reads commands from descriptor 3 and writes answers to 4.
_LAUNCH = "import os,sys;os.dup2(int(sys.argv[1]),3);os.dup2(int(sys.argv[2]),4);os.execvp(sys.argv[3],sys.argv[3:])"
_DOMAINS = ("Page", "Network", "Runtime", "Log")


class Browser:
    """One page in a browser of its own; a context manager.

    Attributes:
      events: everything that the browser reported, in order.
    """

    def __init__(self):
        assert CHROMIUM
        self._profile = tempfile.mkdtemp()
        # Numbers above those that the browser uses, so that neither overwrites the other.
        theirs, ours = ([fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in os.pipe()] for _ in range(2))
        command = [sys.executable, "-c", _LAUNCH, str(theirs[0]), str(ours[1])]
        browser = [CHROMIUM, *_FLAGS, f"--user-data-dir={self._profile}"]
        self._process = subprocess.Popen(
            command + browser, pass_fds=(theirs[0], ours[1]), stderr=subprocess.DEVNULL, start_new_session=True
        )
        os.close(theirs[0])
        os.close(ours[1])
        self._write, self._read = os.fdopen(theirs[1], "wb", 0), os.fdopen(ours[0], "rb", 0)
        self._rest, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in _DOMAINS:
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        self._write.close()
        self._read.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, width: int = 1200) -> None:
        """Open a file and wait until it is loaded."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def complaints(self) -> list[Any]:
        """Exceptions and entries of the console."""
        methods = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event["params"] for event in self.events if event.get("method") in methods]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._read.fileno(), 1 << 20)
            assert more, "the browser ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
