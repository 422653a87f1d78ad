"""From a request that may be sent to the answer that its client gets.

proxy_request.py        a request that is ready to be forwarded
request_sender.py       what a request is given to that may be sent
attempts.py             one backend after the other
attempt.py              the request at one backend
attempt_outcomes.py     what is told of an attempt, and to whom
retries.py              whether a request is sent again, and when
retry_budget.py         how many may be sent again, given how many there are
held_answer.py          the error of an engine, which may be passed on
response_forwarder.py   the response of a backend, to the client
waiting_stream.py       a stream that has signs of life while its request waits
stream_dialects.py      errors and signs of life in a stream, as each API has them
"""
