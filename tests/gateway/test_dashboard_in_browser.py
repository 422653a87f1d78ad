"""The dashboard in a real browser, before a gateway with ten thousand requests. Needs Chromium (Debian: chromium)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from world import Backend, GatewayWorld, run_on_sockets, world

from browser import CHROMIUM, Tab, browser
from maitred.admission import ReleaseReason
from maitred.core.request import PriorityClass, Request

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
MARKUP = "<img src=x onerror=alert(1)>"
SLOTS, REQUESTS = 8_000, 10_000
LONG_QUEUES = {"classes": {name: {"queue_size": 5_000} for name in ("interactive", "bulk")}}
TYPE_KEY = "document.getElementById('key').value = {!r}; document.querySelector('#login button').click()"


def fill(w: GatewayWorld) -> list[int]:
    """Put requests into admission: more than there are slots."""
    admission, now = w.gateway.scheduler.admission, w.gateway.machine.clock.now()
    task = asyncio.current_task()
    assert task is not None
    ids = list(range(1_000_000, 1_000_000 + REQUESTS))
    for number in ids:
        c = PriorityClass.INTERACTIVE if number % 4 == 0 else PriorityClass.BULK
        named: dict[str, Any] = {"tenant": MARKUP, "client_id": f"{MARKUP}{number}", "model": "m", "priority_class": c}
        admission.submit(Request(id=number, arrival=now, prompt_tokens=10, **named), 10, task, now)
    return ids


async def sign_in(tab: Tab, url: str) -> None:
    await tab.show(f"{url}/maitred")
    await tab.until("!document.getElementById('login').hidden")
    assert await tab.run("document.getElementById('refused').textContent") == ""
    await tab.run(TYPE_KEY.format("wrong"))
    await tab.until("document.getElementById('refused').textContent")
    assert await tab.run("document.getElementById('main').hidden")
    await tab.run(TYPE_KEY.format("right"))
    await tab.until("!document.getElementById('main').hidden && last !== null")
    assert not await tab.run("document.cookie")


async def see_what_is_there(tab: Tab) -> None:
    await tab.until("document.querySelectorAll('#queues button.id').length")
    assert await tab.run("document.querySelector('.tile dd').firstChild.nodeValue") == "8,000"
    assert await tab.run("document.querySelector('#slots canvas').ariaLabel") == (
        "8,000 of 8,000 slots in use, 2,000 waiting: 2000 interactive, 6000 bulk"
    )
    data = "c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
    pixels = f"[...{data}].filter((each, i) => i % 4 == 3 && each).length"
    assert await tab.run(f"(() => {{ const c = document.querySelector('#slots canvas'); return {pixels}; }})()") > 20_000
    assert await tab.run("document.querySelector('#queues button.id').textContent.startsWith('<img')")
    bar = "document.querySelector('#engines .bar')"
    await tab.until(f"Math.abs({bar}?.firstChild.offsetWidth / {bar}?.offsetWidth - 0.25) < 0.02")
    assert await tab.run("document.images.length") == 0
    assert await tab.run("document.querySelectorAll('*').length") < 1_000
    assert await tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(252, 252, 251)"


async def use_the_keyboard(tab: Tab) -> None:
    await tab.press("5")
    assert await tab.run("document.activeElement.id") == "engines"
    await tab.press("p")
    assert (await tab.run("document.getElementById('status').textContent")).startswith("paused")
    await tab.press("p")
    await tab.run("document.querySelector('#queues button.id').focus()")
    await tab.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    await tab.until("document.getElementById('why').open && !document.getElementById('story').textContent.startsWith('…')")
    assert await tab.run("document.getElementById('story').textContent.length") > 10
    assert await tab.run("document.images.length") == 0


async def see_gateways_of_one_name(tab: Tab) -> None:
    gateway = "{name: 'vm', connected: true, in_flight: 1, waiting: 0, heard_secs_ago: 0}"
    of_scheduler = f"{{role: 'scheduler', name: 's', mode: 'leading', epoch: 1, gateways: [{gateway}, {gateway}]}}"
    await tab.run(f"showCluster({{state: {{cluster: {of_scheduler}}}}})")
    assert await tab.run("document.querySelectorAll('#gateways tbody tr').length") == 2


async def see_it_elsewhere(tab: Tab, url: str) -> None:
    await tab.show(f"{url}/maitred", width=390, height=844, scheme="dark")
    await tab.until("last !== null && document.querySelector('#queues button.id')")  # The tab has kept the key.
    assert await tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 21, 20)"
    assert await tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_the_dashboard_of_ten_thousand_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        backend = Backend()
        backend.metrics = b"vllm:num_requests_running 4\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.25\n"
        async with world(backend, slots=SLOTS, admission=LONG_QUEUES, api_key="right") as w:
            ids = fill(w)
            try:
                async with browser(tmp_path) as tab:
                    await sign_in(tab, w.url)
                    await see_what_is_there(tab)
                    await use_the_keyboard(tab)
                    await see_gateways_of_one_name(tab)
                    await see_it_elsewhere(tab, w.url)
                    # A 401 is no news to who is asked for a key.
                    assert [each for each in tab.problems if "401" not in each] == []
            finally:
                for number in ids:
                    w.gateway.scheduler.admission.release(number, ReleaseReason.DRAINED)

    run_on_sockets(scenario())
