"""Who a request is from, and who sees which page.

inbound_head.py   tenant, class and headers of a request, by its head
auth.py           the tenant that a key stands for
caller_sources.py  keys that are not in the configuration, and when they are read again
keys_file.py      those of a file
jwt_keys.py       tokens of an issuer
page_access.py    the table of pages, senders and ports
local_access.py   whether a request without a key is from this machine, and not from a page in a browser
cors.py           pages of other origins that may use the gateway
"""
