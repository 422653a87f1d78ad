"""What every queue policy, priority policy and length predictor promises, whatever its order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import isfinite
from random import Random

from msgspec.structs import replace

from maitred.core.contracts import PriorityPolicy, QueuePolicy, WaitQueue
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import Instance, InstanceConfig, LinearLatency
from maitred.queueing import PRIORITIES, SCHEDULERS, TimeInvariantPriority
from maitred.queueing.srpt import LENGTH_PREDICTORS, LengthEstimator, LengthPredictor
from maitred.testing.samples import StepSample, blaming, drain, factory_of, sample_request, sample_sequence

VERBS = ("add", "add", "front", "pop", "remove", "begin", "again")
Operations = list[tuple[str, int]]


def check_queue_policy(policy: str | Callable[[], QueuePolicy], *, seeds: int = 20, fixed_order: bool = True) -> None:
    """Raise AssertionError unless the queue of `policy` loses nothing, keeps its word on heads and instants, orders the same
    requests alike however it came by them, and does not see how many steps an instance has skipped.

    `fixed_order`: the order follows from the waiting requests, from time and from the step, as it does for all but those that
    draw.
    """
    make = factory_of(policy, SCHEDULERS)

    def queue() -> WaitQueue:
        return make().make_queue(None, Random(0))

    for seed in range(seeds):
        rng = Random(seed)
        with blaming(policy, seed):
            check_nothing_is_lost(queue(), [(rng.choice(VERBS), rng.randint(0, 60)) for _ in range(80)], seed)
            if fixed_order:
                check_order_of_the_rest(queue, seed, rng.randint(1, 30))
            if isinstance(policy, str):
                check_skipping(policy, seed, rng.choice([2, 4, 256]), rng.choice([14, 20, 40]))
    with blaming(policy, 0):
        check_empty(queue())
        if fixed_order:
            check_removal(queue)


def check_empty(queue: WaitQueue) -> None:
    """Check that an empty queue has no head, and that popping from it is an IndexError."""
    assert queue.peek() is None, "an empty queue has a head"
    try:
        queue.pop()
    except IndexError:
        return
    raise AssertionError("pop from an empty queue is no error")


def _pop_head(queue: WaitQueue) -> SequenceState:
    head = queue.peek()
    assert head is not None, "no head, and requests wait"
    assert queue.peek() is head, "the head changes when it is looked at twice"
    assert queue.pop() is head, "pop gives another one than peek"
    return head


def check_nothing_is_lost(queue: WaitQueue, operations: Operations, seed: int) -> None:
    """Check that what waits is what came and has not gone, and that the head is what is popped. `again` is a preemption."""
    here, running, rng = set[int](), list[SequenceState](), Random(seed)
    for number, (verb, other) in enumerate(operations):
        now = 100 * number
        if verb in {"add", "front"}:
            queue.add(sample_sequence(rng, number, now), now, front=verb == "front")
            here.add(number)
        elif verb == "again" and running:
            victim = running.pop()
            queue.add(victim, now, front=True)
            here.add(victim.arrival_index)
        elif verb == "remove":
            removed = queue.remove(other)
            assert (removed is not None) == (other in here), f"remove({other}) gave {removed}"
            here.discard(other)
        elif verb == "begin":
            queue.on_step_start(StepSample(number, routing_keys={"k": other % 3, "l": other % 2}), now)
        elif here:
            head = _pop_head(queue)
            here.remove(head.arrival_index)
            running.append(head)
        assert len(queue) == len(here), f"{len(queue)} wait, and it should be {len(here)}"
        until = queue.next_order_change(now)
        assert until is None or until > now, f"next_order_change({now}) is {until}"
    assert (queue.peek() is None) == (not here), "a head, and nothing waits, or none, and something does"
    assert sorted(drain(queue)) == sorted(here), "other requests come out than went in"


def check_removal(make: Callable[[], WaitQueue]) -> None:
    """Check that requests that leave from within leave the rest in the order it would have had without them."""
    rng = Random(1)
    sequences = [sample_sequence(rng, number, 10 * number) for number in range(200)]
    queue, reference = make(), make()
    for sequence in sequences:
        queue.add(sequence, sequence.request.arrival)
        if sequence.arrival_index % 7 == 0:
            reference.add(sequence, sequence.request.arrival)
    for sequence in sequences:
        if sequence.arrival_index % 7:
            queue.remove(sequence.arrival_index)
    for each in (queue, reference):
        each.on_step_start(StepSample(), 2000)
    found, expected = drain(queue), drain(reference)
    assert found == expected, f"after removals {found}, without those removed {expected}"
    assert queue.peek() is None, "a drained queue has a head"


def check_order_of_the_rest(make: Callable[[], WaitQueue], seed: int, count: int) -> None:
    """Check that, after steps, time, heads that come and go, and removals, the order of the rest is that of a new queue."""
    rng, queue = Random(seed), make()
    here, now = _disturb(queue, rng, count)
    made_now = make()
    for sequence in here.values():
        made_now.add(sequence, sequence.request.arrival)
    now += rng.choice([0, 300, 4000])
    step = StepSample(count, routing_keys={"k": 2, "l": rng.randint(1, 3)})
    for each in (queue, made_now):
        each.on_step_start(step, now)
    # What was served, looked at and removed before must have left no trace in the order of the rest.
    found, expected = drain(queue), drain(made_now)
    assert found == expected, f"the order is {found}, and that of a new queue {expected}"


def _disturb(queue: WaitQueue, rng: Random, count: int) -> tuple[dict[int, SequenceState], Micros]:
    """Let `count` requests come, with steps, looks and removals between them. Return those that still wait, and the time."""
    here, now = dict[int, SequenceState](), 0
    for number in range(count):
        now += rng.choice([0, 1, 50, 400])
        here[number] = sample_sequence(rng, number, now)
        queue.add(here[number], now)
        if rng.random() < 0.5:
            queue.on_step_start(StepSample(number, routing_keys={rng.choice("kl"): 1}), now)
        if rng.random() < 0.3:
            assert queue.peek() is not None, "no head, and requests wait"
        if rng.random() < 0.3 and (gone := rng.choice([None, *here])) is not None:
            assert queue.remove(gone) is here.pop(gone), "remove gives another one"
    return here, now


def _sample_jobs(rng: Random) -> list[tuple[Request, int]]:
    """Return some requests in the order of arrival, each with the tokens of its answer."""
    jobs, now = list[tuple[Request, int]](), 0
    for number in range(rng.randint(2, 18)):
        now += rng.choice([0, 1, 30, 700])
        jobs.append((sample_request(rng, number, now, model=""), rng.randint(1, 120)))
    return jobs


def check_skipping(spec: str, seed: int, max_num_seqs: int, blocks: int) -> None:
    """Check that an instance tells the same events, to the microsecond, whether or not it skips steps."""
    jobs = _sample_jobs(Random(seed))
    config = InstanceConfig(
        scheduler=spec,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=64,
        total_kv_blocks=blocks,
        latency=LinearLatency((40, 1, 2)),
    )
    skipping, stepping = _events(config, jobs), _events(replace(config, step_by_step=True), jobs)
    assert skipping == stepping, "it sees how many steps were skipped: is next_order_change right?"


def _events(config: InstanceConfig, jobs: list[tuple[Request, int]]) -> list[tuple[int, int, int, int]]:
    """Return all events as (at, kind, request, tokens emitted)."""
    instance, coming, seen = Instance(config, Random(5)), list(jobs), list[tuple[int, int, int, int]]()
    while True:
        due = instance.next_event()
        arrivals = [request.arrival for request, _ in coming[:1]]
        if due is None and not arrivals:
            return seen
        now = min([*arrivals, *([] if due is None else [due])])
        while coming and coming[0][0].arrival == now:
            instance.enqueue(*coming.pop(0), now)
        seen += [(e.at, int(e.kind), e.seq.request.id, e.seq.num_output_tokens) for e in instance.advance(now)]
        instance.check()


def check_priority_policy(policy: str | Callable[[], PriorityPolicy], *, seeds: int = 20) -> None:
    """Raise AssertionError unless scores are finite numbers that follow from the request and the time alone, and `rank`, where
    there is one, orders requests as the scores do at every instant."""
    make = factory_of(policy, PRIORITIES)
    for seed in range(seeds):
        rng, made, again = Random(seed), make(), make()
        requests = [sample_request(rng, number, rng.randint(0, 5000)) for number in range(12)]
        with blaming(policy, seed):
            for now in (5000, 5001, 60_000_000):
                _check_scores(made, again, requests, now)


def _check_scores(made: PriorityPolicy, again: PriorityPolicy, requests: Sequence[Request], now: Micros) -> None:
    scores = [made.compute(request, now) for request in requests]
    assert all(map(isfinite, scores)), f"scores of {scores}"
    assert scores == [again.compute(request, now) for request in requests], "the same request has two scores"
    if isinstance(made, TimeInvariantPriority):
        ranks = [made.rank(request) for request in requests]
        pairs = product(range(len(requests)), repeat=2)
        assert not any(scores[a] > scores[b] and not ranks[a] > ranks[b] for a, b in pairs), (
            f"scores {scores} and ranks {ranks} differ at {now}"
        )


def check_length_predictor(predictor: str | Callable[[], LengthPredictor], *, seeds: int = 20) -> None:
    """Raise AssertionError unless what is expected is None or a finite number above what was emitted, is not changed by asking,
    and is learned by each wait queue for itself."""
    make = factory_of(predictor, LENGTH_PREDICTORS)
    for seed in range(seeds):
        rng = Random(seed)
        with blaming(predictor, seed):
            _check_learning(make(), rng)


def _check_learning(made: LengthPredictor, rng: Random) -> None:
    """Let one of two queues learn, and look at what both expect."""
    lengths, untold = made.estimator(), made.estimator()
    probe = sample_sequence(rng, 1000, 0)
    before = untold.expected_tokens(probe)
    for number in range(60):
        sequence = sample_sequence(rng, number, 0)
        sequence.num_output_tokens = rng.randint(0, 30)
        _check_expected(lengths, sequence)
        lengths.observe(sequence.request, rng.randint(1, 300))
    assert untold.expected_tokens(probe) == before, "one queue learns what another was told"


def _check_expected(lengths: LengthEstimator, sequence: SequenceState) -> None:
    expected = lengths.expected_tokens(sequence)
    assert expected == lengths.expected_tokens(sequence), "asking changes what is expected"
    allowed = sequence.request.max_output_tokens
    if expected is not None and (allowed is None or sequence.num_output_tokens < allowed):
        assert isfinite(expected), f"{expected} tokens are expected"
        assert expected >= sequence.num_output_tokens, f"{expected} tokens, and it has more already"
