"""The pages that the gateway answers itself, and what changes it in service.

endpoints.py           the pages and routes of the gateway
backend_endpoints.py   the calls by which scripts add and take away backends
page_bodies.py         the bodies of such calls
program_endpoints.py   those about programs
program_pages.py       what shows programs, put together
shadow_endpoint.py     where a shadow would have decided otherwise
reload.py              the configuration, read again in service
request_stories.py     what happened to a recent request
bounded_thread.py      reading files that may hang
port_certificates.py   TLS of each port
possible_tenants.py    rules about tenants that no request can come from
idle_checks.py         the checks of the cores, while the gateway is idle
"""
