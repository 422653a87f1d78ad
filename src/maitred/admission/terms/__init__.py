"""What is said and counted in admission: its words, and what a configuration makes of them. Nothing here decides.

config.py            the keys of the `admission` section; policy_config.py and flow_config.py: those of policies and of
                     flow control
presets.py           defaults of the configuration, and options in which other systems differ
rules.py             the configuration, resolved into what pools work with
enums.py             actions and reasons
ticket.py            the record of one request, and the table of its states
counters.py          what became of every request
tenants.py           names, limits and accounts of tenants
lead.py              the slots beyond what the engines run at once
"""
