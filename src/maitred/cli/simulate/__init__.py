"""`maitred simulate`, in parts: `flags` (and what each heading of the help has), what they amount to (`config`, `workload`,
`objective`, `outputs`), and the command itself."""

from __future__ import annotations

from maitred.cli.simulate.command import run

__all__ = ["run"]
