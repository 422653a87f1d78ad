"""The documentation as a site: `make site` builds it of docs/ into build/site, with Zensical (`pip install zensical`).

    python tools/site.py [--out build/site]

What differs from docs/ as they are read in a repository: README.md is no page; CHANGELOG.md, SECURITY.md and CONTRIBUTING.md
are; links to sources become their text; and there is a navigation (`NAVIGATION`). A page that it does not name is appended to
Reference, so that a new one needs no line here. The build is strict: a link that leads nowhere ends it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FROM_ROOT = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the root, and the pages that they are."""
LEFT_OUT = {"where.md"}
"""Pages for who has the sources before them."""
NAVIGATION: dict[str, Any] = {
    "Home": "index.md",
    "Start": {"Quick start": "quick-start.md", "Concepts": "concepts.md"},
    "How to": {
        "Before vLLM": "howto/vllm.md",
        "Before SGLang": "howto/sglang.md",
        "Before TensorRT-LLM": "howto/tensorrt-llm.md",
        "From SMG": "howto/from-smg.md",
        "From LiteLLM": "howto/from-litellm.md",
        "From ThunderAgent": "howto/from-thunderagent.md",
        "From llm-d's picker": "howto/from-llm-d.md",
        "On one machine": "deploy.md",
        "On Kubernetes": "kubernetes.md",
        "Envoy in front": "envoy.md",
        "Inside vLLM": "vllm.md",
    },
    "Operations": {
        "Sizing": "sizing.md",
        "The gateway": "gateway.md",
        "Access": "access.md",
        "Backends": "backends.md",
        "Operating it": "operations.md",
        "The dashboard": "dashboard.md",
        "A shadow": "shadow.md",
        "Tuning": "tune.md",
        "Discovery of backends": "discovery.md",
        "Several gateways": "cluster.md",
        "Upgrades": "upgrade.md",
        "Security": "security.md",
        "Releases": "release.md",
        "Changelog": "changelog.md",
        "Runbook": {"All alerts": "runbook/index.md"},
    },
    "Simulator": {
        **{name: f"{name.lower()}.md" for name in ("Simulate", "Workloads", "Latency", "Fleets", "Studies", "Planning")},
        **{name: f"{name.lower()}.md" for name in ("Bench", "Accuracy", "Evidence", "Performance")},
    },
    "Reference": {
        "Configuration": "config.md",
        "The decision log as truth": "truth.md",
        **{name: f"{name.lower()}.md" for name in ("Admission", "Programs", "Routing", "Policies", "Batching", "Plugins")},
    },
    "Inside": {
        "Architecture": "architecture.md",
        "Decisions": "decisions.md",
        "The world of the tests": "world.md",
        "Contributing": "contributing.md",
    },
}
"""The pages, by the names of their sections."""
CONFIG: dict[str, Any] = {
    "site_name": "maitred",
    "site_description": "One scheduling stack for LLM serving",
    "use_directory_urls": True,
    "theme": {
        "font": False,  # No page asks another host for anything.
        "palette": [
            {
                "media": f"(prefers-color-scheme: {seen})",  # Until the reader says otherwise.
                "scheme": scheme,
                "primary": "teal",
                "toggle": {"icon": f"lucide/{icon}", "name": other},
            }
            for seen, scheme, icon, other in (("light", "default", "moon", "Dark"), ("dark", "slate", "sun", "Light"))
        ],
        "features": ["navigation.tabs", "navigation.sections", "navigation.top", "content.code.copy", "search.highlight"],
        "icon": {"logo": "lucide/concierge-bell"},
    },
    "markdown_extensions": [
        *("admonition", "attr_list", "md_in_html", "tables", "pymdownx.highlight", "pymdownx.superfences"),
        {"toc": {"permalink": True}},
    ],
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


class SiteError(Exception):
    """A link leads nowhere, or the site cannot be built."""


def pages() -> dict[str, Path]:
    """Return the file of each page, by its path on the site."""
    own = {str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))}
    found = {page: path for page, path in own.items() if page not in LEFT_OUT}
    return found | {page: ROOT / name for name, page in FROM_ROOT.items()}


def page_text(page: str, path: Path) -> str:
    """Return a page with links as the site has them. Raises SiteError for one that leads nowhere."""
    by_file = {file.resolve(): name for name, file in pages().items()}

    def lead(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        if image or not target or re.match(r"[a-z]+:", target):
            return match[0]
        goal = (path.parent / target).resolve()
        if goal in by_file:
            if text.endswith(".md"):  # The name of a file says something to who reads files.
                text = _title(by_file[goal])
            return f"[{text}]({'../' * page.count('/')}{by_file[goal]}{anchor or ''})"
        if not goal.exists():
            raise SiteError(f"{path}: nothing is at {target}")
        return text

    markdown, found, end = path.read_text(encoding="utf-8"), list[str](), 0
    for code in _CODE.finditer(markdown):  # in which brackets are no links
        found += [_LINK.sub(lead, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*found, _LINK.sub(lead, markdown[end:])])


def navigation() -> list[Any]:
    """Return the navigation, with pages that it does not name appended."""
    named = set(_leaves(NAVIGATION))
    rest = [page for page in pages() if page not in named]
    sections = {name: dict(part) if isinstance(part, dict) else part for name, part in NAVIGATION.items()}
    alerts = {_title(page): page for page in rest if page.startswith("runbook/")}
    sections["Operations"]["Runbook"] = sections["Operations"]["Runbook"] | alerts
    sections["Reference"] |= {_title(page): page for page in rest if not page.startswith("runbook/")}
    return _as_lists(sections)  # type: ignore[return-value]


def _title(page: str) -> str:
    return pages()[page].read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").strip()


def _leaves(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for each in part.values():
            yield from _leaves(each)
    else:
        yield str(part)


def _as_lists(part: object) -> object:
    return [{name: _as_lists(each)} for name, each in part.items()] if isinstance(part, dict) else part


def write_sources(folder: Path) -> Path:
    """Write what Zensical reads, and return the file of its configuration. Raises SiteError."""
    shutil.rmtree(folder, ignore_errors=True)
    for page, path in pages().items():
        (folder / "docs" / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / "docs" / page).write_text(page_text(page, path), encoding="utf-8")
    shutil.copytree(DOCS / "images", folder / "docs" / "images")
    config = folder / "mkdocs.yml"  # Zensical reads the format of MkDocs, whose successor it is.
    config.write_text(yaml.safe_dump({**CONFIG, "site_dir": "site", "nav": navigation()}, sort_keys=False), encoding="utf-8")
    return config


def main() -> int:
    """Build the site, and return the status."""
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="where to; default: build/site")
    parser.add_argument("--sources", type=Path, default=ROOT / "build" / "site_sources", help="where what is read is written")
    given = parser.parse_args()
    try:
        config = write_sources(given.sources.resolve())
    except SiteError as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "-f", str(config)], check=False)
    if done.returncode == 0:
        shutil.rmtree(given.out, ignore_errors=True)
        shutil.copytree(config.parent / "site", given.out)  # Zensical writes below its configuration alone.
        print(f"{sum(1 for _ in given.out.rglob('*.html'))} pages in {given.out}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
