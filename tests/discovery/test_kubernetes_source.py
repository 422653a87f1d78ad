"""The source `kubernetes` against an API server of the tests' own: what it lists, and what it does when the API fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from heard import Heard
from kube_server import KubeServer, endpoint_slice, make_account, pod

from maitred.core.errors import ConfigError
from maitred.scheduler.discovery import kubernetes
from maitred.scheduler.discovery.base import SOURCES, SourceError
from maitred.scheduler.discovery.kube_objects import pool_selection
from maitred.scheduler.discovery.kubernetes import KubernetesSource

SLICES = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
PODS = "/api/v1/namespaces/serving/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/serving/inferencepools"
OLD_POOLS = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/serving/inferencepools"
A, B, C = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))
UseServer = Callable[[KubeServer], str]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less after failures."""
    monkeypatch.setattr(kubernetes, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(kubernetes, "_LONGEST_WAIT", 0.02)


def slice_of(name: str, *addresses: str, **conditions: Any) -> dict[str, Any]:
    return endpoint_slice(name, "vllm", {address: conditions or {"ready": True} for address in addresses}, {"http": 8000})


def follow(
    use_server: UseServer, scenario: Callable[[KubeServer, Heard], Coroutine[Any, Any, None]], **parameters: Any
) -> None:
    """Run a scenario with a server and a source that asks it."""

    async def run() -> None:
        server, heard = KubeServer(), Heard()
        await server.start()
        account = use_server(server)
        server.put(SLICES, slice_of("vllm-1", "10.0.0.1"))
        server.put(PODS)
        source = KubernetesSource(**{"service": "vllm", **parameters}, account=account)
        task = asyncio.create_task(source.run(heard))
        try:
            await scenario(server, heard)
        finally:
            task.cancel()
            await asyncio.wait({task})
            await server.stop()

    asyncio.run(run())


def test_endpoints_come_and_go_as_the_watch_says(use_server: UseServer) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        assert await heard.next() == [A]
        server.put(SLICES, slice_of("vllm-2", "10.0.0.2"))
        assert await heard.next() == [A, B]
        server.put(SLICES, endpoint_slice("other", "another", {"10.0.0.9": {}}, {"http": 8000}))
        server.put(SLICES, slice_of("vllm-2", "10.0.0.2", "10.0.0.3"))
        assert await heard.next() == [A, B, C]
        server.put(SLICES, slice_of("vllm-2", "10.0.0.2", ready=False))
        assert await heard.next() == [A]
        server.put(SLICES, slice_of("vllm-2", "10.0.0.2", ready=True, terminating=True))
        server.delete(SLICES, "vllm-1")
        assert await heard.next() == []
        assert server.num_asked("watch=1") == 1

    follow(use_server, scenario)


def test_a_watch_that_breaks_off_goes_on_from_the_last_version(use_server: UseServer) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        assert await heard.next() == [A]
        server.put(SLICES, slice_of("vllm-2", "10.0.0.2"))
        assert await heard.next() == [A, B]
        version = server._version
        server.cut_watches()
        server.put(SLICES, slice_of("vllm-3", "10.0.0.3"))
        while (said := await heard.next()) != [A, B, C]:
            assert "cannot be asked" in str(said)
        assert server.num_asked(f"resourceVersion={version}") == 1
        assert server.num_asked("limit=500") == 1  # no second list

    follow(use_server, scenario)


def test_a_bookmark_is_the_version_from_which_a_watch_goes_on(use_server: UseServer) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        assert await heard.next() == [A]
        while not server._watches:
            await asyncio.sleep(0.01)
        server.bookmark(SLICES)
        version = server._version
        await asyncio.sleep(0.05)
        server.cut_watches()
        while not server.num_asked(f"resourceVersion={version}&"):
            await asyncio.sleep(0.01)
        assert server.num_asked("allowWatchBookmarks=true") == 2

    follow(use_server, scenario)


def test_a_version_that_is_forgotten_is_listed_again(use_server: UseServer) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        assert await heard.next() == [A]
        server.put(SLICES, slice_of("vllm-2", "10.0.0.2"))
        assert await heard.next() == [A, B]
        server.objects[SLICES]["vllm-3"] = slice_of("vllm-3", "10.0.0.3")  # a change that no watch has told
        server.forget()
        server.cut_watches()
        while (said := await heard.next()) != [A, B, C]:
            assert "cannot be asked" in str(said)
        assert server.num_asked("limit=500") == 2

    follow(use_server, scenario)


@pytest.mark.parametrize(("status", "said"), [(500, "answers 500: the server is not well"), (403, "answers 403")])
def test_an_error_of_the_api_is_a_failure_and_lists_nothing(use_server: UseServer, status: int, said: str) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        assert await heard.next() == [A]
        server.status = status
        server.cut_watches()
        while said not in (problem := str(await heard.next())):
            assert "cannot be asked" in problem
        server.status = 0
        server.put(SLICES, slice_of("vllm-2", "10.0.0.2"))
        assert await heard.next() == [A, B]

    follow(use_server, scenario)


def test_lists_come_in_parts_and_are_read_again_after_a_while(use_server: UseServer) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        server.page = 1
        assert await heard.next() == [A]
        server.objects[SLICES]["vllm-2"] = slice_of("vllm-2", "10.0.0.2")  # no watch tells it
        assert await heard.next() == [A, B]

    follow(use_server, scenario, resync=1.0)


def test_an_api_that_is_slow_or_silent_is_a_failure_in_time(use_server: UseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = kubernetes.open_kube
    monkeypatch.setattr(kubernetes, "open_kube", lambda account: opened(account, timeout_secs=0.1))

    async def scenario(server: KubeServer, heard: Heard) -> None:
        server.delay_secs = 0.02
        assert await heard.next() == [A]
        while not server._watches:
            await asyncio.sleep(0.01)
        server.delay_secs = 5.0
        server.cut_watches()
        assert "cannot be asked" in str(await heard.next())

    follow(use_server, scenario)


def test_a_pod_of_a_pool_is_a_backend_while_it_is_ready(use_server: UseServer) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        assert await heard.next() == "there is no InferencePool llama in the namespace serving"
        server.put(
            PODS, pod("a", "10.0.0.1", app="llama"), pod("b", "10.0.0.2", ready=False, app="llama"), pod("x", "10.0.0.9")
        )
        server.put(PODS, pod("c", None, phase="Pending", app="llama"))
        spec = {"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}]}
        server.put(POOLS, {"metadata": {"name": "llama"}, "spec": spec})
        assert await heard.next() == [A]
        server.put(PODS, pod("b", "10.0.0.2", app="llama"))
        assert await heard.next() == [A, B]
        going = pod("a", "10.0.0.1", app="llama")
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        server.put(PODS, going)
        assert await heard.next() == [B]
        server.delete(PODS, "b")
        assert await heard.next() == []

    follow(use_server, scenario, service="", pool="llama")


def test_a_pool_of_before_version_1_is_read(use_server: UseServer) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        server.put(PODS, pod("a", "10.0.0.1", app="llama"))
        server.put(OLD_POOLS, {"metadata": {"name": "llama"}, "spec": {"selector": {"app": "llama"}, "targetPortNumber": 8000}})
        while (said := await heard.next()) != [A]:
            assert "there is no InferencePool" in str(said)

    follow(use_server, scenario, service="", pool="llama")


@pytest.mark.parametrize("pool", [b"{}", b"[", b'{"spec": {"selector": {}}}', b'{"spec": {"selector": {"a": "b"}}}'])
def test_a_pool_that_makes_no_sense_is_one_clear_line(pool: bytes) -> None:
    with pytest.raises(SourceError, match="the pool"):
        pool_selection(pool, "serving", "", "http")


def test_a_port_that_is_not_clear_is_a_failure(use_server: UseServer) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        await heard.next()
        server.put(SLICES, endpoint_slice("vllm-1", "vllm", {"10.0.0.1": {}}, {"http": 8000, "grpc": 9000}))
        assert await heard.next() == ("vllm-1 has several ports or none: name one of 8000 (http), 9000 (grpc) as port=")

    follow(use_server, scenario)


def test_a_port_by_name_or_number(use_server: UseServer) -> None:
    for port, url in (("grpc", "http://10.0.0.1:9000"), ("8080", "http://10.0.0.1:8080")):

        async def scenario(server: KubeServer, heard: Heard, url: str = url) -> None:
            server.put(SLICES, endpoint_slice("vllm-1", "vllm", {"10.0.0.1": {}}, {"http": 8000, "grpc": 9000}))
            while await heard.next() != [url]:
                pass

        follow(use_server, scenario, port=port)


def test_in_a_pod_the_account_says_where_the_api_is_and_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        server, heard = KubeServer(token="first"), Heard()
        await server.start(make_account(tmp_path, "first"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        server.put(SLICES, slice_of("vllm-1", "10.0.0.1"))
        task = asyncio.create_task(KubernetesSource(service="vllm", account=str(tmp_path)).run(heard))
        assert await heard.next() == [A]
        assert server.num_asked("/namespaces/serving/endpointslices") >= 1
        # The kubelet renews tokens.
        (tmp_path / "token").write_text("second")
        server.token = "second"
        server.cut_watches()
        server.put(SLICES, slice_of("vllm-2", "10.0.0.2"))
        while (said := await heard.next()) != [A, B]:
            assert "cannot be asked" in str(said)
        task.cancel()
        await asyncio.wait({task})
        await server.stop()

    asyncio.run(scenario())


def test_where_there_is_no_cluster_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        heard = Heard()
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        task = asyncio.create_task(KubernetesSource(service="vllm", account=str(tmp_path)).run(heard))
        said = str(await heard.next())
        assert said.startswith("no cluster of Kubernetes is known here: ")
        assert said.endswith("(run in a pod, or set KUBECONFIG)")
        task.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("kubernetes()", "name a service or a pool"),
        ("kubernetes(service=a, pool=b)", "name a service or a pool"),
        ("kubernetes(pool=a, port=http)", "port must be a number with a pool"),
    ],
)
def test_a_wrong_parameter_is_one_clear_error(spec: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SOURCES.create(spec)


OBJECTIVES = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/serving/inferenceobjectives"


def objective(name: str, priority: int | None, pool: str = "p") -> dict[str, Any]:
    spec = {"poolRef": {"name": pool}, **({} if priority is None else {"priority": priority})}
    return {"metadata": {"name": name}, "spec": spec}


def put_pool(server: KubeServer) -> None:
    """Add a pool `p` of one pod."""
    spec = {"selector": {"matchLabels": {"app": "v"}}, "targetPorts": [{"number": 8000}]}
    server.put(POOLS, {"metadata": {"name": "p"}, "spec": spec})
    server.put(PODS, pod("v-1", "10.0.0.1", app="v"))


def test_objectives_of_a_pool_are_followed_beside_its_pods(use_server: UseServer) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        heard.wants_objectives = True
        put_pool(server)
        server.put(
            OBJECTIVES,
            objective("chat", 10),
            objective("night", -5),
            objective("other", 7, "another"),
            objective("plain", None),
        )

        async def known(expected: dict[str, int]) -> None:
            async with asyncio.timeout(20):
                while await heard.known_objectives.get() != expected:
                    pass

        await known({"chat": 10, "night": -5, "plain": 0})
        while await heard.next() != [A]:
            pass
        server.put(OBJECTIVES, objective("chat", 20))
        server.delete(OBJECTIVES, "night")
        await known({"chat": 20, "plain": 0})
        server.forget()
        server.cut_watches()
        server.put(OBJECTIVES, objective("late", 1))
        await known({"chat": 20, "plain": 0, "late": 1})

    follow(use_server, scenario, service="", pool="p")


def test_objectives_that_cannot_be_read_are_said_and_backends_found_all_the_same(use_server: UseServer) -> None:
    async def scenario(server: KubeServer, heard: Heard) -> None:
        heard.wants_objectives = True
        put_pool(server)
        async with asyncio.timeout(20):
            assert "404" in str(await heard.known_objectives.get())
        while await heard.next() != [A]:
            pass

    follow(use_server, scenario, service="", pool="p")
