"""HTTP: what the live worlds share on the wire.

`asgi` is the plumbing of raw ASGI apps (bodies within a limit, JSON, OpenAI error objects, clients that leave), `server`
serves such an app on uvicorn until told to stop, `protocol` bounds what a client may send it, `client` and its neighbours speak
HTTP/1.1 to upstreams, `sse` knows event streams. HTTP itself is parsed by httptools, in both directions, and never by hand.
"""
