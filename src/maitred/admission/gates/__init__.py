"""What refuses a request before it asks for a slot.

gates.py              all of them, in order
policy_gate.py       policies that refuse requests; the budgets of tenants
policies.py          those that come with maitred
rate_gate.py         the request rate in front of the classes
usage_limits.py      requests and tokens per minute and per day, by tenant and model
"""
