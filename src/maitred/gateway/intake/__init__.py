"""From the head of a request to one that may ask for a slot, or to the error that refuses it.

request_intake.py      the steps, in order
intake_rules.py        what the intake makes of a configuration
intake_refusals.py     what is told of a request that is refused
large_body_reader.py   bodies above 1 MiB, a step of one in each turn of the loop
passed_routes.py       paths that are only passed on
engine_priority.py     the priority that an engine gets
"""
