"""The driver of admission: its timer on uvloop, which makes no timer of a delay of 0; and what it tells requests."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count

import pytest
import uvloop

from maitred.admission import Admission, AdmissionConfig
from maitred.admission.terms.config import ClassConfig, ClassesConfig
from maitred.core.request import Request
from maitred.scheduler.drivers.admission import AdmissionRejected, RealTimeAdmission
from maitred.wire.clock import Clock


def test_a_deadline_that_has_passed_before_the_timer_is_set_is_a_timer_still() -> None:
    impatient = ClassesConfig(default=ClassConfig(queue_timeout_secs=0.001))
    config = AdmissionConfig(mode="priority", classes=impatient)

    async def two_wait() -> None:
        # The clock advances by 10 ms at each look, as if the process were off the CPU between a decision and its timer.
        clock = Clock(partial(next, count(10_000_000, 10_000_000)))
        driver = RealTimeAdmission(Admission(config, {"m": 0}), clock)
        task = asyncio.current_task()
        stays = [
            driver.submit(Request(id=number, arrival=0, prompt_tokens=1, model="m"), 1, task, clock.now())
            for number in range(2)
        ]
        for stay in stays:
            with pytest.raises(AdmissionRejected, match="queue_timeout"):
                await stay.wait()

    uvloop.run(asyncio.wait_for(two_wait(), 5))


def test_a_request_that_has_lost_its_slot_and_its_time_in_the_queue_goes_to_no_other_backend() -> None:
    impatient = ClassesConfig(default=ClassConfig(queue_timeout_secs=1))
    config = AdmissionConfig(mode="priority", classes=impatient)

    async def leave_late() -> None:
        # Seconds pass between two looks at the clock: its wait would have been over when its backend has failed it.
        driver = RealTimeAdmission(Admission(config, {"m": 1}), Clock(partial(next, count(0, 5_000_000_000))))
        request, task = Request(id=0, arrival=0, prompt_tokens=1, model="m"), asyncio.current_task()
        assert task is not None
        lease = driver.submit(request, 1, task, 0)
        assert not lease.is_waiting
        driver.resize_pool("m", 0)
        with pytest.raises(AdmissionRejected, match="queue_timeout"):
            await driver.leave_backend(request.id)

    asyncio.run(leave_late())
