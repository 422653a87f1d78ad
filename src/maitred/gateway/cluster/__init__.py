"""Gateways and schedulers that are processes of their own, on one machine or on many.

link_setup.py          the secret, the certificates and the finder of one end of the link, from the configuration
scheduler_gateway.py   `maitred scheduler`: decides, polls, and serves pages of its own
linked_gateway.py      `maitred serve --scheduler`: serves, and decides nothing
linked_workers.py      the same with several processes: each asks the scheduler; linked_worker.py is the command of one
cluster_views.py       what the pages of both say of the link
"""
