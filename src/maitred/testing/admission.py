"""What every admission policy promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NoReturn

from maitred.admission import POLICIES, Admission, AdmissionConfig, AdmissionPolicy, Refusal
from maitred.core.contracts import FleetLoad, InstanceLoad
from maitred.testing.samples import blaming, factory_of, sample_request

_SAID: Final = ("state", "cost", "prompt_tokens", "tenant", "slo_priority", "slo_target")


class _Unseen(Sequence[InstanceLoad]):
    """The load of instances that a policy has not asked for."""

    def __getitem__(self, index: object) -> NoReturn:
        raise AssertionError("it looks at the load, and its `reads_load` is not set")

    def __len__(self) -> int:
        return len(self[0])


def check_admission_policy(policy: str | Callable[[], AdmissionPolicy], *, seeds: int = 20) -> None:
    """Raise AssertionError unless it answers with a `Refusal` or None, alike for the same requests at the same times, without a
    look at the load if it does not ask for it, and without a change of the ticket."""
    make = factory_of(policy, POLICIES)
    for seed in range(seeds):
        with blaming(policy, seed):
            first, again = (_answers(make(), seed) for _ in range(2))
            assert first == again, "it answers otherwise when it is asked the same again"


def _answers(policy: AdmissionPolicy, seed: int) -> list[Refusal | None]:
    rng, now, answers = Random(seed), 0, list[Refusal | None]()
    core = Admission(AdmissionConfig(mode="off"), {})
    for number in range(100):
        now += rng.choice([0, 1, 1000, 3_000_000])
        request = sample_request(rng, number, now)
        ticket = core.make_ticket(request, request.prompt_tokens + 10)
        before = [getattr(ticket, name) for name in _SAID]
        answer = policy.refusal(ticket, _load(rng) if policy.reads_load else FleetLoad(_Unseen()), now)
        assert answer is None or isinstance(answer, Refusal), f"it answers {answer!r}"
        assert before == [getattr(ticket, name) for name in _SAID], "it changes the ticket"
        answers.append(answer)
    return answers


def _load(rng: Random) -> FleetLoad:
    return FleetLoad(
        [
            InstanceLoad(rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 9), rng.random(), index)
            for index in range(rng.randint(0, 4))
        ]
    )
