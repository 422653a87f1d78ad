"""The headers by which agents say which session a request belongs to, and which one has forked it: one table.

Each agent has its own names. Each row of `CONVENTIONS` says those of one; the first row of which a request has the session
counts. The session is the agent program of the request, and the session of a router with affinity (`SessionReader`).

    x-dynamo-session-id: D      x-dynamo-parent-session-id: P                              D, a child of P
    x-claude-code-session-id: S                                                            S, the main agent
    x-claude-code-session-id: S x-claude-code-agent-id: A                                  S/A, a child of S
    x-claude-code-session-id: S x-claude-code-agent-id: A x-claude-code-parent-agent-id: B S/A, a child of S/B
    x-session-id: S             x-parent-session-id: P                                     S, a child of P

A sub-agent is a program of its own, because its context is another one: under the id of its session it would pass for the next
request of the main agent. `programs.session_headers` replaces the table: the values of the headers that it names are ids as
they stand, and nothing is known of parents.

The last request of a session says so in a header of Dynamo, whichever agent has named the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from maitred.wire.messages import Headers


class HeaderConvention(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The headers of one agent. An empty name is one that the agent does not have."""

    session: bytes
    """Names the session: that of an agent with its sub-agents, if there is a header `agent`."""
    parent_session: bytes = b""
    """Names the session that has forked this one."""
    agent: bytes = b""
    """Names one agent of the session. Absent, or the main one: its main agent."""
    parent_agent: bytes = b""
    """Names the agent of the session that has forked this one. Absent: its main agent."""

    def read(self, named: Mapping[bytes, str]) -> AgentSession:
        """Return the session of a request with the headers `named`, none of them empty."""
        session = named[self.session]
        agent = self._agent_in(session, named.get(self.agent, ""))
        if agent:
            forked_by = self._agent_in(session, named.get(self.parent_agent, ""))
            parent = f"{session}/{forked_by}" if forked_by and forked_by != agent else session
            return AgentSession(self.session, f"{session}/{agent}", parent)
        parent = named.get(self.parent_session, "")
        return AgentSession(self.session, session, "" if parent == session else parent)

    @staticmethod
    def _agent_in(session: str, agent: str) -> str:
        """Return the id of an agent, empty for the main one of its session."""
        return "" if agent in (session, _MAIN_AGENT) else agent


_MAIN_AGENT: Final = "main"
CONVENTIONS: Final[tuple[HeaderConvention, ...]] = (
    # Dynamo's own headers stand for those of the agent behind them, so they come first; the general names come last.
    HeaderConvention(session=b"x-dynamo-session-id", parent_session=b"x-dynamo-parent-session-id"),
    HeaderConvention(
        session=b"x-claude-code-session-id", agent=b"x-claude-code-agent-id", parent_agent=b"x-claude-code-parent-agent-id"
    ),
    HeaderConvention(session=b"x-session-id", parent_session=b"x-parent-session-id"),  # OpenCode; vLLM has the first one
    HeaderConvention(session=b"session-id"),  # Codex, which has sent each of these three
    HeaderConvention(session=b"session_id"),
    HeaderConvention(session=b"conversation_id"),
)
FINAL_HEADERS: Final = frozenset((b"x-dynamo-session-final", b"x-dynamo-trajectory-final"))
"""Say that a request is the last one of its session."""
_TRUE: Final = frozenset(("true", "1"))


class AgentSession(msgspec.Struct, frozen=True, gc=False):
    """What the headers of a request say of its session."""

    header: bytes = b""
    """The header that names it."""
    program: str = ""
    """The id of the session, or of the agent in it; empty if none is named."""
    parent: str = ""
    """The id of the one that has forked it, or empty."""


NO_SESSION: Final = AgentSession()


class SessionReader:
    """Reads from the headers of requests which session they belong to."""

    def __init__(self, session_headers: Iterable[str] | None = None) -> None:
        """`session_headers` are the names to go by, first come first; None: `CONVENTIONS`."""
        self.reads_body = session_headers is None
        """Whether the session may also be `session_id` of the body, as vLLM has it."""
        self._conventions = CONVENTIONS
        if session_headers is not None:
            self._conventions = tuple(HeaderConvention(session=name.lower().encode()) for name in session_headers)
        self._names = frozenset(name for convention in self._conventions for name in msgspec.structs.astuple(convention))

    def read(self, headers: Headers) -> AgentSession:
        """Return the session that `headers` name, `NO_SESSION` if there is none. An empty header counts as none; of a repeated
        one the first counts."""
        named = {name: value for name, value in reversed(headers) if name in self._names and value and not value.isspace()}
        if named:
            texts = {name: value.decode("utf-8", "replace").strip() for name, value in named.items()}
            for convention in self._conventions:
                if convention.session in texts:
                    return convention.read(texts)
        return NO_SESSION


def is_last_request(headers: Headers) -> bool:
    """Return whether `headers` say that a request is the last one of its session."""
    return any(name in FINAL_HEADERS and value.decode("latin-1").strip().lower() in _TRUE for name, value in headers)
