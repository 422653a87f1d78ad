"""The programs of a fleet in Redis or Valkey, so that the scheduler that leads next knows where their KV is.

    {NAME}:programs        a hash: of each program its tenant, id and model, and what is known of it
    {NAME}:drained         the backends that are drained
    {NAME}:keeper          who keeps programs here: some text that is drawn at random for each term

Whoever begins to keep programs here (a gateway when it starts, a scheduler when it leads) reads what is there, and is the
keeper until another one begins. A write of any other is refused: a leader that was stopped, and wakes up beside the next one,
changes nothing. Where the store has no keeper, it was started anew and is empty: then who leads (`may_claim`) is the keeper
again, and writes all anew. Terms are told apart, and not counted, because an empty store would count them from the beginning.

NAME is `maitred`, or what the URL has after `#`. It is in braces, so a cluster keeps all three in one place, and each script
runs where they are. Everything here is called in the thread of the writer, and may take time.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urldefrag

import msgspec

from maitred.core.errors import MaitredError
from maitred.programs import ProgramKey
from maitred.scheduler.programs.store import StateChanges, StoredProgram
from maitred.scheduler.redis_clients import for_threads, open_redis, redis_errors, words_of

log = logging.getLogger("maitred.gateway")
_TIMEOUT_SECS: Final = 5.0
"""How long the store may take to answer: it may have 100,000 programs to say."""
_BEGIN: Final = """
redis.call('SET', KEYS[1], ARGV[1])
return {redis.call('HGETALL', KEYS[2]), redis.call('GET', KEYS[3])}
"""
_WRITE: Final = """
local keeper = redis.call('GET', KEYS[1])
if keeper and keeper ~= ARGV[1] then return 'taken' end
if not keeper and ARGV[2] == '0' then return 'taken' end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then redis.call('SET', KEYS[3], ARGV[3]) end
for i = 4, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i]) else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
return keeper and 'written' or 'claimed'
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
        self._keys = [f"{{{name or 'maitred'}}}:{key}" for key in ("keeper", "programs", "drained")]
        self._keeper = ""
        """Who this is in the present term."""
        self._client: Any = None
        self._where = ""
        self.found: Sequence[StoredProgram] = ()
        """The programs that `begin` has found, in the order of creation."""
        self.drained: Sequence[str] | None = None
        """The URLs of the backends that were drained then, or None if the store did not know."""
        self.may_claim = True
        """Whether a store without a keeper is ours."""
        self.has_lost_all = False
        """Whether the last write has found nothing of what was written before."""

    def begin(self) -> None:
        """Begin to keep programs, and read what is there. Raises StateError."""
        keeper = secrets.token_hex(8)
        rows, drained = self._ask(_BEGIN, keeper)
        stored = [_parse(row) for row in (rows.values() if isinstance(rows, dict) else rows[1::2])]
        self.found = sorted((row for row in stored if row is not None), key=lambda row: row.created_at)
        if len(self.found) < len(stored):
            log.error("%s: %d of its programs make no sense and are not known", self._where, len(stored) - len(self.found))
        self.drained = None if drained is None else str(drained, "utf-8").split()
        self._keeper = keeper

    def write(self, changes: StateChanges) -> None:
        """Write changes. Raises TakenOver if another one has begun to keep programs here, or may, and StateError."""
        drained = "" if changes.drained is None else "\n".join(changes.drained) or "\n"
        said: list[bytes | str | int] = [self._keeper, int(self.may_claim), drained]
        for key, stored in changes.programs.items():
            said += [_field(key), b"" if stored is None else msgspec.msgpack.encode(stored)]
        done = self._ask(_WRITE, *said)
        if done == b"taken":
            raise TakenOver(f"another scheduler keeps the programs in {self._where}")
        self.has_lost_all = done == b"claimed"

    def close(self) -> None:
        """Disconnect, after the writer has ended."""
        if self._client is not None:
            self._client.close()

    def _ask(self, script: str, *said: object) -> Any:
        try:
            if self._client is None:
                self._client, self._where = open_redis(self._url, for_threads, _TIMEOUT_SECS)
            return self._client.eval(script, len(self._keys), *self._keys, *said)
        except redis_errors() as error:
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
