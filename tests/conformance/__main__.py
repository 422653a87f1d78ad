"""Play what was recorded from a system that maitred follows against maitred itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from .blis_conformance import runner as blis
from .sglang_conformance import runner as sglang
from .sglang_radix import run_case as radix_trace
from .smg_conformance.runner import FileProblem, Result, chosen, load
from .smg_conformance.runner import run as run_smg
from .thunderagent_conformance.runner import run as run_thunderagent
from .trtllm_conformance import runner as trtllm
from .vllm_conformance import runner as vllm


class System(StrEnum):
    SMG = "smg"
    SGLANG = "sglang"
    BLIS = "blis"
    THUNDERAGENT = "thunderagent"
    TRTLLM = "trtllm"
    VLLM = "vllm"


def main(
    system: Annotated[System, typer.Argument(help="Whose scenarios they are.")],
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="The scenarios, as JSON; JSONL, also gzipped, of sglang and blis.")
    ],
    only: Annotated[str, typer.Option("--only", metavar="IDS", help="These, with commas between them.")] = "",
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Play so many at once.")] = 1,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say what happened, too.", metavar="")] = 0,
) -> None:
    """Play what was recorded from a system that maitred follows against maitred itself.

    Ends with `N passed, M failed`, and with status 1 if any failed.
    """
    try:
        if system is System.SGLANG:
            checks = {**sglang.CHECKS, "radix_trace": lambda case: radix_trace(msgspec.json.decode(case))}
            raise typer.Exit(sglang.report(paths, typer.echo, checks))
        if system is System.BLIS:
            raise typer.Exit(blis.report(paths, typer.echo))
        if system is System.TRTLLM:
            raise typer.Exit(trtllm.report(paths, typer.echo))
        if system is System.VLLM:
            raise typer.Exit(vllm.report(paths, typer.echo))
        names = [name for name in only.split(",") if name]
        files = [load(path, names) for path in paths]
    except (FileProblem, sglang.CasesError, blis.CasesError, trtllm.CasesError, vllm.CasesError) as problem:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(2) from problem

    async def report() -> list[bool]:
        passed = []
        for file in files:
            scenarios = chosen(file, names)
            async for result in run_smg(scenarios, file, jobs) if system is System.SMG else run_thunderagent(scenarios, jobs):
                typer.echo("\n".join(_lines(result, verbose)))
                passed.append(result.passed)
        return passed

    outcomes = asyncio.run(report())
    typer.echo(f"{sum(outcomes)} passed, {len(outcomes) - sum(outcomes)} failed")
    raise typer.Exit(0 if outcomes and all(outcomes) else 1)


def _lines(result: Result, verbosity: int) -> Iterator[str]:
    outcome = "passed" if result.passed else "FAILED"
    yield f"{result.id:4} {outcome}  {result.kind:6} {result.secs:5.1f} s  {result.title}"
    if result.note:
        yield f"       note: {result.note}"
    yield from (f"       {failure}" for failure in result.failures)
    if verbosity:
        yield from (f"         {line}" for line in result.details)


if __name__ == "__main__":
    typer.run(main)
