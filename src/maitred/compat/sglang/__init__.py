"""SGLang's own rules, as of sglang 0.5.23, for comparing with SGLang itself.

    orders         its orders, tie for tie: pure functions from a waiting list to its next order
    wait_queue     the scheduler `sglang(POLICY)`, a wait queue that is ordered by them
    queue_limit    how many requests may wait, and which one is aborted when one more comes

The policies of the same names in `maitred.queueing` differ on purpose: no cut-off, ties by arrival, and a pass that
costs what has changed and not what waits.
"""
