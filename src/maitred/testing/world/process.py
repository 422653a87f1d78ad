"""The gateway of a world as a process: started, ended by a signal, killed, and started again on the same disk.

    stop    SIGTERM: it drains, and ends by itself
    kill    SIGKILL, or a machine that loses its power: nothing of it runs any more, and its files are as they happen to be

Each life of the process has a gateway of its own. What it has written stays: the log of decisions is one file for all lives.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from maitred.core.units import Micros
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.app import Gateway, serve_gateway
from maitred.gateway.observe.logs import LogOutput
from maitred.testing.world.loop import VirtualLoop
from maitred.testing.world.machine import MemoryMachine


class Life(msgspec.Struct, eq=False):
    """A life of the process."""

    began_at: Micros
    stopping_at: Micros | None = None
    """When it got SIGTERM."""
    ended_at: Micros | None = None
    was_killed: bool = False
    may_lack_lines: bool = False
    """Whether the disk may not have taken its last decisions, or has lost them since."""
    num_log_bytes: int = 0
    """Size of the log of decisions at its end."""


class GatewayProcess:
    """The process."""

    def __init__(
        self,
        loop: VirtualLoop,
        machine: MemoryMachine,
        folder: Path,
        log: LogOutput,
        seed: int,
        read_settings: Callable[[], GatewaySettings],
    ) -> None:
        """`folder` is the disk of the machine. `read_settings` reads the files of the configuration."""
        self.gateway: Gateway
        """That of the present life, or of the last one."""
        self.lives: list[Life] = []
        self.is_up = False
        """Whether it serves, and has got no signal to end."""
        self.num_descriptors_at_start = self.num_tasks_at_start = self.num_backends_at_start = 0
        """What the present life had when its ports were open."""
        self.on_ended: Callable[[], object] = int
        """Called when it has ended by itself, and nothing of it is gone yet."""
        self._loop, self._machine, self._folder = loop, machine, folder
        self._log, self._seed, self._read_settings = log, seed, read_settings
        self._serving: asyncio.Task[None]

    async def start(self) -> None:
        """Start it, and return when its ports are open. Raises what `maitred serve` says and ends with."""
        is_ready = asyncio.Event()
        self.lives.append(Life(self._loop.micros))
        self._serving = self._machine.run(self._serve(is_ready))
        waiting = self._loop.create_task(is_ready.wait())
        await asyncio.wait((self._serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            waiting.cancel()
            self._serving.result()
        self.is_up, place = True, self._machine.place
        self.num_descriptors_at_start = place.descriptors.num_used
        self.num_backends_at_start = len(self.gateway.config.backends)
        self.num_tasks_at_start = sum(not task.done() for task in place.tasks)

    async def stop(self) -> None:
        """End it by SIGTERM, and return when it has ended."""
        life, loop = self.lives[-1], self._loop
        self.is_up, life.stopping_at = False, loop.micros
        loop.send_signal(signal.SIGTERM, self._machine.place)
        await self._serving
        life.ended_at = loop.micros
        self.on_ended()
        # It gives up writing after some seconds. The disk may have been mended since, even in that very turn of the loop.
        disk = self._machine.disk
        life.may_lack_lines = disk.met_trouble or not disk.is_well
        self._vanish()

    async def restart(self) -> None:
        """End it by SIGTERM, and start it again, if it is up."""
        if self.is_up:
            await self.stop()
            await self.start()

    def kill(self) -> None:
        """End it without a word."""
        life = self.lives[-1]
        self.is_up, life.was_killed, life.ended_at = False, True, self._loop.micros
        life.may_lack_lines = True
        self._vanish()

    def lose_log_behind(self, size: int) -> None:
        """Take note that the log of decisions was cut short to `size` bytes: earlier lives may have written what is lost."""
        for life in self.lives:
            life.may_lack_lines |= life.num_log_bytes > size

    def _vanish(self) -> None:
        """Run nothing more of it, not even what its threads had to write, and close its files."""
        self._machine.kill()
        _close_files_in(self._folder)
        self.lives[-1].num_log_bytes = sum(path.stat().st_size for path in self._folder.iterdir())

    def reload(self) -> None:
        """Send SIGHUP, if it is up."""
        if self.is_up:
            self._loop.send_signal(signal.SIGHUP, self._machine.place)

    def was_killed_within(self, since: Micros, until: Micros) -> bool:
        """Return whether it was killed between two instants."""
        return any(life.was_killed and life.ended_at is not None and since <= life.ended_at <= until for life in self.lives)

    def was_stopping_within(self, since: Micros, until: Micros) -> bool:
        """Return whether it was about to end between two instants."""
        return any(
            life.stopping_at is not None and life.stopping_at <= until and (life.ended_at or until) >= since
            for life in self.lives
        )

    async def _serve(self, is_ready: asyncio.Event) -> None:
        self.gateway = self.make_gateway(self._read_settings())
        await serve_gateway(self.gateway, self.gateway.open_ports(), lambda *urls: is_ready.set())

    def make_gateway(self, settings: GatewaySettings) -> Gateway:
        """Return the gateway of a life, as `maitred serve` makes it."""
        return Gateway(
            settings.gateway,
            settings.admission,
            settings.routing,
            settings.programs,
            seed=self._seed,
            reload=self._read_settings,
            log_output=self._log,
            machine=self._machine,
        )


def _close_files_in(folder: Path) -> None:
    """Close the files of a folder that this process has open, as the system does for a program that has ended."""
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if link.readlink().is_relative_to(folder.resolve()):
                os.close(int(link.name))
