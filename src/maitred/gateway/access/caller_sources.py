"""Where keys come from that are not in the configuration: a file, an issuer of tokens. Each is read again beside the requests.

A source that cannot be read goes on with what it had, and the log says once why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from maitred.core.errors import ConfigError, located
from maitred.core.units import Micros
from maitred.files import named_path
from maitred.gateway.access.auth import Caller
from maitred.gateway.access.keys_file import KeysFile, expiry_warning, read_keys
from maitred.gateway.config import GatewayConfig, JwtConfig
from maitred.wire.client import UpstreamClient
from maitred.wire.clock import Clock
from maitred.wire.errors import ProtocolError
from maitred.wire.origin import Origin
from maitred.wire.tasks import end_tasks

if TYPE_CHECKING:
    from maitred.gateway.access.jwt_keys import Fetch, JwtKeys

log = logging.getLogger("maitred.gateway")
_MAX_PAGE_BYTES: Final = 1 << 20
_KEYS_FILE: Final = "gateway.keys_file"


class CallerSource(Protocol):
    """Knows keys."""

    @property
    def name(self) -> str:
        """What it is, for the log."""
        ...

    def find(self, key: bytes, digest: bytes) -> Caller | None:
        """Return whose key this is, or None if it is not known here; `digest` is its SHA-256. Raises ApiError for one that is
        known, or is of this kind, and is not valid."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether it is a file, which takes no time to read."""
        ...

    async def pause(self) -> None:
        """Return when the source should be read again."""
        ...

    async def refresh(self) -> bool:
        """Read the source again, and return whether it has changed. Raises ConfigError, and changes nothing then."""
        ...


def make_sources(config: GatewayConfig, clock: Clock, client: UpstreamClient) -> Sequence[CallerSource]:
    """Return the sources that the configuration names. Raises ConfigError for one that cannot be used."""
    sources: list[CallerSource] = []
    if config.keys_file is not None:
        sources.append(KeysFile(str(named_path(config.keys_file, _KEYS_FILE)), clock))
    if config.jwt is not None:
        keys = _jwt_keys(config.jwt, clock, partial(_fetch, client))
        if keys.needs_tls:
            client.load_authorities()
        sources.append(keys)
    return sources


def source_problems(config: GatewayConfig) -> Iterator[ConfigError]:
    """Yield why a gateway would not start with the files of keys that it names. What is behind a URL is not asked for."""
    if config.keys_file is not None:
        try:
            path = named_path(config.keys_file, _KEYS_FILE)
            with located(lambda where: f"{_KEYS_FILE}: {where}"):
                read_keys(path)
        except ConfigError as error:
            yield error
    if config.jwt is not None:
        try:
            _jwt_keys(config.jwt, Clock(), _fetch_nothing)
        except ConfigError as error:
            yield error


def source_warnings(config: GatewayConfig, now: Micros) -> Iterator[str]:
    """Yield which keys of a file are of no use any more at `now`, since 1970, or soon will be."""
    if config.keys_file:
        with contextlib.suppress(ConfigError):  # which `make_sources` raises
            warning = expiry_warning(read_keys(Path(config.keys_file)).values(), now)
            if warning is not None:
                yield f"gateway.keys_file: {config.keys_file} has {warning}"


def _jwt_keys(config: JwtConfig, clock: Clock, fetch: Fetch) -> JwtKeys:
    try:
        from maitred.gateway.access.jwt_keys import JwtKeys
    except ImportError as error:
        raise ConfigError("PyJWT is not installed", where="gateway.jwt", hint="pip install 'maitred[jwt]'") from error
    return JwtKeys(config, clock, fetch)


async def _fetch_nothing(origin: Origin, path: str) -> bytes:
    return b""


async def _fetch(client: UpstreamClient, origin: Origin, path: str) -> bytes:
    """Return the body of the answer to a GET, whose status must be 200. Raises UpstreamError for anything else."""
    response = await client.request(origin, "GET", path, [(b"accept", b"application/json")])
    body = bytearray()
    with contextlib.closing(response):
        async for piece in response:
            body += piece
            if len(body) > _MAX_PAGE_BYTES:
                raise ProtocolError(f"more than {_MAX_PAGE_BYTES} bytes came")
    if response.status != 200:
        raise ProtocolError(f"the answer is {response.status}")
    return bytes(body)


class SourceWatch:
    """Reads the sources again, from `start` to `stop`."""

    def __init__(self, sources: Sequence[CallerSource]) -> None:
        self.sources = sources
        self._watched = [_Watched(source) for source in sources]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin, inside the event loop."""
        self._tasks = [asyncio.get_running_loop().create_task(each.watch()) for each in self._watched]

    async def stop(self) -> None:
        """Read nothing any more."""
        await end_tasks(*self._tasks)

    async def look(self) -> None:
        """Read those that are files at once, because a reload asks for it, and return when they are in use. What is wrong with
        one is logged, also if it was before."""
        for each in self._watched:
            if each.source.is_local:
                each.problem = ""
                await each.look()


class _Watched:
    """A source, and what the log has said of it."""

    def __init__(self, source: CallerSource) -> None:
        self.source = source
        self.problem = ""
        """What the log has said is wrong with it."""
        self._reading = asyncio.Lock()  # What was read first must not come into force last.

    async def watch(self) -> None:
        """Look at it again and again."""
        while True:
            await self.source.pause()
            await self.look()

    async def look(self) -> None:
        """Read it again, and log how that went."""
        async with self._reading:
            try:
                has_changed = await self.source.refresh()
            except ConfigError as error:
                if str(error) != self.problem:
                    log.warning("%s cannot be read, and the keys before it stay: %s", self.source.name, error)
                self.problem = str(error)
            except Exception:
                log.exception("%s cannot be read, and the keys before it stay", self.source.name)
            else:
                if has_changed or self.problem:
                    log.info("%s has been read", self.source.name)
                self.problem = ""
