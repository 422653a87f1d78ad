"""The engines behind a gateway.

backend.py           an engine as routers see it, and the requests that it has
seats.py             the number of each backend, for as long as it is there
fleet_view.py        which backends are up, and what becomes of the requests of one that is not
fleet_watch.py       polls the backends for the view
served_models.py     which backends serve a model
slot_pools.py        which models share slots, and how many there are
slot_learning.py     slots of engines that report none
capacity.py          the slots of each model follow the fleet; reservations are checked against them
ejection_driver.py   timer and log of the ejection; requests at a backend that hangs
"""
