"""The dashboard of a gateway: one page at `/maitred`, kept up to date by a stream of differences.

    document        the page: one document with its style and script, that loads nothing, under a strict policy
    live_state      what it shows of the gateway, made in steps and bounded
    recent_decisions  the last decisions, while somebody looks
    latency_window  TTFT by class over the last ten minutes
    changes         what differs between two such states (RFC 7396)
    live_feed       the stream: one look in a second for all who watch, and none while nobody does
    pages           the paths, and who may see them

The page itself names nothing, so anyone who reaches the port of the operator gets it. What it shows comes from
`/maitred/events`, which asks for the operator's key as `/admin/*` does. The page has the key typed in once, keeps it for this
tab (sessionStorage) and sends it as `Authorization: Bearer` with `fetch`. There is no cookie, so no other page can have the
browser send the key along. A worker asks its parent for what it shows (`/maitred/live`), so each worker shows the whole.
"""
