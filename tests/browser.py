"""A real browser for tests: Chromium without a window, told what to do over a pipe (the DevTools protocol, a JSON object
between two zero bytes). Needs Chromium (Debian: chromium), and no driver."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
         "--remote-debugging-pipe")  # fmt: skip


class Tab:
    """A page that is open."""

    def __init__(self, reader: asyncio.StreamReader, write: int) -> None:
        self._reader, self._write = reader, write
        self._ids = itertools.count(1)
        self._session: str | None = None
        self.problems: list[str] = []
        """What was thrown, said to be an error, or refused by the page's policy."""

    async def call(self, method: str, **params: Any) -> Any:
        """Return what a method of the protocol returns."""
        number = next(self._ids)
        session = {} if self._session is None else {"sessionId": self._session}
        os.write(self._write, msgspec.json.encode({"id": number, "method": method, "params": params, **session}) + b"\0")
        while True:
            said = msgspec.json.decode((await self._reader.readuntil(b"\0"))[:-1])
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]
            self._take_note(said)

    def _take_note(self, said: dict[str, Any]) -> None:
        params = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif said.get("method") == "Log.entryAdded" and params["entry"]["source"] in ("security", "javascript"):
            self.problems.append(params["entry"]["text"])

    async def attach(self) -> None:
        """Open a tab."""
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def show(self, url: str, *, width: int = 1200, height: int = 900, scheme: str = "light", scale: float = 1) -> None:
        """Open a page in a window of this size."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await self.call("Page.navigate", url=url)
        await self.until(f"document.readyState === 'complete' && location.href.startsWith('{url}')")

    async def run(self, script: str) -> Any:
        """Return what an expression comes to, or the promise that it is."""
        result = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        while not await self.run(f"Boolean({condition})"):
            await asyncio.sleep(0.02)

    async def press(self, key: str) -> None:
        """Press a key, which has a character."""
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write what is seen to a PNG file."""
        params: dict[str, Any] = {"captureBeyondViewport": whole}
        if whole:
            size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
            params["clip"] = {**size, "scale": 1}
        path.write_bytes(b64decode((await self.call("Page.captureScreenshot", **params))["data"]))


@contextlib.asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Tab]:
    """Run Chromium with a profile in `folder`, and open a tab."""
    assert CHROMIUM is not None
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()

    def take_pipes() -> None:
        # Its ends are 3 and 4 there, whatever numbers they have here.
        high = [os.dup2(end, 200 + number) for number, end in enumerate((from_us, to_us))]
        for number, end in enumerate(high):
            os.dup2(end, 3 + number)

    process = await asyncio.create_subprocess_exec(
        *(CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}"),
        close_fds=False,
        preexec_fn=take_pipes,
        stderr=asyncio.subprocess.DEVNULL,
    )
    os.close(from_us)
    os.close(to_us)
    reader = asyncio.StreamReader(limit=1 << 26)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_browser, "rb", buffering=0)
    )
    tab = Tab(reader, to_browser)
    try:
        await tab.attach()
        yield tab
    finally:
        os.close(to_browser)  # It ends when nobody is there to tell it anything.
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        transport.close()
