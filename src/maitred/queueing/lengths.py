"""Length predictors: how long will this answer be?

A server does not know. It knows what the client allows, and how long the answers were that the same program and tenant got
before. A predictor says what it expects, in tokens, or None where nothing is known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from typing import Protocol

from maitred.registry import Registry
from maitred.request import Request
from maitred.seq import Seq

_KEPT = 64
"""Lengths of which the quantile is taken: the latest."""
_ENOUGH = 5
"""With fewer of its own, a program is taken for its tenant, and a tenant for all."""
_MOST_GROUPS = 4096


class Lengths(Protocol):
    """What is known of answers in one wait queue."""

    def expected(self, seq: Seq) -> float | None:
        """Tokens that its answer will have in all, more than it has emitted; None: nothing is known."""
        ...

    def learn(self, request: Request, length: int) -> None:
        """The answer to `request` is complete and has `length` tokens."""
        ...


class LengthPredictor(Protocol):
    """Makes the `Lengths` of one wait queue."""

    def start(self) -> Lengths: ...


PREDICTORS: Registry[LengthPredictor] = Registry(
    "length predictor",
    LengthPredictor,
    group="maitred.length_predictors",
    packages=["maitred.queueing"],
    methods=["start"],
)


@PREDICTORS.register("none")
class Unknown(LengthPredictor, Lengths):
    """Nothing is ever known."""

    def start(self) -> Lengths:
        return self

    def expected(self, seq: Seq) -> float | None:
        return None

    def learn(self, request: Request, length: int) -> None:
        pass


@PREDICTORS.register("quantile")
class Quantile(LengthPredictor):
    """The `q`-quantile of the latest answers to the same tenant's same program; else to the tenant; else to all. What the
    client allows is a ceiling. `q` above a half errs on the long side."""

    def __init__(self, q: float = 0.5) -> None:
        """Raises ValueError unless 0 <= q <= 1."""
        if not 0 <= q <= 1:
            raise ValueError(f"q must be from 0 to 1, not {q}")
        self._q = q

    def start(self) -> Lengths:
        return _History(self._q)


@PREDICTORS.register("hint")
class Hint(LengthPredictor):
    """What the client allows (`max_output_tokens`). Who allows anything is expected to be as others were: the median."""

    def start(self) -> Lengths:
        return _Hinted()


class _Sample:
    """The latest lengths of one group."""

    __slots__ = ("_latest", "_sorted")

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, length: int) -> None:
        if len(self._latest) == _KEPT:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(length)
        insort(self._sorted, length)

    def quantile(self, q: float, above: int) -> int | None:
        """Of the lengths that are above `above`; None: too few were ever seen. Where none is above, as much again."""
        if len(self._sorted) < _ENOUGH:
            return None
        first = bisect_right(self._sorted, above)
        left = len(self._sorted) - first
        return self._sorted[first + min(int(q * left), left - 1)] if left else 2 * above


class _History(Lengths):
    def __init__(self, q: float) -> None:
        self._q = q
        self._all = _Sample()
        self._groups: OrderedDict[tuple[str, ...], _Sample] = OrderedDict()

    def expected(self, seq: Seq) -> float | None:
        request = seq.request
        for sample in (*map(self._groups.get, _groups(request)), self._all):
            length = None if sample is None else sample.quantile(self._q, seq.emitted)
            if length is not None:
                allowed = request.max_output_tokens
                return length if allowed is None else min(length, allowed)
        return None

    def learn(self, request: Request, length: int) -> None:
        self._all.add(length)
        for group in _groups(request):
            self._groups.setdefault(group, _Sample()).add(length)
            self._groups.move_to_end(group)
        while len(self._groups) > _MOST_GROUPS:
            self._groups.popitem(last=False)


class _Hinted(Lengths):
    def __init__(self) -> None:
        self._all = _Sample()

    def expected(self, seq: Seq) -> float | None:
        allowed = seq.request.max_output_tokens
        return self._all.quantile(0.5, seq.emitted) if allowed is None else allowed

    def learn(self, request: Request, length: int) -> None:
        self._all.add(length)


def _groups(request: Request) -> list[tuple[str, ...]]:
    """To which it belongs, the closest first."""
    tenant = (request.tenant,)
    return [(*tenant, request.program), tenant] if request.program else [tenant]
