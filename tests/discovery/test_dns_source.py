"""The source `dns`: every address of a name, and what a silent or broken name server means."""

from __future__ import annotations

import asyncio

import pytest
from heard import Heard

from maitred.core.errors import ConfigError
from maitred.scheduler.discovery.base import SOURCES
from maitred.scheduler.discovery.dns import DnsSource
from maitred.wire.machine import Machine


class Names(Machine):
    """A machine with a name server of the test's own."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] | Exception = []

    def look_up(self, host: str) -> list[str]:
        if isinstance(self.addresses, Exception):
            raise self.addresses
        return self.addresses


def test_every_address_is_a_backend_and_a_failure_lists_nothing() -> None:
    async def scenario() -> None:
        names = Names()
        names.addresses = ["10.0.0.2", "10.0.0.1", "fd00::1"]
        heard = Heard(names)
        task = asyncio.create_task(DnsSource("engines.local", port=9000, interval=0.01).run(heard))
        assert await heard.next() == ["http://10.0.0.1:9000", "http://10.0.0.2:9000", "http://[fd00::1]:9000"]
        names.addresses = ["10.0.0.2"]
        assert await heard.next() == ["http://10.0.0.2:9000"]
        names.addresses = OSError(2, "no such host")
        assert await heard.next() == "engines.local cannot be resolved: no such host"
        names.addresses = ["10.0.0.3"]
        assert await heard.next() == ["http://10.0.0.3:9000"]
        task.cancel()

    asyncio.run(scenario())


def test_an_address_is_listed_as_it_is() -> None:
    async def scenario() -> None:
        heard = Heard()
        task = asyncio.create_task(DnsSource("127.0.0.1", scheme="https").run(heard))
        assert await heard.next() == ["https://127.0.0.1:8000"]
        task.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("dns(a, port=0)", "port must be from 1 to 65535"),
        ("dns(a, scheme=ftp)", "scheme must be http or https, not 'ftp'"),
        ("dns", "needs 'name'"),
    ],
)
def test_a_wrong_parameter_is_one_clear_error(spec: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SOURCES.create(spec)
