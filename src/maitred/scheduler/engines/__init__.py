"""What engines say of themselves.

polling.py        one poll: health, models, slots, metrics
report.py         what a reading says
readings.py       reading an engine's metrics
metrics.py        what the rows of a page mean, for each engine
metrics_page.py   the rows of a page
json_pages.py     pages that are JSON
kv_pages.py       what a page says of KV memory
server_info.py    the page with an engine's configuration
"""
