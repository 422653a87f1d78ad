"""The pages of programs are made in steps, and shared: requests are served while thousands of programs are listed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import msgspec
import pytest
from world import Backend, GatewayWorld, run, world

from maitred.core.request import PriorityClass
from maitred.core.steps import in_batches, run_at_once
from maitred.gateway.access.page_access import Shown, Viewer
from maitred.gateway.observe import program_views
from maitred.gateway.observe.program_views import ProgramViews
from maitred.gateway.observe.shared_page import SharedPages, write_json_object
from maitred.programs import ProgramRecord

SECTION = {"backend_capacity_tokens": 100_000, "profile": True}
OPERATOR = Viewer("", Shown.ALL)


def adopt_programs(w: GatewayWorld, num_programs: int) -> None:
    """Let the gateway know programs `p0`, `p1`, ... of two tenants, one after the other at its backends."""
    driver = w.gateway.programs
    assert driver is not None
    now = driver.clock.now()
    records = [
        ProgramRecord(
            tenant="header:" + "ab"[number % 2],
            name=f"p{number}",
            model="m",
            priority_class=PriorityClass.DEFAULT,
            parent="",
            backend=number % len(w.backends),
            tokens=100,
            characters=400,
            inherited_tokens=0,
            num_requests=1,
            tool_count=0,
            tool_mean=0,
            created_at=now,
            last_active=now,
        )
        for number in range(num_programs)
    ]
    driver.adopt(records)


def views_of(w: GatewayWorld) -> ProgramViews:
    pages = w.gateway._program_pages
    assert pages is not None
    return pages.views


@pytest.mark.parametrize(
    ("path", "status", "has"),
    [
        ("/programs", 200, lambda page: len(page) == 12),
        ("/programs/metrics", 200, lambda page: [b["total_program_tokens"] for b in page["backends"].values()] == [600, 600]),
        ("/health", 200, lambda page: (page["status"], page["programs_count"], page["acting_count"]) == ("ok", 12, 12)),
        ("/health", 200, lambda page: [b["total"] for b in page["per_backend"].values()] == [6, 6]),
        ("/profiles", 200, lambda page: page == {}),
        ("/profiles/p1", 404, lambda page: page == {"error": "No steps of a program 'p1' are known"}),
        ("/programs/release", 200, lambda page: page == {"program_id": "p1", "released": True}),
    ],
)
def test_each_page_is_made_in_steps(
    path: str, status: int, has: Callable[[Any], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_views, "_PROGRAMS_IN_STEP", 1)
    monkeypatch.setattr(program_views, "_LOOKED_AT_IN_STEP", 1)
    num_parts, make_page = [0], SharedPages.page

    async def counted(self: SharedPages, key: Hashable, make: Callable[[], Iterable[bytes]]) -> bytes:
        def counting() -> Iterator[bytes]:
            for part in make():
                num_parts[0] += 1
                yield part

        return await make_page(self, key, counting)

    async def scenario() -> None:
        async with world(Backend(), Backend(), programs=SECTION) as w:
            adopt_programs(w, 12)
            monkeypatch.setattr(SharedPages, "page", counted)
            is_release = path == "/programs/release"
            answered, _, body = await w.request(
                path, {"program_id": "p1"} if is_release else None, "POST" if is_release else "GET"
            )
            assert answered == status
            assert has(msgspec.json.decode(body))
            assert num_parts[0] > 12

    run(scenario())


def test_a_release_looks_at_other_programs_only_where_the_owner_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at 20,000 programs takes 4 ms, during which no request is served."""
    looks: list[str] = []
    monkeypatch.setattr(ProgramViews, "owners_of", lambda _, name: looks.append(name) or iter(()))

    async def scenario() -> None:
        async with world(Backend(), programs=SECTION, trust_tenant_header=True) as w:
            adopt_programs(w, 4)
            for body, tenant, released in [
                ({"program_id": "p0"}, "a", True),
                ({"program_id": "p1"}, "a", False),
                ({"program_id": "p1", "tenant": "header:b"}, "a", False),
                ({"program_id": "unknown"}, "b", False),
            ]:
                _, _, answer = await w.request("/programs/release", body, x_smg_tenant_id=tenant)
                assert msgspec.json.decode(answer)["released"] is released
            assert w.gateway.programs is not None
            assert len(w.gateway.programs.core.programs) == 3

    run(scenario())
    assert not looks


def test_a_program_that_ends_while_a_page_is_made_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_views, "_PROGRAMS_IN_STEP", 2)

    async def scenario() -> None:
        async with world(Backend(), programs=SECTION) as w:
            adopt_programs(w, 4)
            assert w.gateway.programs is not None
            listing, health = views_of(w).list_programs(OPERATOR), views_of(w).health_fields()
            next(listing)
            next(health)
            assert w.gateway.programs.release("header:b", "p3")
            listed = {name for some in listing for name in some}
            assert listed == {"p0", "p1", "p2"}
            fields = run_at_once(health)
            assert (fields["programs_count"], fields["acting_count"]) == (3, 3)
            adopt_programs(w, 5)  # p3 and p4 are there from now on.
            assert len({name for some in views_of(w).list_programs(OPERATOR) for name in some}) == 5

    run(scenario())


def test_tenants_who_ask_at_once_get_a_page_each() -> None:
    async def scenario() -> None:
        async with world(Backend(), programs=SECTION, trust_tenant_header=True) as w:
            adopt_programs(w, 6)
            asked = (w.request("/programs", method="GET", x_smg_tenant_id=tenant) for tenant in "abab")
            pages = [msgspec.json.decode(body) for _, _, body in await asyncio.gather(*asked)]
            tenants = [{view["tenant"] for view in page.values()} for page in pages]
            assert [len(page) for page in pages] == [3, 3, 3, 3]
            assert tenants == [{"header:a"}, {"header:b"}, {"header:a"}, {"header:b"}]

    run(scenario())


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_an_object_is_written_in_parts(size: int) -> None:
    members = [(f"name {number}", {"n": number, "text": '"},{'}) for number in range(6)]
    parts = list(write_json_object([{}, *(dict(some) for some in in_batches(members, size)), {}]))
    assert msgspec.json.decode(b"".join(parts)) == dict(members)
    assert parts[0] == b""


@pytest.mark.parametrize("members", [[], [{}], [{}, {}]])
def test_an_object_without_members_is_written(members: list[dict[str, object]]) -> None:
    assert b"".join(write_json_object(members)) == b"{}"
