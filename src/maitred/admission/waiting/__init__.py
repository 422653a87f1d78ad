"""Requests that do not hold a slot, or are about to lose it.

pool_queues.py       the waiting requests of a pool: whether a queue is full, until when they wait, which of them starve
queues.py            the queue of one class: first come first served, or shared fairly among tenants
preemption.py        which requests may be victims, and preemptors that wait for their slots
token_bucket.py      how many may enter per second
usage_window.py      how much was reserved within the last minute or day
retry_after.py       when a rejected request should be sent again
"""
