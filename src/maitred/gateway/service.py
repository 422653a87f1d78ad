"""One request from admission to its last byte: it waits for a slot, is answered, and gives the slot back exactly once.

A victim of preemption is stopped wherever it is (see `driver`), which closes its connection to the backend. Its slot is free
before anything is said to its client, who may be slow to read. Then it is refused; or, if victims are to be tried again, it
waits for its turn once more, and its client notices nothing.
"""

from __future__ import annotations

import asyncio

from maitred.admission import End
from maitred.gateway import refusals
from maitred.gateway.call import Call
from maitred.gateway.config import GatewayConfig
from maitred.gateway.driver import Driver, Refused, Stay
from maitred.gateway.relay import Relay
from maitred.wire.asgi import Departure, Send


class Service:
    def __init__(self, config: GatewayConfig, driver: Driver, relay: Relay) -> None:
        self._config = config
        self._driver = driver
        self._relay = relay

    async def serve(self, call: Call, send: Send, departure: Departure) -> None:
        """Raises ApiError when there is no answer, and nothing was sent. An answer that breaks off is left without an end."""
        if not call.route.needs_slot:
            await self._relay.serve(call, send, departure)
            return
        request, end = call.request, End.FAILED
        try:
            stay = self._driver.submit(request, call.cost)
            end = await self._stay(stay, call, send, departure)
        except Refused as refused:
            raise refusals.by_admission(refused, self._driver.core.config, self._config.queue_timeout_status) from refused
        except asyncio.CancelledError:
            end = End.CLIENT_GONE
            raise
        finally:
            self._driver.release(request.id, end)

    async def _stay(self, stay: Stay, call: Call, send: Send, departure: Departure) -> End:
        while True:
            try:
                await stay.turn()
                return await self._relay.serve(call, send, departure)
            except asyncio.CancelledError:
                if not stay.taken():
                    raise
            if not stay.vacate():
                raise refusals.preempted()
