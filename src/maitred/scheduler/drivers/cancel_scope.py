"""Cancel scopes: parts of the work of one task that can be stopped one by one, as trio has them.

Three scopes nest in the task of a proxied request, and each has a reason of its own to be cancelled:

    client     ScheduledRequest  the client disconnects: the request ends without an answer
    slot       SlotLease         the slot is preempted: the request waits again, or gets its 503
    attempt    UpstreamRequest   the backend goes down: another backend gets the request

The reasons may come together and in any order, and a shutdown of the server cancels the task itself. Each `cancel` of a scope
is one cancellation of the task; where the scope ends, `catch` takes back the one that is its own. If that was the last one, the
task goes on behind the scope. Otherwise CancelledError passes on to the scope around it.

    preempted only                  slot.catch() -> True      the task goes on
    preempted, client disconnected  slot.catch() -> False, then client.catch() -> True

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio


class CancelScope:
    """A part of the work of a task. What is such a part inherits from this class, so that it costs no further object."""

    task: asyncio.Task[None]
    is_cancelled = False
    """Whether the scope was cancelled, and no handler has caught that."""

    def cancel(self) -> None:
        """Stop this part of the work: the task gets a CancelledError where it waits. Idempotent until `catch`."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self.task.cancel()

    def catch(self) -> bool:
        """Return whether the task goes on behind this scope: it, and nothing else, was cancelled. Ask once in each handler of a
        CancelledError, which otherwise must pass on."""
        was_cancelled, self.is_cancelled = self.is_cancelled, False
        return was_cancelled and self.task.uncancel() == 0
