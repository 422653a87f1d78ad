"""Random inputs: after each, the core's books balance, and the decisions say where every request is."""

import random

import pytest

from maitred.core.request import PriorityClass
from maitred.core.units import SECOND
from maitred.programs import BackendStatus, ProgramAction, ProgramRequest, Programs, ProgramsConfig, Usage

TENANTS = "ab"
NAMES = "pqrstu"


class Driver:
    """A driver with random intentions, and what it knows of its requests from decisions alone."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        config = ProgramsConfig(
            mode=rng.choice(["tr", "tr", "tr", "default"]),
            flavour=rng.choice(["ours", "thunderagent"]),
            acting_estimator=rng.choice(["fixed", "fixed(weight=0.5)", "decay", "learned"]),
            max_wait_secs=rng.choice([5, 1800]),
            program_ttl_secs=rng.choice([20, 3600]),
            max_programs_per_tenant=rng.choice([3, 1000]),
            max_waiting=rng.choice([3, 1000]),
        )
        self.core = Programs(config)
        self.now = 0
        self.waiting, self.under_way = set(), set()
        self.num_requests = 0
        for index in range(3):
            capacity = rng.choice([5000, 10_000, None])
            self.note(self.core.set_backend(index, 0, models=["m"], capacity=capacity))

    def note(self, decisions):
        for decision in decisions:
            if decision.request is None:
                continue
            self.waiting.discard(decision.request)
            self.under_way.discard(decision.request)
            if decision.action is ProgramAction.GRANT:
                self.under_way.add(decision.request)
            elif decision.action is ProgramAction.WAIT:
                self.waiting.add(decision.request)
        self.core.check()

    def begin(self):
        rng = self.rng
        self.num_requests += 1
        request = ProgramRequest(
            id=self.num_requests,
            model="m",
            tenant=rng.choice(TENANTS),
            program=rng.choice(["", *NAMES]),
            parent=rng.choice(["", *NAMES]),
            priority_class=PriorityClass(rng.randrange(4)),
            characters=rng.randrange(1, 30_000),
        )
        decisions = self.core.begin(request, self.now)
        assert [d for d in decisions if d.request == request.id], "each request is answered at once"
        self.note(decisions)

    def end(self):
        if known := sorted(self.waiting | self.under_way):
            request = self.rng.choice(known)
            self.waiting.discard(request)
            self.under_way.discard(request)
            usage = Usage(self.rng.randrange(1, 4000), self.rng.randrange(1, 6000), self.rng.choice([None, 500]))
            self.note(self.core.end(request, self.rng.choice([None, usage]), self.now))

    def progress(self):
        if self.under_way:
            self.core.progress(self.rng.choice(sorted(self.under_way)), 20, self.now)

    def move(self):
        if self.under_way:
            self.note(self.core.move(self.rng.choice(sorted(self.under_way)), self.now))

    def release(self):
        self.note(self.core.release(self.rng.choice(TENANTS), self.rng.choice(NAMES), self.now)[1])

    def change_backend(self):
        rng = self.rng
        status = rng.choice(list(BackendStatus))
        capacity, shared = rng.choice([None, 3000, 10_000]), rng.choice([0, 0, 500])
        index = rng.randrange(3)
        self.note(self.core.set_backend(index, self.now, models=["m"], status=status, capacity=capacity, shared_tokens=shared))

    def advance(self):
        self.note(self.core.advance(self.now))


@pytest.mark.parametrize("seed", range(60))
def test_the_books_balance_and_decisions_say_where_every_request_is(seed):
    driver = Driver(seed)
    inputs = [driver.begin, driver.end, driver.progress, driver.move, driver.release, driver.change_backend, driver.advance]
    for _ in range(150):
        driver.now += driver.rng.choice([0, 1000, 200_000, SECOND, 7 * SECOND])
        driver.rng.choices(inputs, weights=[8, 7, 1, 1, 1, 1, 1])[0]()
        driver.core.check()
        known = [request for program in driver.core.programs for request in program.waiting]
        assert set(known) == driver.waiting
