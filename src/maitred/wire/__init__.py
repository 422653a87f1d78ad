"""HTTP: what the gateway and the emulated engine share on the wire.

    asgi         raw ASGI apps: bodies within a limit, JSON, OpenAI error objects, disconnects
    server       serves such an app on uvicorn until told to stop
    protocol     limits what a client may send to it
    client       sends requests to upstreams, over pooled connections
    connection   one HTTP/1.1 connection to an upstream
    response     a response with a body that is still arriving
    tls          the same client over TLS
    errors       limits of the client, and how a request can fail
    sse          server-sent events

HTTP is parsed by httptools in both directions.
"""
