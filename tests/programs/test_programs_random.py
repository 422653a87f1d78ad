"""Random inputs under load: the core decides as the naive one does, and its decisions say where every request is."""

import random

import msgspec
import pytest
from naive_programs_core import NaiveCore

from maitred.core.request import PriorityClass
from maitred.core.tapped_log import TappedLog
from maitred.core.units import MILLISECOND, SECOND
from maitred.programs import BackendStatus, ProgramAction, ProgramRequest, Programs, ProgramsConfig, Usage
from maitred.shadow.programs import ProgramsShadow

TENANTS = "aaab"
NAMES = "pqrstuvw"


class Driver:
    """A driver with random intentions, and what it knows of its requests from decisions alone."""

    def __init__(self, seed, log=None):
        self.rng = rng = random.Random(seed)
        config = ProgramsConfig(
            mode=rng.choice(["tr", "tr", "tr", "tr", "default"]),
            flavour=rng.choice(["ours", "ours", "thunderagent"]),
            acting_estimator=rng.choice(["fixed", "fixed(weight=0.5)", "fixed(weight=2.0)", "decay", "learned"]),
            min_stay_secs=rng.choice([0, 5]),
            patience_secs=rng.choice([1, 10]),
            displace_secs=rng.choice([1, 10, 60]),
            max_wait_secs=rng.choice([20, 1800, 1800]),
            program_ttl_secs=rng.choice([20, 3600, 3600]),
            max_programs_per_tenant=rng.choice([4, 1000, 1000]),
            max_programs=rng.choice([5, 1000, 1000]),
            max_waiting=rng.choice([3, 1000]),
        )
        self.core, self.naive = Programs(config, log=log), NaiveCore(config)
        self.now = 0
        self.waiting, self.under_way = set(), set()
        self.num_requests = 0
        for index in range(rng.choice([1, 2, 3])):
            self.both("set_backend", index, models=["m"], capacity=rng.choice([5000, 10_000, 10_000, None]))

    def both(self, verb, *arguments, **more):
        given = {"now": self.now, **more}
        decisions, naive = getattr(self.core, verb)(*arguments, **given), getattr(self.naive, verb)(*arguments, **given)
        if verb == "release":
            naive = naive[1]  # the model also says whether there was such a program
        if decisions is None:
            return
        assert [msgspec.structs.astuple(decision) for decision in decisions] == naive
        for decision in decisions:
            if decision.request is None:
                continue
            self.waiting.discard(decision.request)
            self.under_way.discard(decision.request)
            if decision.action is ProgramAction.GRANT:
                self.under_way.add(decision.request)
            elif decision.action is ProgramAction.WAIT:
                self.waiting.add(decision.request)

    def begin(self):
        rng = self.rng
        self.num_requests += 1
        request = ProgramRequest(
            id=self.num_requests,
            model="m",
            tenant=rng.choice(TENANTS),
            program=rng.choice(["", *NAMES]),
            parent=rng.choice(["", "", *NAMES]),
            priority_class=rng.choice([PriorityClass.DEFAULT, PriorityClass.DEFAULT, *PriorityClass]),
            prompt_tokens=rng.randrange(1, 6000),
        )
        self.both("begin", request)

    def end(self):
        rng = self.rng
        known = sorted(self.under_way) or sorted(self.waiting)
        if known:
            request = rng.choice(known)
            usage = Usage(rng.randrange(1, 4000), rng.randrange(1, 6000), rng.choice([None, 500]))
            self.close(request, rng.choice([None, usage, usage]))

    def leave(self):
        if self.waiting:
            self.close(self.rng.choice(sorted(self.waiting)), None)

    def close(self, request, usage):
        self.both("end", request, usage)
        # A tick that was due may have granted it just before.
        self.waiting.discard(request)
        self.under_way.discard(request)

    def progress(self):
        if self.under_way:
            self.both("progress", self.rng.choice(sorted(self.under_way)), 20)

    def move(self):
        if self.under_way:
            self.both("move", self.rng.choice(sorted(self.under_way)))

    def release(self):
        self.both("release", self.rng.choice(TENANTS), self.rng.choice(NAMES))
        self.under_way &= {request for program in self.core.programs for request in program.contexts}

    def change_backend(self):
        rng = self.rng
        status = rng.choice([BackendStatus.UP] * 5 + list(BackendStatus))
        capacity, shared = rng.choice([None, 3000, 10_000, 10_000]), rng.choice([0, 0, 500])
        index = rng.randrange(len(self.core.backends))
        self.both("set_backend", index, models=["m"], status=status, capacity=capacity, shared_tokens=shared)

    def advance(self):
        self.both("advance")

    def step(self):
        self.now += self.rng.choice([0, MILLISECOND, 200 * MILLISECOND, SECOND, 3 * SECOND])
        inputs = [self.begin, self.end, self.leave, self.progress, self.move, self.release, self.change_backend, self.advance]
        self.rng.choices(inputs, weights=[30, 30, 2, 2, 1, 1, 1, 4])[0]()
        self.core.check()


@pytest.mark.parametrize("seed", range(10))
def test_a_shadow_under_the_rules_in_force_never_disagrees_wherever_it_looks_away(seed):
    told, rng = [], random.Random(seed)
    log = TappedLog(None, told.append)
    driver = Driver(seed, log)
    shadow = ProgramsShadow(driver.core.config)
    for _ in range(200):
        driver.step()
        assert [found for each in told for found in shadow.take(each.given, list(each.decisions))] == []
        told.clear()
        if rng.random() < 0.2:
            log.tap(is_tapped=not log.is_tapped)
            if log.is_tapped:
                shadow.begin_from(driver.core, driver.now)
                shadow._core.check()
    assert shadow.num_compared > 20


@pytest.mark.parametrize("seed", range(25))
def test_the_books_balance_and_decisions_say_where_every_request_is(seed):
    driver = Driver(seed)
    for _ in range(200):
        driver.step()
        assert {request for program in driver.core.programs for request in program.waiting} == driver.waiting
        assert {request for program in driver.core.programs for request in program.contexts} == driver.under_way
        assert [b.used for b in driver.core.backends] == [driver.naive.used(m) for m in driver.naive.memories]


def test_programs_of_many_tenants_at_many_backends_are_copied():
    """A copy follows what each object keeps, as deep as Python calls: it must not go from one program to the next."""
    core = Programs(ProgramsConfig())
    for backend in range(64):
        core.set_backend(backend, 0, models=["m"], capacity=10**7)
    for number in range(1_000):
        request = ProgramRequest(id=number, model="m", tenant=f"t{number % 500}", program=f"p{number}", prompt_tokens=1_000)
        core.begin(request, 10 * number)
        if number % 2:
            core.end(number, Usage(1_000, 1_100), 10 * number + 1)
    copy = core.copy()
    copy.check()
    assert [program.key for program in copy.programs] == [program.key for program in core.programs]
