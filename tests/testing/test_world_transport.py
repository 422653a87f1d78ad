"""Connections in memory: what TCP promises is kept, and what it leaves open follows from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from maitred.testing.world.loop import VirtualLoop
from maitred.testing.world.network import Network
from maitred.testing.world.place import Place
from maitred.testing.world.streams import LinkConfig
from maitred.testing.world.transport import MemoryTransport


class Recorder(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.told: list[str] = []
        self.keeps_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def eof_received(self) -> bool:
        self.told.append("end")
        return self.keeps_open

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost" if exc is None else "reset")

    @property
    def text(self) -> bytes:
        return b"".join(self.received)


Scene = Callable[[Recorder, Recorder, Network], Coroutine[Any, Any, Any]]


def play(scene: Scene, *, seed: int = 0, link: LinkConfig | None = None) -> None:
    """Run a scene with both ends of a connection."""
    loop = VirtualLoop(seed)
    network = Network(loop, link)

    async def main() -> None:
        servers: list[Recorder] = []

        def accept() -> Recorder:
            servers.append(Recorder())
            return servers[-1]

        server = await loop.create_server(accept, "10.0.0.2", 80)
        _, client = await loop.create_connection(Recorder, "10.0.0.2", 80)
        await asyncio.sleep(0.01)
        await scene(client, servers[0], network)
        server.close()

    loop.run_until_complete(main())
    assert not loop.errors


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_order_and_whole_however_they_are_split(seed: int) -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        for number in range(100):
            client.transport.write(b"%03d" % number)
            await asyncio.sleep(0.0001)
        await asyncio.sleep(1)
        assert server.text == b"".join(b"%03d" % number for number in range(100))
        assert any(len(piece) % 3 for piece in server.received)  # some are split within a number

    play(scene, seed=seed, link=LinkConfig(split_share=0.5))


def test_a_writer_is_paused_above_the_high_water_mark_and_resumed_when_its_reader_has_caught_up() -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        server.transport.pause_reading()
        client.transport.write(b"x" * 200_000)
        assert client.told == ["pause"]
        assert client.transport.get_write_buffer_size() == 200_000 - 4_096
        await asyncio.sleep(1)
        assert server.text == b""
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert client.told == ["pause", "resume"]
        assert len(server.text) == 200_000

    play(scene, link=LinkConfig(max_kernel_bytes=4_096))


def test_an_end_that_closes_sends_what_it_has_first() -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        client.transport.write(b"x" * 200_000)
        client.transport.close()
        assert client.transport.is_closing()
        await asyncio.sleep(1)
        assert (len(server.text), server.told) == (200_000, ["end", "lost"])
        assert client.told == ["pause", "resume", "lost"]

    play(scene, link=LinkConfig(max_kernel_bytes=4_096))


def test_an_end_may_go_on_reading_after_it_has_sent_its_last_byte() -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        server.keeps_open = True
        client.transport.write_eof()
        await asyncio.sleep(1)
        assert server.told == ["end"]
        server.transport.write(b"answer")
        await asyncio.sleep(1)
        assert client.text == b"answer"
        server.transport.close()
        await asyncio.sleep(1)
        assert (client.told, server.told) == (["end", "lost"], ["end", "lost"])

    play(scene)


def test_an_aborted_connection_is_reset_at_the_other_end() -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        client.transport.write(b"x" * 300_000)
        client.transport.abort()
        await asyncio.sleep(1)
        assert (client.told[-1], server.told) == ("lost", ["reset"])
        assert len(server.text) < 300_000

    play(scene)


def test_who_writes_to_an_end_that_is_closed_is_reset() -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        client.keeps_open = True
        server.transport.close()
        await asyncio.sleep(1)
        assert client.told == ["end"]
        client.transport.write(b"late")
        await asyncio.sleep(1)
        assert client.told == ["end", "reset"]

    play(scene)


def test_an_answer_may_be_lost_when_its_sender_closes_with_bytes_unread() -> None:
    lost = set[bool]()

    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        server.transport.pause_reading()
        client.transport.write(b"the rest of a body")
        await asyncio.sleep(1)
        server.transport.write(b"answer")
        server.transport.close()
        await asyncio.sleep(1)
        assert client.told == ["reset"]
        lost.add(client.text != b"answer")

    for seed in range(20):
        play(scene, seed=seed)
    assert lost == {True, False}


@pytest.mark.parametrize(("forth", "back"), [(True, False), (False, True), (True, True)])
def test_a_cut_holds_bytes_in_each_direction_and_nobody_is_told(forth: bool, back: bool) -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        (connection,) = network.connections.values()
        connection.cut(forth=forth, back=back)
        client.transport.write(b"question")
        server.transport.write(b"answer")
        await asyncio.sleep(1_000)
        assert (server.text == b"", client.text == b"") == (forth, back)
        connection.heal()
        await asyncio.sleep(1)
        assert (server.text, client.text) == (b"question", b"answer")
        connection.reset()
        await asyncio.sleep(1)
        assert client.told == server.told == ["reset"]

    play(scene)


@pytest.mark.parametrize("is_forth", [True, False])
def test_a_way_that_is_cut_delivers_nothing_in_one_direction_and_no_connection_is_made(is_forth: bool) -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        ways = ("10.0.0.1", "10.0.0.2")
        network.cut_way(*(ways if is_forth else ways[::-1]))
        client.transport.write(b"question")
        server.transport.write(b"answer")
        further = asyncio.create_task(network.loop.create_connection(Recorder, "10.0.0.2", 80))
        await asyncio.sleep(10)
        assert (server.text == b"", client.text == b"") == (is_forth, not is_forth)
        assert not further.done()
        network.mend_way(*(ways if is_forth else ways[::-1]))
        await asyncio.sleep(10)
        assert (server.text, client.text) == (b"question", b"answer")
        assert further.done()

    play(scene)


def test_an_end_that_is_not_read_learns_of_a_hangup_only_if_it_asks() -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        server.transport.pause_reading()
        client.transport.write(b"x")
        client.transport.close()
        await asyncio.sleep(1)
        assert server.told == []
        server.transport.watch_hangup(lambda: server.told.append("hangup"))
        await asyncio.sleep(0)
        assert server.told == ["hangup"]
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert (server.text, server.told) == (b"x", ["hangup", "end", "lost"])

    play(scene)


def test_nothing_listens_a_machine_is_silent_a_backlog_is_full() -> None:
    loop = VirtualLoop(1)
    network = Network(loop)
    network.hosts["engine"] = ["10.0.0.3"]
    network.silent.add("10.0.0.9")

    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, "engine", 80)
        with pytest.raises(OSError, match="not known"):
            await loop.create_connection(Recorder, "nowhere", 80)
        began_at = loop.time()
        with pytest.raises(TimeoutError):
            await loop.create_connection(Recorder, "10.0.0.9", 80)
        assert 60 < loop.time() - began_at < 127
        place = Place("10.0.0.3")
        listener = network.listen("engine", 80, place, backlog=2)
        clients = [await loop.create_connection(Recorder, "engine", 80) for _ in range(2)]
        third = loop.create_task(loop.create_connection(Recorder, "engine", 80))
        await asyncio.sleep(10)
        assert not third.done()
        await loop.create_server(Recorder, sock=listener, backlog=2)
        await asyncio.sleep(10)
        assert third.done()
        for transport, _ in (*clients, third.result()):
            transport.close()
        await asyncio.sleep(1)
        assert not network.connections

    loop.run_until_complete(main())


def test_a_program_without_descriptors_closes_what_it_accepts() -> None:
    loop = VirtualLoop(1)
    network = Network(loop)

    async def main() -> None:
        place = Place("10.0.0.3", max_descriptors=5)  # three streams, the listener and one connection
        listener = network.listen("10.0.0.3", 80, place)
        await loop.create_server(Recorder, sock=listener)
        clients = [(await loop.create_connection(Recorder, "10.0.0.3", 80))[1] for _ in range(2)]
        await asyncio.sleep(1)
        assert [client.told for client in clients] == [[], ["reset"]]
        clients[0].transport.close()
        await asyncio.sleep(1)
        assert place.descriptors.num_used == 4

    loop.run_until_complete(main())


def test_who_writes_without_end_to_a_reader_that_is_gone_is_held_back_until_the_reset_comes() -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        client.transport.abort()
        await asyncio.sleep(0)
        while "pause" not in server.told:
            server.transport.write(b"x" * 10_000)
        assert "reset" not in server.told
        await asyncio.sleep(1.0)
        assert server.told[-1] == "reset"

    play(scene)


def test_a_reset_ends_what_is_left_to_be_sent_even_while_nothing_is_read() -> None:
    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        server.transport.pause_reading()
        while "pause" not in server.told:
            server.transport.write(b"x" * 10_000)
        client.transport.abort()
        await asyncio.sleep(1.0)
        assert server.told == ["pause", "reset"]

    play(scene)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_read_that_was_sent_behind_a_reset(seed: int) -> None:
    """Seed 890 of the swarm: a reset had lost the head of an answer, and what was sent next was read in its place."""

    async def scene(client: Recorder, server: Recorder, network: Network) -> None:
        client.transport.pause_reading()
        server.transport.write(b"head")
        await asyncio.sleep(1.0)
        client.transport.connection.reset()
        server.transport.write(b"tail")
        client.transport.resume_reading()
        await asyncio.sleep(1.0)
        assert client.text in {b"", b"head"}
        assert (client.told, server.told) == (["reset"], ["reset"])

    play(scene, seed=seed)
