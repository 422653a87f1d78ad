"""The site: every page is in its navigation, every link leads to a page, and what is written about releases has one number.

`make check` builds it as well, with Zensical, which finds anchors that are not there."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import typer
import yaml
from click.testing import CliRunner

from maitred.cli.app import app

ROOT = Path(__file__).parents[2]


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SITE, RELEASE = _tool("site"), _tool("release")


def leaves(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in nav for page in leaves([*part.values()] if isinstance(part, dict) else part)]  # type: ignore[attr-defined]


def test_each_page_is_in_the_navigation_once_and_each_link_leads_to_a_page(tmp_path: Path) -> None:
    config = yaml.safe_load(SITE.write_sources(tmp_path / "site").read_text())
    written = {str(path.relative_to(tmp_path / "site" / "docs")) for path in (tmp_path / "site" / "docs").rglob("*.md")}
    named = leaves(config["nav"])
    assert sorted(named) == sorted(written)
    for page in written:
        path = tmp_path / "site" / "docs" / page
        text = SITE._CODE.sub("", path.read_text())
        for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)", text):
            assert "://" in target or (path.parent / target).resolve().is_file(), f"{page}: {target}"
        for image in re.findall(r"!\[[^\]]*\]\(([^)\s]+)", text):
            assert (path.parent / image).is_file(), f"{page}: {image}"


def test_a_page_that_the_navigation_does_not_name_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new = tmp_path / "novelty.md"
    new.write_text("# A novelty\n")
    before = SITE.pages()
    monkeypatch.setattr(SITE, "pages", lambda: before | {"novelty.md": new})
    (reference,) = [part["Reference"] for part in SITE.navigation() if "Reference" in part]
    assert reference[-1] == {"A novelty": "novelty.md"}


def test_a_link_to_nothing_is_told(tmp_path: Path) -> None:
    page = tmp_path / "index.md"
    page.write_text("# Home\n\n`[code](is.no-link)` and [gone](gone.md)\n")
    with pytest.raises(SITE.SiteError, match=r"nothing is at gone\.md"):
        SITE.page_text("index.md", page)


def test_a_link_that_reads_as_a_file_has_the_title_of_its_page() -> None:
    written = SITE.page_text("envoy.md", ROOT / "docs" / "envoy.md")
    assert "[One scheduler, many gateways](cluster.md)" in written
    assert not re.search(r"\[[^\]]*\.md\]\(", SITE._CODE.sub("", written))


def test_a_release_has_one_number() -> None:
    number = RELEASE.version(None)
    assert RELEASE.version(f"v{number}") == number
    with pytest.raises(RELEASE.ReleaseError, match=r"one number is needed: .* the tag has 99\.0"):
        RELEASE.version("v99.0")


def test_the_trial_of_a_compiled_wheel_is_a_command_that_runs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    trial = project["tool"]["cibuildwheel"]["test-command"].split(" && ")
    assert trial[0] == "maitred --version | grep -F '(compiled)'"
    (program, *arguments), *others = [shlex.split(command) for command in trial[1:]]
    assert (program, others) == ("maitred", [])
    result = CliRunner().invoke(typer.main.get_command(app), arguments)
    assert (result.exit_code, result.exception) == (0, None)
