"""The driver's timer on uvloop, which makes no timer of a delay of 0."""

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
