"""The table of who sees what of the gateway's pages, from the table by which the gateway decides."""

from __future__ import annotations

from maitred.gateway.access.page_access import ROWS, Page, Port

HEADING = ["page", "operator", "key of a tenant", "no key", "anyone, while there are no keys"]
_NAMES = {"without admin_port": Port.ONLY, "on port, beside admin_port": Port.CLIENTS, "on admin_port": Port.ADMIN}


def access_table(port: str) -> list[list[str]]:
    """Return the rows of the table for a port, the heading first. Raises KeyError for a port that there is not."""
    rows = ROWS[_NAMES[port]]
    return [HEADING, *([page.value, *(shown.value for shown in rows[page])] for page in Page)]
