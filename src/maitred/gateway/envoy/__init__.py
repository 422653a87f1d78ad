"""The endpoint picker: Envoy forwards, and asks here which backend gets a request (`maitred scheduler --ext-proc`).

For the scheduler the picker is one more gateway, linked to it in this process. For the gateway's own rooms a request at Envoy
is an `Exchange` like any other: intake reads it, `Proxy` asks for memory and for a slot, and a refusal is its response. What
differs is that Envoy sends it to the backend.

picker_scheduler.py   a scheduler with a picker: what `maitred scheduler --ext-proc` serves
endpoint_picker.py    the picker: its link, its intake, its gRPC server
grpc_services.py      what is served over gRPC: ext_proc, and the health of the picker
http2.py              HTTP/2 below it, without I/O; http2_stream.py: of one call
ext_proc_stream.py    one HTTP request at Envoy, message by message
ext_proc_messages.py  what is said to Envoy, as bytes
ext_proc_schema.py    its messages: names and numbers of fields
picked_attempts.py    a request that Envoy sends: until its response begins, and until it ends
picked_answer.py      the body of an answer, where admission or a program must know what it came to
endpoints.py          backends as Envoy knows them: addresses with ports
envoy_gateway.py      a picker with an Envoy of its own: what `maitred serve --data-plane envoy` serves
envoy_process.py      such an Envoy as a child of this process
bootstrap.py          the configuration of such an Envoy (`maitred envoy-config`)
"""
