"""The addresses of upstreams: looked up ahead of the requests, and apart from them.

A look-up may take as long as a name server is silent, and nothing can cancel it. The event loop has few threads for look-ups
(uvloop four), so that one silent name would hold up the connections to all others. Therefore

    1. each name has one look-up at a time, in a thread of its own: it can hold up nobody but itself;
    2. a name is looked up when its first connection is to be made, and every `ttl_secs` from then on, in use or not;
    3. a look-up that fails changes nothing: the last good answer is used, and the log says so once;
    4. only the first answer is ever waited for, and by nobody longer than until `wait_secs` after it was asked for. From then
       on the addresses are known, or the name cannot be reached, which is said at once.

For example, the name server falls silent for ten minutes. Names that are known are served as before. The name of a backend that
is added in this time is unreachable after 3 s, each request to it is tried elsewhere without a wait, and it is looked up again
as soon as the look-up has failed.

Where an upstream has several addresses, they are tried in the order of the answer (RFC 6724, so both IPv6 and IPv4 are there),
but those to which the last attempt failed come last. An address needs no look-up.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from maitred.core.errors import describe_os_error
from maitred.files.daemon_threads import DAEMON_THREADS

log = logging.getLogger("maitred.wire")
RETRY_SECS: Final = 1.0
"""Seconds after which a look-up is repeated that has failed, or whose addresses cannot be reached."""


class HostAddresses:
    """The addresses of one host, kept up to date until `close`."""

    def __init__(
        self,
        host: str,
        ttl_secs: float,
        wait_secs: float,
        look_up: Callable[[str], list[str]],
        on_left: Callable[[Collection[str]], object] = lambda addresses: None,
        on_answer: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin to look `host` up, unless it is an address. Called inside the event loop.

        `look_up` returns the addresses of a host, or raises; it is called in a thread. `on_left` is called with addresses at
        which the host is no more, and `on_answer` after each look-up, whether it has found some or failed (`problem`).
        """
        self.host = host
        self._look_up, self._on_left, self._on_each = look_up, on_left, on_answer
        self._ttl_secs = ttl_secs
        self._loop = asyncio.get_running_loop()
        self._known: list[str] = []
        """The addresses of the last good answer, in its order."""
        self._failed: set[str] = set()
        """The addresses to which the last attempt to connect has failed."""
        self.problem = f"its name server has not answered within {wait_secs:g} s"
        """Why the last look-up has failed; "" after one that has not."""
        self._first_answer = asyncio.Event()
        """Set when the first answer is there, or has been waited for long enough."""
        self._looking: asyncio.Future[list[str]] | None = None
        """The look-up under way."""
        self._is_closed = False
        self._give_up_waiting: asyncio.TimerHandle | None = None
        self._looked_up_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        if _is_address(host):
            self._known, self.problem = [host], ""
            self._first_answer.set()
            self._loop.call_soon(on_answer)
        else:
            self._give_up_waiting = self._loop.call_later(wait_secs, self._first_answer.set)
            self._begin_look_up()

    @property
    def known(self) -> Sequence[str]:
        """The addresses that are known now."""
        return self._known

    async def addresses(self) -> Sequence[str]:
        """Return the addresses, in the order in which they are to be tried; none if none is known."""
        if not self._known:
            await self._first_answer.wait()
        return sorted(self._known, key=self._failed.__contains__) if self._failed else self._known

    def note_success(self, address: str) -> None:
        """Take note that a connection to `address` was made."""
        self._failed.discard(address)

    def note_failure(self, address: str) -> None:
        """Take note that no connection to `address` could be made. If none can be made to any, look the name up again."""
        self._failed.add(address)
        # When none can be reached, the upstream may have moved.
        if self._failed.issuperset(self._known) and not _is_address(self.host):
            self._look_up_soon()

    def close(self) -> None:
        """Look up nothing more."""
        self._is_closed = True
        self._set_timer(None)
        if self._looking is not None:
            self._looking.cancel()
        self._stop_waiting()

    def _look_up_soon(self) -> None:
        """Look up now, or `RETRY_SECS` after the last look-up, whatever is later."""
        if self._looking is None:
            self._set_timer(max(0.0, self._looked_up_at + RETRY_SECS - self._loop.time()))

    def _set_timer(self, delay_secs: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if delay_secs is None or self._is_closed:
            self._timer = None
        else:
            self._timer = self._loop.call_later(delay_secs, self._begin_look_up)

    def _begin_look_up(self) -> None:
        self._looking = self._loop.run_in_executor(DAEMON_THREADS, self._look_up, self.host)
        self._looking.add_done_callback(self._on_answer)

    def _on_answer(self, answer: asyncio.Future[list[str]]) -> None:
        if answer.cancelled():
            return
        self._looking, self._looked_up_at = None, self._loop.time()
        error = answer.exception()
        if error is not None:  # A name may be anything.
            self._on_failure(_describe(error, self.host))
        else:
            self._on_found(answer.result())
        self._stop_waiting()
        self._on_each()
        self._set_timer(min(self._ttl_secs, RETRY_SECS) if self.problem else self._ttl_secs)

    def _stop_waiting(self) -> None:
        if self._give_up_waiting is not None:
            self._give_up_waiting.cancel()
        self._first_answer.set()

    def _on_found(self, found: list[str]) -> None:
        if self.problem and self._known:
            log.warning("%s is resolved again, to %s", self.host, ", ".join(found))
        left = [address for address in self._known if address not in found]
        self._known, self.problem = found, ""
        self._failed.intersection_update(found)
        if left:
            # Their connections are used no more, or the traffic that keeps them open would go there for ever.
            log.debug("%s has moved to %s", self.host, ", ".join(found))
            self._on_left(left)

    def _on_failure(self, problem: str) -> None:
        if self._known and not self.problem:
            message = "%s cannot be resolved (%s): its last addresses are used, %s"
            log.warning(message, self.host, problem, ", ".join(self._known))
        self.problem = problem


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _describe(error: BaseException, host: str) -> str:
    if isinstance(error, UnicodeError):
        return f"{host!r} is no host name: {error}"
    return describe_os_error(error) if isinstance(error, OSError) else str(error)
