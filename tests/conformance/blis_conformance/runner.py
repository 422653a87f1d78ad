"""Cases of BLIS: what each says is simulated by `maitred.simulate`, and every request must come out to the microsecond."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from maitred import Job, Outcome, Results, open_trace, simulate
from maitred.core.decisions import DecisionLog
from maitred.core.units import Micros, to_seconds

from .case import Case, Named, Request, Said
from .recorded import breaking_ties


class CasesError(Exception):
    """It cannot be read as recorded cases."""


def load(path: Path) -> list[Case]:
    """The cases of a JSONL file, gzipped or not. Raises CasesError."""
    try:
        return [_read(line) for _, line in _lines(path)]
    except msgspec.DecodeError as error:
        raise CasesError(f"{path}: {error}") from error


def _lines(path: Path) -> list[tuple[str, bytes]]:
    """Each case as it stands there, with its name."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            lines = [line for line in file if line.strip()]
    except OSError as error:
        raise CasesError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return [(msgspec.json.decode(line, type=Named).name, line) for line in lines]
    except msgspec.DecodeError as error:
        raise CasesError(f"{path}: {error}") from error


def _read(line: bytes) -> Case:
    return msgspec.json.decode(line, type=Case, strict=False)


def run_case(case: Case, traces: Path, *, step_by_step: bool = False) -> list[str]:
    """What came out differently, one line each."""
    said = case.config
    instance = msgspec.structs.replace(said.instance(), step_by_step=step_by_step)
    waits = Waits()
    with breaking_ties(said.routing.policy, case.expected.routed_to) as policy:
        results = simulate(
            _jobs(traces / f"{case.trace}.csv.gz", said),
            said.cluster(),
            instance,
            said.router(policy),
            said.admitting(),
            horizon_secs=None if said.horizon_us is None else to_seconds(said.horizon_us),
            log=None if said.flow_control is None else DecisionLog(waits.read),
        ).rows
    return list(_differences(case, results, waits, _names(traces / f"{case.trace}.csv.gz")))


class Waits:
    """How long requests waited at the gate of flow control, by our ids, as the decision log has it."""

    def __init__(self) -> None:
        self._since: dict[int, Micros] = {}
        self.of: dict[int, Micros] = {}

    def read(self, line: bytes) -> None:
        entry = msgspec.json.decode(line)
        if entry["room"] != "admission":
            return
        decision = entry.get("decision")
        if entry.get("input") == "submit":
            self._since[entry["id"]] = entry["at"]
        elif decision is not None and decision["action"] == "admit":
            self.of[decision["subject"]] = decision["at"] - self._since[decision["subject"]]


def _jobs(path: Path, said: Said) -> Iterator[Job]:
    """BLIS breaks ties of arrival by the text of ids (`request_10` before `request_2`), so ours are their ranks."""
    rank = {name: number for number, name in enumerate(_names(path))}
    for job in open_trace(f"blis:{path}"):
        request = msgspec.structs.replace(job.request, id=rank[job.request.id], client_id=str(job.request.id))
        yield Job(request, job.output_tokens)


def _names(path: Path) -> Sequence[int]:
    """The recorded id of each of our ids."""
    return sorted((job.request.id for job in open_trace(f"blis:{path}")), key=lambda number: f"request_{number}")


def _differences(case: Case, results: Results, waits: Waits, names: Sequence[int]) -> Iterator[str]:
    expected = case.expected
    several = case.config.num_instances > 1
    got = {request.id: request for request in _completed(results, waits, names, case)}
    for wanted in expected.requests:
        request = got.pop(wanted.id, None)
        if request is None:
            yield f"request {wanted.id} was not completed"
        elif request != wanted:
            changed = [
                f"{field} {was} instead of {is_}"
                for field, is_, was in zip(
                    Request.__struct_fields__, msgspec.structs.astuple(wanted), msgspec.structs.astuple(request), strict=True
                )
                if is_ != was
            ]
            yield f"request {wanted.id}: {', '.join(changed)}"
    for number in got:
        yield f"request {number} was completed"
    if several:
        yield from _elsewhere(expected.routed_to, results, names)
    if expected.rejected is not None:
        rejected = [names[number] for number in results.request_id[results.outcome == Outcome.REJECTED]]
        wanted_ids = expected.rejected
        if (len(rejected) if isinstance(wanted_ids, int) else sorted(rejected)) != (
            wanted_ids if isinstance(wanted_ids, int) else sorted(wanted_ids)
        ):
            yield f"{len(rejected)} were rejected, not {wanted_ids}"
    if expected.aggregates and int(results.preemptions.sum()) != expected.aggregates["preemption_count"]:
        yield f"{results.preemptions.sum()} preemptions instead of {expected.aggregates['preemption_count']}"


def _completed(results: Results, waits: Waits, names: Sequence[int], case: Case) -> Iterator[Request]:
    several, newest = case.config.num_instances > 1, case.era == "newest"
    for row in np.flatnonzero(results.outcome == Outcome.COMPLETED):
        arrival = int(results.arrival[row])
        yield Request(
            id=names[int(results.request_id[row])],
            ttft_us=int(results.first_token[row]) - arrival,
            e2e_us=int(results.finished[row]) - arrival,
            input_tokens=int(results.prompt_tokens[row]),
            output_tokens=int(results.output_tokens[row]),
            instance=int(results.instance[row]) if several else None,
            scheduling_delay_us=int(results.scheduled[row]) - arrival if newest else None,
            gateway_queue_delay_us=waits.of.get(int(results.request_id[row])) or None,
        )


def _elsewhere(routed_to: dict[int, int], results: Results, names: Sequence[int]) -> Iterator[str]:
    went = {names[int(number)]: int(to) for number, to in zip(results.request_id, results.instance, strict=True) if to >= 0}
    for number, to in routed_to.items():
        if went.get(number) != to:
            yield f"request {number} went to {went.get(number)} instead of {to}"


def report(paths: Iterable[Path], say: Callable[[str], None]) -> int:
    """Plays all cases of `paths`, whose traces lie in `traces/` beside them. Returns the exit status. Raises CasesError."""
    passed = failed = 0
    for path in paths:
        for name, line in _lines(path):
            failures = _played(line, path.parent / "traces")
            passed, failed = passed + (not failures), failed + bool(failures)
            if failures:
                say(f"{name}: FAILED")
                say("\n".join(f"    {failure}" for failure in failures[:5]))
    say(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


def _played(line: bytes, traces: Path) -> list[str]:
    try:
        return run_case(_read(line), traces)
    except Exception as error:  # a defect in what is checked is a failure of this case, and the others are still to be played
        return [f"{type(error).__name__}: {error}"]
