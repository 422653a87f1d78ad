"""Build the image of deploy/container/Containerfile, and look whether it serves.

    python tools/container.py --base docker.io/library/python:3.13-slim-bookworm    with the registry's image
    python tools/container.py --debootstrap bookworm                               with one made of Debian's packages alone

It needs buildah, root, and ten minutes, so CI does not run it. In the image it starts an emulated engine and a gateway, as the
user of the image and with a root that cannot be written to, runs the health check of the image, and sends a chat. With
`--chroot` the steps of the file are run one by one in a chroot, for machines on which buildah cannot run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "deploy" / "container" / "Containerfile"
IMAGE, USER = "localhost/maitred-check", 10001

Step = tuple[str, str]


def stages(text: str) -> list[list[Step]]:
    """Return the instructions of each stage, after those before the first FROM: name and value."""
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    found: list[list[Step]] = []
    for line in filter(str.strip, lines):
        name, _, value = line.strip().partition(" ")
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, value.strip()))
    return found


def run(*command: str | Path, **named: object) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed, and show it."""
    print("+", *command, file=sys.stderr, flush=True)
    return subprocess.run([str(word) for word in command], check=True, text=True, **named)  # type: ignore[call-overload, no-any-return]


def make_base(suite: str, folder: Path) -> Path:
    """Return a root of Debian's packages with python3, from the mirror that debootstrap takes by itself."""
    run("debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", suite, folder)
    prepare(folder)
    return folder


def prepare(root: Path) -> None:
    """Let pip and apt in a root reach what they reach here: name servers, and authorities that this machine trusts."""
    for name in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        shutil.copy(Path("/") / name, root / name)
    (root / "etc" / "pip.conf").write_text("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n")


def build_in_chroot(base: Path, folder: Path) -> Path:
    """Run the steps of both stages in copies of `base`, and return the root of the last one."""
    roots: list[Path] = []
    for index, steps in enumerate(stages(FILE.read_text())):
        root = folder / f"stage{index}"
        run("cp", "-a", base, root)
        roots.append(root)
        where = "/"
        with _mounted(root):
            for name, value in steps:
                if name == "WORKDIR":
                    where = value
                    (root / value.lstrip("/")).mkdir(parents=True, exist_ok=True)
                elif name == "COPY":
                    _copy(value, roots, root, where)
                elif name == "RUN":
                    run("chroot", root, "sh", "-c", f"cd {where} && {value}")
    return roots[-1]


def _copy(value: str, roots: Sequence[Path], root: Path, where: str) -> None:
    *sources, target = value.split()
    is_from_build = sources[0].startswith("--from=")
    of = roots[0] if is_from_build else ROOT
    goal = root / (target if target.startswith("/") else f"{where}/{target}").lstrip("/")
    for source in sources[is_from_build:]:
        path = of / source.lstrip("/")
        if path.is_dir():
            run("cp", "-aT", path, goal)
        else:
            goal.mkdir(parents=True, exist_ok=True)
            run("cp", "-a", path, goal)


@contextlib.contextmanager
def _mounted(root: Path) -> Iterator[None]:
    run("mount", "--bind", "/dev", root / "dev")
    run("mount", "-t", "proc", "proc", root / "proc")
    try:
        yield
    finally:
        run("umount", root / "proc", root / "dev")


def build(base: str, level: int) -> Path:
    """Build the image with buildah, and return where its root is mounted."""
    shared = ("--isolation", "chroot", "--build-arg", f"BASE={base}", "--build-arg", f"MYPYC_OPT_LEVEL={level}")
    run("buildah", "build", *shared, "-f", FILE, "-t", IMAGE, ROOT)
    name = run("buildah", "from", IMAGE, capture_output=True).stdout.strip()
    return Path(run("buildah", "mount", name, capture_output=True).stdout.strip())


def check(root: Path) -> None:
    """Serve from a root that is read-only, as the image's user, and ask. Raises CalledProcessError or AssertionError."""
    health = json.loads(re.search(r"CMD (\[.*\])", dict(stages(FILE.read_text())[-1])["HEALTHCHECK"])[1])  # type: ignore[index]
    engine = _start(root, "engine", "--port", "18261", "--model", "demo")
    gateway = _start(root, "serve", "--port", "18260", "--backend", "http://127.0.0.1:18261")
    try:
        _until(lambda: _inside(root, *health, url="http://127.0.0.1:18260/health"))
        body = '{"model":"demo","messages":[{"role":"user","content":"hi"}],"max_tokens":3}'
        ask = "import sys, urllib.request as u; print(u.urlopen(u.Request(sys.argv[1], sys.argv[2].encode())).read().decode())"
        _until(lambda: _inside(root, "python3", "-c", ask, "http://127.0.0.1:18260/v1/chat/completions", body))
        _inside(root, "sh", "-c", "test $(id -u) = 10001 && ! touch /opt/maitred/x 2>/dev/null && touch /var/lib/maitred/x")
        _inside(root, "sh", "-c", "! command -v gcc")
        _inside(root, "maitred", "--version")
    finally:
        for process in (gateway, engine):
            process.send_signal(signal.SIGINT)
    assert [process.wait(timeout=60) for process in (gateway, engine)] == [0, 0]
    print("the image serves, as user 10001 with a read-only root")


def _until(ask: Callable[[], object]) -> None:
    """Ask until that succeeds, for a minute at most."""
    for _ in range(60):
        with contextlib.suppress(subprocess.CalledProcessError):
            ask()
            return
        time.sleep(1)
    raise AssertionError("the image does not answer")


def _command(root: Path, words: Sequence[str], url: str) -> list[str]:
    """Return a command in the root as the user of the image, with a mount namespace in which the root cannot be written to."""
    env = ("PATH=/opt/maitred/bin:/usr/local/bin:/usr/bin:/bin", "XDG_STATE_HOME=/var/lib/maitred", f"MAITRED_HEALTH_URL={url}")
    script = (
        f"mount --bind {root} {root} && mount -o remount,bind,ro {root} && mount -t tmpfs tmpfs {root}/tmp && "
        f"mount -t tmpfs -o uid={USER} tmpfs {root}/var/lib/maitred && "
        f'exec chroot --userspec={USER}:{USER} {root} env -i {" ".join(env)} "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh", *words]


def _start(root: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(_command(root, ["maitred", *arguments], ""))


def _inside(root: Path, *words: str, url: str = "") -> None:
    print("+", *words, file=sys.stderr, flush=True)
    subprocess.run(_command(root, words, url), check=True)


def main() -> None:
    """Build and check."""
    parser = argparse.ArgumentParser(description="Build the image, and look whether it serves.")
    parser.add_argument("--base", help="an image with python3; default: one made by --debootstrap")
    parser.add_argument("--debootstrap", metavar="SUITE", default="bookworm", help="of which Debian; default: bookworm")
    parser.add_argument("--root", type=Path, help="a root that debootstrap has made before")
    parser.add_argument("--chroot", action="store_true", help="run the steps in a chroot, without buildah")
    parser.add_argument("--opt-level", type=int, default=3, help="MYPYC_OPT_LEVEL of the build; default: 3")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="maitred-container-") as name:
        folder = Path(name)
        base = given.base
        if base is None:
            root = given.root or make_base(given.debootstrap, folder / "base")
            if given.chroot:
                check(build_in_chroot(root, folder))
                return
            base = "localhost/maitred-base"
            made = run("buildah", "from", "scratch", capture_output=True).stdout.strip()
            run("buildah", "add", "--quiet", made, root, "/")
            run("buildah", "commit", "--quiet", made, base)
        check(build(base, given.opt_level))


if __name__ == "__main__":
    main()
