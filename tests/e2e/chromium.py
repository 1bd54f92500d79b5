"""A real Chromium, driven over its debugging protocol: open a page, look, take a picture.

Phone width, dark colours and the console are only reachable this way; the command line's own
--screenshot has none of them.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import websocket

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0",
    "--remote-allow-origins=*", "--disable-extensions",
)  # fmt: skip

_DRAWN = """new Promise(done => requestAnimationFrame(() => requestAnimationFrame(
  () => setTimeout(done, 50))))"""

# Contrast of text against what is behind it, as WCAG defines it: what is below 4.5.
_CONTRAST = """(() => {
  const light = c => {
    const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
      .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2];
  };
  const paper = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$/.test(c) && c !== "transparent") return c;
    }
    return "rgb(255,255,255)";
  };
  const found = [];
  const words = "h1,h2,h3,p,td,th,dt,dd,li,a,b,strong,span,pre,text";
  for (const e of document.querySelector("WITHIN").querySelectorAll(words)) {
    if (!e.textContent.trim() || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const a = light(e.tagName === "text" ? style.fill : style.color), b = light(paper(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = e.className.baseVal ?? e.className;
    if (ratio < 4.5) found.push(`${e.tagName}.${name}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)];
})()"""


def contrast(within="body"):
    """A script that gives texts within an element that can hardly be read: none, if all is well."""
    return _CONTRAST.replace("WITHIN", within)


def find():
    """The browser's path, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Chromium:
    """One browser with one page. Use as a context manager."""

    def __enter__(self):
        self._home = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        home = Path(self._home.name)
        self._process = subprocess.Popen(
            [find(), *FLAGS, f"--user-data-dir={home}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        port_file = home / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not (port_file.is_file() and port_file.read_text().count("\n")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("Chromium did not start")
            time.sleep(0.05)
        port = port_file.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            page = next(t for t in json.load(answer) if t["type"] == "page")
        self._socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=60)
        self._sent = 0
        self.events = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *error):
        self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._home.cleanup()

    def call(self, method, **params):
        """One command; its result. Events that come meanwhile are kept."""
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._sent:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def open(self, url, width=1280, height=900, dark=False):
        """Load a page and wait for it; seconds it took."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=phone)  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])  # fmt: skip
        self.events.clear()
        began = time.monotonic()
        self.call("Page.navigate", url=url)
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self.events.append(json.loads(self._socket.recv()))
        self.run(_DRAWN)
        return time.monotonic() - began

    def run(self, script):
        """Value of a JavaScript expression (a promise is awaited)."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True,
                           returnByValue=True)  # fmt: skip
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def complaints(self):
        """Errors and warnings of the page's console, exceptions, and what could not be loaded."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] != "info":
                found.append(params["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
                found.append(str(params["args"]))
        return found

    def requested(self):
        """Every URL that the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events
                if e["method"] == "Network.requestWillBeSent"]  # fmt: skip

    def hover(self, x, y):
        """Put the pointer somewhere on the page as it is scrolled."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path, clip=None):
        """A PNG of the whole page, or of a part {x, y, width, height}."""
        self.run(_DRAWN)
        params = {"clip": {**clip, "scale": 1}} if clip else {}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, **params) if clip \
            else self._whole()  # fmt: skip
        Path(path).write_bytes(base64.b64decode(data["data"]))

    def _whole(self):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)

    def print(self, path):
        """The page as PDF."""
        data = self.call("Page.printToPDF", printBackground=False)
        Path(path).write_bytes(base64.b64decode(data["data"]))
