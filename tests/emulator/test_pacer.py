"""The pacer on a manual clock.

The latency model is β = (10 ms, 0.1 ms, 1 ms): a prompt of 10 tokens is read in one step of 11 ms, which also gives the first
token; a step with one sequence decoding takes 11 ms, with two 12 ms.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.request import Request
from maitred.emulator import EngineConfig
from maitred.emulator.engine import EmulatedEngine
from maitred.emulator.pacer import PacedAnswer, Pacer
from maitred.emulator.responses import CompletionFormat
from maitred.emulator.schemas import CompletionBody
from maitred.emulator.tokens import FinishReason, PlannedFinish
from maitred.instance import Instance, InstanceConfig, LinearLatency
from maitred.wire.machine import Machine

LATENCY = LinearLatency((10_000.0, 100.0, 1_000.0))


class ManualClock:
    """A clock that is moved by the test. Timers can fire late."""

    def __init__(self):
        self.now = 0.0
        self.timers = []

    def time(self):
        return self.now

    def call_at(self, when, callback):
        timer = ManualTimer(when, callback, self.timers)
        self.timers.append(timer)
        return timer

    def move_to(self, ms):
        """Move the clock; every timer fires when it is due."""
        target = ms / 1000
        while (timer := min(self.timers, key=lambda t: t.when, default=None)) and timer.when <= target:
            self.now = max(self.now, timer.when)
            self.timers.remove(timer)
            timer.callback()
        self.now = target

    def jump_to(self, ms):
        """Move the clock as if the process had been held up: timers that were due fire now."""
        self.now = ms / 1000
        self.move_to(ms)

    def next_ms(self):
        (timer,) = self.timers
        return round(timer.when * 1000, 6)


class ManualTimer:
    def __init__(self, when, callback, timers):
        self.when, self.callback, self.timers = when, callback, timers

    def cancel(self):
        if self in self.timers:
            self.timers.remove(self)


class RecordedMetrics:
    """A stand-in for the metrics that keeps what the pacer reports, with virtual times in ms."""

    def __init__(self):
        self.finishes, self.gaps, self.aborts, self.tokens = {}, [], 0, 0
        self.first_tokens, self.times = {}, {}

    def on_first_token(self, request, at, scheduled, cached):
        self.first_tokens[request.id] = (scheduled / 1000, at / 1000)

    def observe_token_gap(self, span):
        self.gaps.append(span / 1000)

    def count_output_tokens(self, tokens):
        self.tokens += tokens

    def on_kv_preempted(self):
        pass

    def on_finished(self, request, course, reason):
        self.finishes[request.id] = (course.output_tokens, course.last_token / 1000)
        self.times[request.id] = course

    def on_end(self, reason):
        assert reason is FinishReason.ABORT
        self.aborts += 1


class Scene:
    def __init__(self, *, speed=1.0, **instance):
        self.clock, self.metrics, self.reported = ManualClock(), RecordedMetrics(), []
        self.instance = Instance(InstanceConfig(latency=LATENCY, step_by_step=True, **instance), Random(1))
        self.pacer = Pacer(self.instance, self.clock, self.metrics, speed=speed)

    def submit(self, number, tokens, *, prompt=10):
        request = Request(id=number, arrival=self.pacer.now(), prompt_tokens=prompt)
        self.pacer.submit(
            PacedAnswer(request, PlannedFinish(tokens, FinishReason.STOP), lambda emitted: self.on_progress(number, emitted))
        )

    def on_progress(self, number, emitted):
        self.reported.append((round(self.clock.now * 1000, 3), number, emitted))


class NoClient:
    """A response that nothing waits for."""

    def on_progress(self, index, num_output_tokens):
        pass


def test_each_token_is_reported_at_the_end_of_its_step():
    scene = Scene()
    scene.submit(0, tokens=3)
    scene.clock.move_to(100)
    assert scene.reported == [(11.0, 0, 1), (22.0, 0, 2), (33.0, 0, 3)]
    assert scene.metrics.finishes == {0: (3, 33.0)}
    assert scene.metrics.gaps == [11.0, 11.0]
    assert scene.clock.timers == []


def test_the_course_of_a_request_that_lost_its_place_to_another():
    scene = Scene(total_kv_blocks=3)  # both fit until they have 16 tokens each; then one of them must wait for the other
    for number in (0, 1):
        scene.submit(number, tokens=10)
    scene.clock.move_to(1_000)
    first, second = scene.metrics.times[0], scene.metrics.times[1]
    assert (first.scheduled, first.first_token, first.output_tokens, first.preemptions) == (0, 11_000, 10, 0)
    assert (second.scheduled, second.first_token, second.output_tokens, second.preemptions) == (11_000, 23_000, 10, 1)
    assert second.last_token > first.last_token


def test_a_late_timer_tells_all_that_was_due_at_once_and_the_next_step_is_not_late():
    scene = Scene()
    scene.submit(0, tokens=5)
    scene.clock.jump_to(30)
    assert scene.reported == [(30.0, 0, 2)]
    assert scene.clock.next_ms() == 33
    scene.clock.move_to(100)
    assert scene.metrics.finishes == {0: (5, 55.0)}


def test_twice_the_speed_is_half_the_time():
    scene = Scene(speed=2)
    scene.submit(0, tokens=2)
    scene.clock.move_to(100)
    assert scene.reported == [(5.5, 0, 1), (11.0, 0, 2)]
    assert scene.metrics.finishes == {0: (2, 22.0)}


def test_a_request_that_arrives_during_a_step_joins_the_next_one():
    scene = Scene()
    scene.submit(0, tokens=3)
    scene.clock.move_to(5)
    scene.submit(1, tokens=1)
    scene.clock.move_to(100)
    # step 2 decodes one and reads ten tokens: 10 + 1 + 1 ms
    assert scene.reported == [(11.0, 0, 1), (23.0, 0, 2), (23.0, 1, 1), (34.0, 0, 3)]
    assert scene.metrics.first_tokens[1] == (11.0, 23.0)


@pytest.mark.parametrize(("async_scheduling", "running", "waiting"), [(False, 2, 0), (True, 1, 1)])
def test_with_async_scheduling_an_engine_has_planned_the_next_step_already(async_scheduling, running, waiting):
    """The second request arrives during the first step, which ends at 11 ms."""
    clock = ManualClock()
    engine = EmulatedEngine(
        EngineConfig(), InstanceConfig(latency=LATENCY, async_scheduling=async_scheduling), Machine(), clock
    )
    body = CompletionBody(model="emulated", prompt=list(range(10)), max_tokens=5)
    for arrival in (0, 5):
        clock.move_to(arrival)
        engine.start(*engine.plan(body, CompletionFormat()), NoClient())
    clock.move_to(12)
    assert (engine.state().running, engine.state().waiting) == (running, waiting)
    clock.move_to(24)
    assert (engine.state().running, engine.state().waiting) == (2, 0)


def test_a_request_aborted_while_it_waits_gets_no_tokens_and_delays_no_other():
    scene = Scene(max_num_seqs=1)
    for number in range(3):
        scene.submit(number, tokens=1)
    assert scene.pacer.abort(1)
    scene.clock.move_to(100)
    assert scene.reported == [(11.0, 0, 1), (22.0, 2, 1)]
    assert scene.metrics.aborts == 1


def test_a_request_aborted_while_it_runs_leaves_its_place_at_once():
    scene = Scene(max_num_seqs=1)
    scene.submit(0, tokens=50)
    scene.submit(1, tokens=1)
    scene.clock.move_to(15)
    assert scene.pacer.abort(0)
    assert (scene.instance.running, scene.instance.waiting) == (0, 1)
    scene.clock.move_to(100)
    assert scene.reported == [(11.0, 0, 1), (33.0, 1, 1)]
    assert not scene.pacer.abort(0)


def test_a_listener_that_fails_does_not_stop_the_clock():
    scene = Scene()

    def fail(emitted):
        raise RuntimeError(f"at token {emitted}")

    scene.pacer.submit(PacedAnswer(Request(id=7, arrival=0, prompt_tokens=10), PlannedFinish(2, FinishReason.STOP), fail))
    with pytest.raises(RuntimeError, match="at token 1"):
        scene.clock.move_to(11)
    with pytest.raises(RuntimeError, match="at token 2"):
        scene.clock.move_to(100)
    assert scene.metrics.finishes == {7: (2, 22.0)}


ARRIVALS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 12), st.integers(1, 60), st.none() | st.integers(0, 150)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(ARRIVALS, st.lists(st.integers(1, 40), min_size=1, max_size=40), st.booleans())
def test_lateness_changes_which_tokens_are_reported_together_and_nothing_else(arrivals, hops, async_scheduling):
    def play(move):
        scene = Scene(max_num_seqs=3, max_num_batched_tokens=32, total_kv_blocks=8, async_scheduling=async_scheduling)
        acts = []
        for number, (at, tokens, prompt, patience) in enumerate(sorted(arrivals, key=lambda a: a[0])):
            acts.append((at, number, lambda n=number, t=tokens, p=prompt: scene.submit(n, t, prompt=p)))
            if patience is not None:
                acts.append((at + patience, number, lambda n=number: scene.pacer.abort(n)))
        for at, _, act in sorted(acts, key=lambda a: a[:2]):
            move(scene.clock, at)
            act()
            scene.instance.check()
        move(scene.clock, 60_000)
        assert (scene.instance.running, scene.instance.waiting) == (0, 0)
        return scene

    def stumble(clock, until):
        at = clock.now * 1000
        for hop in hops:
            at += hop
            if at >= until:
                break
            clock.jump_to(at)
        clock.jump_to(until)

    punctual, late = play(ManualClock.move_to), play(stumble)
    assert late.metrics.finishes == punctual.metrics.finishes
    assert late.metrics.gaps == punctual.metrics.gaps
    assert late.metrics.first_tokens == punctual.metrics.first_tokens
    for number, (tokens, _) in late.metrics.finishes.items():
        heard = [emitted for _, who, emitted in late.reported if who == number]
        assert heard == sorted(set(heard))
        assert heard[-1] == tokens
    assert len(late.metrics.finishes) + late.metrics.aborts == len(arrivals)
