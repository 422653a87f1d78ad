"""An election in Redis or Valkey: one server, one behind Sentinel, or a cluster.

    {NAME}:leader      the leader, with a time to live of a lease; renewed by whoever still finds itself there
    {NAME}:epoch       the highest epoch
    {NAME}:gateways    which gateways may hold slots, as the leader has said last

NAME is in braces, so a cluster keeps all three in one place, and each script runs where they are. Scripts are sent whole: a
proxy or a server that has been started anew may not know them by their hash. Every call has a time limit.

What a replica did not have yet when it took over is lost, and all of it where a server is started anew without a disk. So no
epoch is below the time of day of the server, in seconds, a leader that is not found is none, and one that loses the record at
its next renewal steps down. The one after it grants nothing for a lease if there is no epoch, and learns for the lease of a
gateway if the gateways are not there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Any, Final, TypeVar

import msgspec

from maitred.core.units import MILLISECOND, Micros
from maitred.scheduler.link.gateway_books import UNKNOWN_GATEWAY, GatewayId
from maitred.scheduler.redis_clients import redis_errors, words_of
from maitred.scheduler.sharing.elections.election import Election, ElectionCandidate, ElectionError, Term

T = TypeVar("T")
CAMPAIGN: Final = """
local known = redis.call('GET', KEYS[2])
local epoch = math.max(tonumber(known or '0'), tonumber(ARGV[3]))
local left = redis.call('PTTL', KEYS[1])
if left ~= -2 then return {0, '', epoch, left, 0} end
epoch = math.max(epoch + 1, tonumber(redis.call('TIME')[1]))
redis.call('SET', KEYS[2], string.format('%d', epoch))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {epoch, redis.call('GET', KEYS[3]) or '', epoch, 0, known and 0 or 1}
"""
"""-2 is how `PTTL` says that there is no such key."""
RENEW: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[3])
return 1
"""
RESIGN: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


class _Leader(msgspec.Struct):
    candidate: ElectionCandidate
    boot: str
    """Drawn at random for each campaign: a record is that of one term."""


class RedisElection(Election):
    """An election by the keys of one name."""

    lease: Micros
    names_gateways = True

    def __init__(self, client: Any, where: str, name: str, lease: Micros, draw_boot: Any) -> None:
        """`client` is one of redis-py's, and `where` its address for the log, without a password. `draw_boot` returns some
        text that no other process draws."""
        self._client, self._where, self.lease, self._draw_boot = client, where, lease, draw_boot
        self.where = f"the store at {where}"
        self._leader, self._epoch, self._gateways = (f"{{{name}}}:{key}" for key in ("leader", "epoch", "gateways"))
        self._ttl = max(1, lease // 1000)
        self._record = b""
        self._highest_epoch = 0
        """The highest epoch that was found here."""

    async def campaign(self, candidate: ElectionCandidate, floor: int) -> Term | None:
        self._record = msgspec.json.encode(_Leader(candidate, self._draw_boot()))
        self.vacant_in, floor = None, max(floor, self._highest_epoch)
        keys, values = (self._leader, self._epoch, self._gateways), (self._record, self._ttl, floor)
        epoch, gateways, highest, left, is_first = await self._ask(self._client.eval(CAMPAIGN, len(keys), *keys, *values))
        self._highest_epoch = int(highest)
        self.vacant_in = None if left < 0 else int(left) * MILLISECOND
        if not epoch:
            return None
        return Term(int(epoch), _named_in(gateways), bool(is_first))

    async def renew(self, gateways: Collection[GatewayId]) -> bool:
        named = msgspec.json.encode(sorted(gateways))
        keys, values = (self._leader, self._gateways), (self._record, self._ttl, named)
        return bool(await self._ask(self._client.eval(RENEW, len(keys), *keys, *values)))

    async def resign(self) -> None:
        await self._ask(self._client.eval(RESIGN, 1, self._leader, self._record))

    async def leader(self) -> ElectionCandidate | None:
        record = await self._ask(self._client.get(self._leader))
        try:
            return msgspec.json.decode(record, type=_Leader).candidate if record else None
        except msgspec.MsgspecError as error:
            raise ElectionError(f"{self._leader} in the store at {self._where} names no scheduler: {error}") from error

    async def close(self) -> None:
        await self._client.aclose()
        manager = getattr(getattr(self._client, "connection_pool", None), "sentinel_manager", None)
        for sentinel in () if manager is None else manager.sentinels:  # which the client does not close
            await sentinel.aclose()

    async def _ask(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except redis_errors() as error:
            raise ElectionError(words_of(self._where, error)) from error


def _named_in(gateways: bytes) -> list[GatewayId]:
    """Return the gateways that the last leader has named; where that is lost, or cannot be read, one that nobody knows."""
    try:
        return msgspec.json.decode(gateways, type=list[GatewayId]) if gateways else [UNKNOWN_GATEWAY]
    except msgspec.MsgspecError:
        return [UNKNOWN_GATEWAY]
