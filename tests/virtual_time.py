"""Run what waits in virtual time: on an event loop whose clock jumps to the next event, and a machine with a network in memory.

What is left open, such as the order of events of one instant and how long bytes are under way, follows from `SEED`: a test does
the same each time. `MAITRED_TEST_SEED=7 pytest ...` plays it in another order, which it should stand as well.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeVar

from maitred.testing.world import LinkConfig, Network, VirtualLoop
from maitred.testing.world.machine import MemoryMachine
from maitred.wire.machine import Machine

T = TypeVar("T")
SEED: Final = int(os.environ.get("MAITRED_TEST_SEED", "0"))
LONGEST_SECS: Final = 60
"""Virtual seconds that a scenario may take."""
LINK: Final = LinkConfig(split_share=0.0, min_kernel_bytes=262_144)
"""A network that brings whole what was sent whole until a buffer is full, as that within a machine does."""
MACHINE: Final = ContextVar[Machine | None]("machine", default=None)
"""Where the present scenario runs; None: on the machine of the process."""


class _LoopWithPaths(VirtualLoop):
    """A loop in which Unix sockets are ports of this machine."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._ports: dict[str, int] = {}

    async def create_unix_server(self, protocol_factory: Any, path: Any = None, **options: Any) -> Any:
        machine = MACHINE.get()
        assert machine is not None
        listener = machine.listen("127.0.0.1", 0)
        self._ports[path] = listener.getsockname()[1]
        return await self.create_server(protocol_factory, sock=listener)

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **options: Any) -> Any:
        if path not in self._ports:
            raise FileNotFoundError(path)
        return await self.create_connection(protocol_factory, "127.0.0.1", self._ports[path])


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run `scenario` in virtual time, and return its result. Raises Deadlock if it would wait for ever, and TimeoutError."""
    with asyncio.Runner(loop_factory=partial(_LoopWithPaths, SEED)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        machine = MemoryMachine(loop, Network(loop, LINK), "here", "127.0.0.1")

        async def bounded() -> T:
            MACHINE.set(machine)
            async with asyncio.timeout(LONGEST_SECS):
                return await machine.run(scenario)

        return runner.run(bounded())
