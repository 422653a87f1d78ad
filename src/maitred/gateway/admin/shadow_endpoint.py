"""GET /admin/shadow: where a shadow would have decided otherwise."""

from __future__ import annotations

from typing import Final

from maitred.gateway.access.page_access import Page, Viewer
from maitred.gateway.admin.endpoints import Endpoint
from maitred.gateway.observe.shadow import ShadowFollower
from maitred.wire.exchange import Exchange, send_json

SHADOW_PATH: Final = "/admin/shadow"


def shadow_endpoint(follower: ShadowFollower | None) -> Endpoint:
    """Build the endpoint of the shadow; without a shadow its answer is `null`."""

    async def answer(exchange: Exchange, viewer: Viewer) -> None:
        send_json(exchange, 200, None if follower is None else follower.state())

    return Endpoint(answer, Page.ADMIN)
