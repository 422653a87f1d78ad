"""Paths that lead to no file, for `fuzz_gateway.py`: each of `KINDS` in place of each file that a gateway reads or writes.

    at the start    `maitred serve` ends with one error that says what is wrong, or serves and ends when it is told to
    on a reload     the gateway serves on; of a certificate, it keeps the one that it has

Nothing may hang, print a traceback, or take the memory that `/dev/zero` could fill.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from random import Random

from processes import MAITRED, run_gateway

END_SECS = 45.0
"""Within which a gateway with a path of these must have ended or must serve, on a machine that does other things as well."""
STOP_SECS = 15.0
RELOAD_SECS = 15.0
"""Within which a gateway must answer while its certificate is read again."""
MAX_BYTES = 3 * 1024**3
"""Address space of a gateway that is started."""
NOWHERE = "http://127.0.0.1:9"
"""A backend that is down."""


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a socket": _make_socket,
    "/dev/zero": _link_to("/dev/zero"),
    "/dev/full": _link_to("/dev/full"),
    "a loop of links": lambda path: path.symlink_to(path),
    "nothing": lambda path: None,
    "no text": lambda path: Path.write_bytes(path, bytes(range(256)) * 16) and None,
}
"""What a path leads to, and what makes that."""
USES: dict[str, Callable[[Path], list[str]]] = {
    "configuration": lambda path: ["--config", str(path)],
    "admission configuration": lambda path: ["--admission-config", str(path)],
    "certificate": lambda path: ["--tls-cert", str(path)],
    "state": lambda path: ["--router", "tr", "--state", str(path)],
    "record": lambda path: ["--record", str(path)],
    "decision log": lambda path: ["--decision-log", str(path)],
}
"""What a gateway does with a path, and the flags for that."""


@contextlib.contextmanager
def in_place_of(path: Path, make: Callable[[Path], None]) -> Iterator[None]:
    """Have what `make` makes at `path`; then what was there before, if anything was."""
    aside = path.with_name(path.name + ".aside")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
    try:
        make(path)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
        with contextlib.suppress(FileNotFoundError):
            aside.rename(path)


def start_with_each(folder: Path, secs: float, random: Random) -> list[str]:
    """Start gateways with each of `KINDS` as each of `USES` for `secs`, or until all have been tried. Return what was wrong."""
    pairs, wrong, said = [*product(USES, KINDS)], [], Counter[str]()
    random.shuffle(pairs)
    until = time.monotonic() + secs
    for use, kind in pairs:
        path = folder / f"{use} {kind.replace('/', ' ')}"[-60:]
        KINDS[kind](path)
        what, log = _start(USES[use](path))
        said[what] += 1
        if what not in ("refused", "served") or "Traceback" in log:
            wrong.append(f"{kind} as {use}: {what}:\n{log[-2_000:]}")
        if time.monotonic() > until:
            break
    print(f"at the start  {said.total():7} of {len(pairs)} paths that lead to no file: {dict(said)}", flush=True)
    return wrong


def _start(flags: list[str]) -> tuple[str, str]:
    """Run a gateway until it serves, and stop it. Return `refused`, `served` or what is wrong, and what it has said."""

    command = [*MAITRED, "serve", "--port", "0", "--settle-secs", "0", "--drain-secs", "1", "--backend", NOWHERE, *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        resource.prlimit(process.pid, resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        assert process.stderr is not None
        said, until = b"", time.monotonic() + END_SECS
        os.set_blocking(process.stderr.fileno(), False)
        while process.poll() is None and b"gateway on" not in said and time.monotonic() < until:
            said += process.stderr.read() or b""
            time.sleep(0.05)
        served = process.poll() is None
        what = "served" if b"gateway on" in said else "hangs"
        process.send_signal(signal.SIGTERM)
        try:
            said += process.communicate(timeout=STOP_SECS)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            return "cannot be stopped", said.decode(errors="replace")
    if not served:
        what = "refused" if process.returncode in (1, 2) else f"ended with {process.returncode}"
    return what, said.decode(errors="replace")


def reload_certificate(folder: Path, secs: float, random: Random) -> list[str]:
    """Reload a gateway whose certificate is each of `KINDS`, for `secs` or until all have been tried. Return what was wrong."""
    if shutil.which("openssl") is None:
        print("no openssl: the certificate is not tried", flush=True)
        return []
    certificate, wrong, num_tried = folder / "certificate.pem", [], 0
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2", "-nodes", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(certificate), "-out", str(folder / "only.pem")]
    subprocess.run(["openssl", "req", "-x509", *made, *names], check=True, capture_output=True)
    with certificate.open("ab") as both:
        both.write((folder / "only.pem").read_bytes())
    trusted = ssl.create_default_context(cafile=folder / "only.pem")
    with run_gateway([NOWHERE], "--tls-cert", str(certificate)) as gateway:
        until = time.monotonic() + secs
        for kind in random.sample([*KINDS], len(KINDS)):
            num_tried += 1
            with in_place_of(certificate, KINDS[kind]):
                os.kill(gateway.pid, signal.SIGHUP)
                for _ in range(5):
                    if problem := _problem_of(gateway.url, trusted):
                        wrong.append(f"{kind} as certificate on a reload: {problem}")
                    time.sleep(0.2)
            if time.monotonic() > until:
                break
        os.kill(gateway.pid, signal.SIGTERM)
        try:
            gateway.process.wait(STOP_SECS)
        except subprocess.TimeoutExpired:
            wrong.append("a gateway whose certificate was reloaded cannot be stopped")
        if "Traceback" in gateway.log_text:
            wrong.append("a traceback on a reload of a certificate:\n" + gateway.log_text[-2_000:])
    print(f"certificate   {num_tried:7} of {len(KINDS)} paths that lead to no file, on a reload", flush=True)
    return wrong


def _problem_of(url: str, trusted: ssl.SSLContext) -> str | None:
    try:
        with urllib.request.urlopen(f"{url}/health", context=trusted, timeout=RELOAD_SECS) as answer:
            return None if answer.status == 200 else f"health says {answer.status}"
    except (OSError, urllib.error.URLError) as error:
        return repr(error)
