"""The programs of a fleet in Redis or Valkey, so that the scheduler that leads next knows where their KV is.

    {NAME}:programs        a hash: of each program its tenant, id and model, and what is known of it
    {NAME}:drained         the backends that are drained
    {NAME}:state-epoch     how often somebody has begun to keep programs here

Whoever begins to keep programs here (a gateway when it starts, a scheduler when it leads) reads what is there, under an epoch
above all before. A write bears that epoch, and is refused once another one has begun: a leader that was stopped, and wakes up
beside the next one, changes nothing. Where the store has lost the epoch, it was started anew and is empty: then all is written
again.

NAME is `maitred`, or what the URL has after `#`. It is in braces, so a cluster keeps all three in one place, and each script
runs where they are. Everything here is called in the thread of the writer, and may take time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urldefrag

import msgspec

from maitred.core.errors import MaitredError
from maitred.programs import ProgramKey
from maitred.scheduler.programs.store import StateChanges, StoredProgram
from maitred.scheduler.redis_clients import for_threads, open_redis, words_of

log = logging.getLogger("maitred.gateway")
_TIMEOUT_SECS: Final = 5.0
"""How long the store may take to answer: it may have 100,000 programs to say."""
_BEGIN: Final = """
local epoch = math.max(redis.call('INCR', KEYS[1]), tonumber(ARGV[1]) + 1)
redis.call('SET', KEYS[1], string.format('%d', epoch))
return {epoch, redis.call('HGETALL', KEYS[2]), redis.call('GET', KEYS[3]) or ''}
"""
_WRITE: Final = """
local there = tonumber(redis.call('GET', KEYS[1]) or '0')
if there > tonumber(ARGV[1]) then return there end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[2] ~= '' then redis.call('SET', KEYS[3], ARGV[2]) end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i]) else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
return there
"""


class StateError(MaitredError):
    """The store cannot be used, with words for the log."""


class RedisProgramStore:
    """The programs of one fleet."""

    def __init__(self, url: str) -> None:
        """Nothing is asked yet. Raises ConfigError for a URL that is none, and where redis-py is not installed."""
        self._url, name = urldefrag(url)
        if not self._url.startswith("redis+cluster:"):  # Whose client asks at once.
            open_redis(self._url, for_threads, _TIMEOUT_SECS)
        self._keys = [f"{{{name or 'maitred'}}}:{key}" for key in ("state-epoch", "programs", "drained")]
        self._epoch = 0
        self._client: Any = None
        self._where = ""
        self.found: Sequence[StoredProgram] = ()
        """The programs that `begin` has found, in the order of creation."""
        self.drained: Sequence[str] = ()
        """The URLs of the backends that were drained then."""
        self.has_lost_all = False
        """Whether the last write has found nothing of what was written before."""

    def begin(self) -> None:
        """Begin to keep programs, and read what is there. Raises StateError."""
        epoch, rows, drained = self._ask(_BEGIN, self._epoch)
        stored = [_parse(row) for row in (rows.values() if isinstance(rows, dict) else rows[1::2])]
        self.found = sorted((row for row in stored if row is not None), key=lambda row: row.created_at)
        if len(self.found) < len(stored):
            log.error("%s: %d of its programs make no sense and are not known", self._where, len(stored) - len(self.found))
        self.drained = str(drained, "utf-8").split() if drained else ()
        self._epoch = int(epoch)

    def write(self, changes: StateChanges) -> None:
        """Write changes. Raises TakenOver if another one has begun to keep programs here, and StateError."""
        said: list[bytes | str | int] = [self._epoch, "" if changes.drained is None else "\n".join(changes.drained) or "\n"]
        for key, stored in changes.programs.items():
            said += [_field(key), b"" if stored is None else msgspec.msgpack.encode(stored)]
        there = int(self._ask(_WRITE, *said))
        if there > self._epoch:
            raise TakenOver(f"another scheduler keeps the programs in {self._where} (epoch {there}, and ours is {self._epoch})")
        self.has_lost_all = there < self._epoch

    def close(self) -> None:
        """Disconnect, after the writer has ended."""
        if self._client is not None:
            self._client.close()

    def _ask(self, script: str, *said: object) -> Any:
        from redis.exceptions import RedisError

        try:
            if self._client is None:
                self._client, self._where = open_redis(self._url, for_threads, _TIMEOUT_SECS)
            return self._client.eval(script, len(self._keys), *self._keys, *said)
        except (RedisError, OSError) as error:
            raise StateError(words_of(self._where or self._url.rpartition("@")[2], error)) from error


class TakenOver(StateError):  # noqa: N818 - it is what has happened
    """Another one keeps the programs."""


def _field(key: ProgramKey) -> bytes:
    return msgspec.json.encode([key.tenant, key.name, key.model])


def _parse(row: bytes) -> StoredProgram | None:
    """Return a program, or None for a row that makes no sense."""
    try:
        return msgspec.msgpack.decode(row, type=StoredProgram)
    except msgspec.MsgspecError:
        return None
