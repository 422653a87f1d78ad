"""Flow control: requests wait in front of the fleet while it is saturated, and enter by urgency and fairly by tenant.

The Gateway API Inference Extension (llm-d) works so, and BLIS simulates it. `pool.py` describes how a request passes through.

    bands.py       waiting requests by priority, in one flow or one per tenant; which bands may enter at a saturation
    dispatcher.py  which requests enter, over all models; what instances show, and requests that they do not show yet
    pool.py        FlowPool: a pool whose limit is the load of the instances
"""

from __future__ import annotations
