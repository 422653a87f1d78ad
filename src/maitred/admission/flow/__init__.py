"""Pools with the load of the instances as their limit: flow control, as in GAIE and BLIS.

pool.py              FlowPool: the requests of one model, and who is refused
bands.py             its waiting requests by priority, in one flow or one per tenant
dispatcher.py        which of them enter, over all models
saturation.py        how loaded the instances are
"""
