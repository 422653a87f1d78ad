"""An API server of Kubernetes, as far as discovery and elections ask it: LIST in parts, WATCH with bookmarks, Leases.

A test changes what it has (`put`, `delete`), and how it answers: refuses (`status`), is slow (`delay_secs`), cuts watches
(`cut_watches`), or forgets old versions (`forget`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Object = dict[str, Any]


def pod(name: str, address: str | None, *, ready: bool = True, phase: str = "Running", **labels: str) -> Object:
    """Return a pod."""
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"phase": phase, "podIP": address, "conditions": [condition]},
    }


def endpoint_slice(name: str, service: str, addresses: dict[str, Any], ports: dict[str, int]) -> Object:
    """Return a slice; `addresses` are its endpoints with their conditions."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": said} for address, said in addresses.items()],
        "ports": [{"name": port_name, "port": number} for port_name, number in ports.items()],
    }


class KubeServer:
    """The server, on a port of its own."""

    def __init__(self, token: str = "") -> None:
        self.token = token
        """The token that is needed; "" for none."""
        self.objects: dict[str, dict[str, Object]] = {}
        """By path of the collection and name."""
        self.asked: list[str] = []
        """What was asked, with its query."""
        self.status = 0
        """The status of every answer; 0: as it should be."""
        self.delay_secs = 0.0
        self.page = 500
        """Most objects of one part of a list."""
        self.url = ""
        self._version = 10
        self._oldest = 0
        self._history: list[tuple[int, str, str, Object]] = []
        self._news = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._watches: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=context)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'http' if context is None else 'https'}://127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in [*self._writers]:
            writer.close()
        await asyncio.sleep(0)

    # What a test does.

    def put(self, path: str, *objects: Object) -> None:
        """Create or replace objects of a collection."""
        for found in objects:
            name = found["metadata"]["name"]
            kind = "MODIFIED" if name in self.objects.get(path, {}) else "ADDED"
            self._change(kind, path, found)

    def delete(self, path: str, name: str) -> None:
        self._change("DELETED", path, self.objects[path].pop(name))

    def bookmark(self, path: str) -> None:
        """Tell watches a newer version, without a change."""
        self._version += 1
        self._history.append((self._version, path, "BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}}))
        self._tell()

    def forget(self) -> None:
        """Forget all versions until now: a watch from one of them is answered with 410."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()

    def cut_watches(self) -> None:
        """Break all watches off, in the middle of their answers."""
        for writer in self._watches:
            writer.transport.abort()

    def num_asked(self, word: str) -> int:
        """Return how often something with `word` was asked."""
        return sum(word in asked for asked in self.asked)

    def _change(self, kind: str, path: str, found: Object) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        if kind != "DELETED":
            self.objects.setdefault(path, {})[found["metadata"]["name"]] = found
        self._history.append((self._version, path, kind, found))
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # What it answers.

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                while True:
                    await self._serve(reader, writer)
        finally:
            self._writers.discard(writer)
            self._watches.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.asked.append(f"{method} {unquote(target)}")
        await asyncio.sleep(self.delay_secs)
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.token and headers.get("authorization") != f"bearer {self.token.lower()}":
            self._answer(writer, 401, _problem(401, "Unauthorized"))
        elif self.status:
            self._answer(writer, self.status, _problem(self.status, "the server is not well"))
        elif query.get("watch"):
            await self._watch(writer, parts.path, query)
        else:
            self._answer(writer, *self._ask(method, parts.path, query, json.loads(body) if body else {}))
        await writer.drain()

    def _answer(self, writer: asyncio.StreamWriter, status: int, answer: Object) -> None:
        data = json.dumps(answer).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)

    def _ask(self, method: str, path: str, query: dict[str, str], body: Object) -> tuple[int, Object]:
        collection, _, name = path.rpartition("/")
        if method == "GET" and path in self.objects:
            return self._list(path, query)
        if method == "GET":
            found = self.objects.get(collection, {}).get(name)
            return (404, _problem(404, f"{name} not found")) if found is None else (200, found)
        if method == "POST":
            if body["metadata"]["name"] in self.objects.get(path, {}):
                return 409, _problem(409, "it exists already")
            self.put(path, body)
            return 201, body
        found = self.objects.get(collection, {}).get(name)
        if found is None:
            return 404, _problem(404, f"{name} not found")
        if body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
            return 409, _problem(409, "the object has been modified")
        self.put(collection, body)
        return 200, body

    def _list(self, path: str, query: dict[str, str]) -> tuple[int, Object]:
        found = [each for each in self.objects[path].values() if _has(each, query.get("labelSelector", ""))]
        begin = int(query.get("continue", "0"))
        rest = {"continue": str(begin + self.page)} if begin + self.page < len(found) else {}
        return 200, {
            "metadata": {"resourceVersion": str(self._version), **rest},
            "items": found[begin : begin + self.page],
        }

    async def _watch(self, writer: asyncio.StreamWriter, path: str, query: dict[str, str]) -> None:
        self._watches.add(writer)
        version = int(query["resourceVersion"])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        if version < self._oldest:
            self._send(writer, {"type": "ERROR", "object": _problem(410, "too old resource version")})
            writer.write(b"0\r\n\r\n")
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(query["timeoutSeconds"])):
                while not writer.transport.is_closing():
                    for number, of, kind, found in self._history:
                        if (
                            number > version
                            and of == path
                            and (kind == "BOOKMARK" or _has(found, query.get("labelSelector", "")))
                        ):
                            version = number
                            self._send(writer, {"type": kind, "object": found})
                    await self._news.wait()
        self._watches.discard(writer)
        writer.write(b"0\r\n\r\n")

    def _send(self, writer: asyncio.StreamWriter, event: Object) -> None:
        data = json.dumps(event).encode() + b"\n"
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _problem(status: int, message: str) -> Object:
    return {"kind": "Status", "status": "Failure", "message": message, "code": status}


def _has(found: Object, selector: str) -> bool:
    labels = found["metadata"].get("labels", {})
    wanted = dict(each.split("=") for each in selector.split(",") if each)
    return all(labels.get(name) == value for name, value in wanted.items())


def make_account(folder: Path, token: str) -> ssl.SSLContext:
    """Write the files of a service account, and return the context of a server with the certificate that they trust."""
    key, certificate = folder / "key.pem", folder / "ca.crt"
    names = "subjectAltName=IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=kube", "-addext", names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "token").write_text(token)
    (folder / "namespace").write_text("serving")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
