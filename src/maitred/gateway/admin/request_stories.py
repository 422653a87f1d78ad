"""`GET /admin/requests/ID`: what happened to a recent request, in the words of `maitred why`."""

from __future__ import annotations

from maitred.gateway import error_responses
from maitred.gateway.access.page_access import Page, Viewer
from maitred.gateway.admin.endpoints import Endpoint
from maitred.replay.narrator import Narrator
from maitred.replay.story import story_data
from maitred.scheduler.interface import Scheduler
from maitred.wire.exchange import Exchange, send_json

REQUESTS_PATH_PREFIX = "/admin/requests/"
"""The path of one request without its id, which may contain slashes."""


class RequestStories:
    """Tells the stories that a narrator knows."""

    def __init__(self, narrator: Narrator | None, scheduler: Scheduler) -> None:
        """`narrator` listens to the log of `scheduler`; None: the configuration wants none."""
        self._narrator = narrator
        if narrator is not None:
            seats = scheduler.fleet.seats
            narrator.core, narrator.instance_name = scheduler.admission.core, lambda index: seats[index].url

    @property
    def by_prefix(self) -> dict[str, Endpoint]:
        """The endpoint, for `AdminEndpoints.add`."""
        return {REQUESTS_PATH_PREFIX: Endpoint(self._story, Page.ADMIN)}

    async def _story(self, exchange: Exchange, viewer: Viewer) -> None:
        """Answer with the stories of all recent requests that have this id, or this number. Raises ApiError 404 for none."""
        name = exchange.path.removeprefix(REQUESTS_PATH_PREFIX)
        if self._narrator is None:
            raise error_responses.no_stories()
        found = self._narrator.find(name)
        if not found:
            raise error_responses.unknown_request(name)
        send_json(exchange, 200, {"requests": [story_data(story) for story in found]})
