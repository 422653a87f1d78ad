"""Pools with classes, or with one limit for all requests.

pool.py              ClassPool: who enters, waits, is refused, or takes the slot of another
priority.py          what keeps a newcomer out, which request is next, who is preempted, promotions of starved requests
adaptive_reserve.py  how much of a reservation is kept free, from what arrivals needed
lead_watch.py        the slots beyond what the engines run at once, and how soon they must be free again
"""
