"""SGLang 0.5.23, as it is (`flavour: sglang`): for comparing with it, and for the cases that were recorded from it.

wait_queue.py      the scheduler `sglang(POLICY)`: a wait queue in SGLang's own orders
orders.py          these orders, tie for tie
queue_limit.py     how many requests may wait
"""
