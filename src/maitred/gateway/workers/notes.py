"""What workers and their parent say to each other past the scheduler's link: notes (`scheduler.link.messages.Note`) by kind.

from the parent    RULES     the rules of admission in force
                   RELOAD    the file of the settings has been written anew
                   COUNTS    what have you counted? (answered by COUNTS)
                   PAGE      an answer
                   RECORD    it has a row of the recording
                   SERVING   the names of the workers that serve (`stand_in`)
from a worker      READY     it serves; with `--scheduler` it says by which boot its scheduler knows it
                   CLOSED    it accepts no more connections, and lets its requests end
                   RELOAD    it uses these settings, or has said why not
                   COUNTS    what it has counted; every second, and when it is asked
                   PAGE      a question: a request for a page, and who sees it
                   RECORD    a row of the recording (`recorded`)
to a scheduler     DIED      name and boot of a gateway whose process has ended, from its parent
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from maitred.admission import AdmissionConfig
from maitred.gateway.access.page_access import Shown


class NoteKind(StrEnum):
    RULES = "rules"
    RELOAD = "reload"
    COUNTS = "counts"
    PAGE = "page"
    READY = "ready"
    CLOSED = "closed"
    RECORD = "record"
    SERVING = "serving"
    DIED = "died"


class AdmissionRules(msgspec.Struct, frozen=True):
    """The rules of admission."""

    admission: AdmissionConfig
    fallback: str | None
    """Why less is in force than is configured, or None."""


class PageQuestion(msgspec.Struct, frozen=True):
    """A request for a page, from a sender who may have it."""

    method: str
    path: str
    body: bytes
    tenant: str
    shown: Shown
    """What the sender gets of it."""
    accept: bytes | None = None
    """The `Accept` header of the sender."""


class PageAnswer(msgspec.Struct, frozen=True):
    """The answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    code: str
    """The code of the error, or ""."""
