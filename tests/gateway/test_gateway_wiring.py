"""Parts of the gateway and of the scheduler are given finished parts, and nothing of an object whose parts are being made."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from maitred.gateway.app import Gateway
from maitred.scheduler.interface import LocalScheduler

WIRED = {Gateway: ("__init__", "_wire_requests", "_wire_pages"), LocalScheduler: ("__init__",)}
"""The methods that make parts, and give them to each other."""


def callbacks(source: str, methods: frozenset[str]) -> list[str]:
    """Return what `source` gives away of its `self`: `self`, a method of it that is not called, a function that looks at it."""
    tree = ast.parse(textwrap.dedent(source))
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    owned = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and any(isinstance(n, ast.Name) and n.id == "self" for n in ast.walk(node)):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Name) and node.id == "self" and id(node) not in owned:
            found.append("self")
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self" and id(node) not in called:
            found += [ast.unparse(node)] if node.attr in methods else []
    return found


def methods_of(owner: type) -> frozenset[str]:
    return frozenset(name for name, value in vars(owner).items() if inspect.isfunction(value))


@pytest.mark.parametrize("owner", WIRED)
def test_no_part_calls_back_into_what_is_being_made(owner: type) -> None:
    sources = [inspect.getsource(inspect.unwrap(getattr(owner, name))) for name in WIRED[owner]]
    assert [callbacks(source, methods_of(owner)) for source in sources] == [[]] * len(sources)


def test_a_callback_into_what_is_being_made_is_noticed() -> None:
    source = """
    def __init__(self):
        self.page = Page(self.take, lambda: self.state, partial(show, self), self.name)
        self.draw()
    """
    assert sorted(callbacks(source, frozenset({"take", "draw"}))) == ["lambda: self.state", "self", "self.take"]
