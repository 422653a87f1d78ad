"""What is told of requests and of the gateway: records, metrics, logs, recordings, states.

request_record.py     what is known of one request
request_observer.py   to whom that is told when it ends
request_ids.py        one id of a request for all logs
request_metrics.py    metrics of requests by model
request_trace.py      what is noted of one request for its spans
tracing.py            the spans of requests and attempts; span_export.py: their way to a collector
recording.py          requests as rows of a trace for the simulator; record_file.py: their file, in order
access_log.py         a line for each request
logs.py               where the lines of the log go
outputs.py            these and the other files that are written, opened and closed together
state.py              counters, and the state as `/maitred/state` shows it
state_snapshots.py    the state of the whole gateway, taken in steps
tenant_views.py       what a tenant sees of it
metrics.py            the metrics of the gateway
metric_families.py    a metric, made of its samples
openmetrics.py        metrics as OpenMetrics, with traces as exemplars
metric_rows.py        which rows of them a tenant sees
program_views.py      programs as pages show them
program_metrics.py    the metrics of programs
program_profiles.py   averages of the requests of programs
shared_page.py        a page that is made in steps, once for all who ask
shadow.py             what lets a shadow decide beside, and tells what has come of it
loop_lag.py           how late the event loop is
descriptor_watch.py   whether there are file descriptors left
"""
