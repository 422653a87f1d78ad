"""Recorded requests as a workload: the same arrivals, prompts and answers, whoever serves them.

    arrival            as it came, or its think time after the answers that it follows (`recorded`), however these end
    class              what the client asked for, as far as the rules let its tenant (and its key then did)
    answer             as long as it was; of a request that did not complete, drawn from the completed ones of its tenant and
                       class (or else its class, or all), at most the client's limit
    a client that left leaves after the same time, unless its answer is complete by then

The draws of a seed are the same under all rules. A client that was refused and came again has come by itself: its next request
is another one, and comes whether or not the first is refused now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from msgspec.structs import replace

from maitred.admission import AdmissionConfig
from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros
from maitred.study.what_if.recorded import RecordedRequest
from maitred.workload import Job
from maitred.workload.formats.maitred import PromptContents


class RecordedTraffic:
    """The jobs of recorded requests, made once."""

    def __init__(self, requests: Sequence[RecordedRequest], in_force: AdmissionConfig, *, with_contents: bool) -> None:
        """`in_force` are the rules of the record. `with_contents`: programs' prompts share what they continue."""
        self.requests = requests
        self._caps = {tenant: in_force.class_cap(tenant) for tenant in {each.tenant for each in requests}}
        contents = PromptContents() if with_contents else None
        self._jobs = [_job(index, each, contents) for index, each in enumerate(requests)]
        self._unknown = [index for index, each in enumerate(requests) if not each.is_complete]
        self._answers: dict[tuple[str, int] | int | None, list[int]] = {}
        for each in requests:
            if each.is_complete and each.output_tokens is not None:
                for key in ((each.tenant, each.given), each.given, None):
                    self._answers.setdefault(key, []).append(each.output_tokens)

    def workload(self, admission: AdmissionConfig, seed: int) -> RecordedClients:
        """Return the workload under these rules of admission, to be read once."""
        jobs = list(self._jobs)
        draw = Random(f"{seed}/answers").random
        for index in self._unknown:
            jobs[index] = replace(jobs[index], output_tokens=self._drawn_answer(self.requests[index], draw()))
        caps = {tenant: admission.class_cap(tenant) for tenant in self._caps} if admission.uses_classes else {}
        for index, each in enumerate(self.requests):
            found = self._class_of(each, caps)
            if found is not jobs[index].request.priority_class:
                jobs[index] = replace(jobs[index], request=replace(jobs[index].request, priority_class=found))
        return RecordedClients(jobs, self.requests)

    def _drawn_answer(self, request: RecordedRequest, share: float) -> int:
        known = next(
            (found for key in ((request.tenant, request.given), request.given, None) if (found := self._answers.get(key))), [1]
        )
        answer = known[int(share * len(known))]
        return answer if request.max_output_tokens is None else max(1, min(answer, request.max_output_tokens))

    def _class_of(self, request: RecordedRequest, caps: dict[str, PriorityClass]) -> PriorityClass:
        if not caps:
            return PriorityClass(request.given)
        highest = caps[request.tenant]
        # What its rules do not explain was the cap of a key, and holds under other rules as well.
        if request.given < min(request.asked, self._caps[request.tenant]):
            highest = min(highest, PriorityClass(request.given))
        return min(PriorityClass(request.asked), highest)


def _job(index: int, each: RecordedRequest, contents: PromptContents | None) -> Job:
    prefix = conversation = None
    if contents is not None:
        answer = each.output_tokens or 1
        prefix, conversation = contents.continued(each.prompt_tokens, answer, each.program, each.parent_program, each.continues)
    request = Request(
        id=index,
        arrival=each.arrival,
        prompt_tokens=each.prompt_tokens,
        max_output_tokens=each.max_output_tokens,
        model=each.model,
        priority_class=PriorityClass(each.given),
        tenant=each.tenant,
        program=each.program,
        parent_program=each.parent_program,
        stream=each.stream,
        deadline=each.arrival + each.e2e if each.client_left else None,
        prefix=prefix,
    )
    return Job(request, each.output_tokens or 1, conversation, each.think if each.follows else None)


class RecordedClients:
    """A `ReactiveWorkload`, read once."""

    def __init__(self, jobs: Sequence[Job], requests: Sequence[RecordedRequest]) -> None:
        self._jobs, self._requests = jobs, requests
        self._num_awaited = {index: len(each.follows) for index, each in enumerate(requests) if each.follows}
        self._followers: dict[int, list[int]] = {}
        for index in self._num_awaited:
            for cause in requests[index].follows:
                self._followers.setdefault(cause, []).append(index)
        self._num_left = Counter(each.program for each in requests if each.program)

    def __iter__(self) -> Iterator[Job]:
        return (job for index, job in enumerate(self._jobs) if index not in self._num_awaited)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        self._num_left[request.program] -= 1
        return [job for index in self._followers.get(request.id, ()) if (job := self._released(index, now)) is not None]

    def _released(self, index: int, now: Micros) -> Job | None:
        """Return the job of a request of which one more awaited answer has ended, or None if others are awaited."""
        self._num_awaited[index] -= 1
        if self._num_awaited[index]:
            return None
        job, recorded = self._jobs[index], self._requests[index]
        arrival = now + recorded.think
        deadline = arrival + recorded.e2e if recorded.client_left else None
        return replace(job, request=replace(job.request, arrival=arrival, deadline=deadline))

    def is_program_over(self, program: str) -> bool:
        """Return whether no request of a program comes any more."""
        return self._num_left[program] <= 0
