"""TensorRT-LLM's queue in front of the active requests: first come, first served, or by priority.

Priority orders nothing but the activation. Requests of equal priority keep the order in which they came, and those that are put
back (`prepend`) come before all others of their priority, in their own order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush

from maitred.batching import LlmRequest
from maitred.core.errors import ConfigError


class WaitingQueue(ABC):
    """Requests that are not active yet."""

    @abstractmethod
    def add(self, request: LlmRequest) -> None:
        """Add a request behind all of its priority."""

    @abstractmethod
    def prepend(self, requests: Sequence[LlmRequest]) -> None:
        """Put requests back, in front of all of their priority, in this order."""

    @abstractmethod
    def pop(self) -> LlmRequest:
        """Remove and return the first request. Raises IndexError when empty."""

    @abstractmethod
    def remove(self, request_ids: Collection[int]) -> None:
        """Remove the requests with these ids, as far as they wait here."""

    @abstractmethod
    def __len__(self) -> int: ...


class FCFSWaitingQueue(WaitingQueue):
    """First come, first served; priorities are ignored."""

    def __init__(self) -> None:
        self._requests: deque[LlmRequest] = deque()

    def add(self, request: LlmRequest) -> None:
        self._requests.append(request)

    def prepend(self, requests: Sequence[LlmRequest]) -> None:
        self._requests.extendleft(reversed(requests))

    def pop(self) -> LlmRequest:
        return self._requests.popleft()

    def remove(self, request_ids: Collection[int]) -> None:
        self._requests = deque(request for request in self._requests if request.request_id not in request_ids)

    def __len__(self) -> int:
        return len(self._requests)


class PriorityWaitingQueue(WaitingQueue):
    """The highest priority first, and among equals the first that came."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LlmRequest]] = []
        self._last = 0
        self._first = 0

    def add(self, request: LlmRequest) -> None:
        self._last += 1
        heappush(self._heap, (-request.priority, self._last, request))

    def prepend(self, requests: Sequence[LlmRequest]) -> None:
        for request in reversed(requests):
            self._first -= 1
            heappush(self._heap, (-request.priority, self._first, request))

    def pop(self) -> LlmRequest:
        return heappop(self._heap)[2]

    def remove(self, request_ids: Collection[int]) -> None:
        self._heap = [entry for entry in self._heap if entry[2].request_id not in request_ids]
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)


def create_waiting_queue(policy: str) -> WaitingQueue:
    """Return an empty queue: `fcfs` or `priority`. Raises ConfigError for another policy."""
    queues: dict[str, type[WaitingQueue]] = {"fcfs": FCFSWaitingQueue, "priority": PriorityWaitingQueue}
    if policy not in queues:
        raise ConfigError(f"unknown waiting queue policy {policy!r}", hint="valid: fcfs, priority")
    return queues[policy]()
