"""The bodies of requests and answers: what is read of them, piece by piece where they are large, and what is changed.

request_fields.py   the few fields that decisions depend on, and hints for routers
request_work.py     slots and tokens of a request
program_fields.py   the program that a request belongs to
agent_headers.py    the session that the headers of an agent name
prompt_text.py      the text by which prompts are compared
large_body.py       bodies above 1 MiB, read in steps
json_slices.py      JSON that is read piece by piece
plain_runs.py       text of a large body that is not parsed
body_members.py     members of a body that are changed
content_coding.py   bodies that are compressed
body_budget.py      the bytes of all bodies that are read or kept
answer_usage.py     the tokens of an answer
usage_counts.py     what several usages of one answer say together
"""
