"""SGLang 0.5.23, as it is (`flavour: sglang`): for comparing with it, and for the cases that were recorded from it.

wait_queue.py           the scheduler `sglang(POLICY)`: a wait queue in SGLang's own orders
orders.py               these orders, tie for tie
batch.py                SGLangBatch: the steps of an instance; parts.py makes it by the configuration, engine_host.py
                        joins it to queue and KV
rules.py                the options that bound its prefill batches
prefill_pass.py         how one prefill batch is formed, of requests as prefill_request.py sees them
prefill_adder.py        how many requests and tokens it takes, and whether memory lasts until others end;
                        prefill_delayer.py: when prefill waits for the other ranks
retraction.py           which decoding request gives up its KV
new_token_ratio.py      how much of its allowed answer a request is expected to generate
expected_answers.py     the sum of that over the running requests
"""
