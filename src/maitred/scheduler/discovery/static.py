"""The source `static`: backends that are written down."""

from __future__ import annotations

import asyncio

from maitred.scheduler.discovery.base import SOURCES, BackendSource, SourceError, SourceInfo, SourceListener, checked_urls


@SOURCES.register("static")
class StaticSource(BackendSource):
    """Lists the backends that it is given."""

    about = SourceInfo(summary="the URLs that it is given", looks="once")

    def __init__(self, urls: list[str]) -> None:
        try:
            self._urls = checked_urls(urls)
        except SourceError as error:
            raise ValueError(str(error)) from error

    async def run(self, told: SourceListener) -> None:
        told.listed(self._urls)
        await asyncio.get_running_loop().create_future()
