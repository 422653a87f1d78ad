"""HTTP: what the gateway and the emulated engine share on the wire.

    messages         what the framing takes and returns: states, events, faults
    clock            what time it is, for all parts; machine: what else is asked of the system past the event loop
    loop_clock       the clock of deadlines, which stands still while the process does; timeouts: blocks by that clock
    framing          where HTTP/1.1 messages begin and end, without I/O: states, limits, events
    server_framing   the same for a server: request heads in, responses out; request_rules: what a head must be
    client_framing   the same for a client: requests out, response heads in
    exchange         a request and its response, as a handler sees them; JSON, OpenAI error objects
    protocol         one connection from a client: time, memory, slow readers; client_limits: how much of them
    sockets          clients that leave while nothing is read from them, and bytes that they have not taken
    refusals         the errors that a server answers with by itself
    descriptors      which idle connections are closed when descriptors are short; handshakes: those that have not shaken hands
    server_context   what the connections of a server share
    server           serves an app until told to stop
    freed_memory     what the C library keeps of freed memory, and what goes back to the system
    acceptor         how many new connections a turn of the loop accepts
    client           sends requests to upstreams, over pooled connections
    resolver         the addresses of a host, looked up ahead of requests
    connection       one HTTP/1.1 connection to an upstream
    response         a response with a body that is still arriving
    tls, origin      the same client over TLS; scheme, host and port of an upstream
    certificate      the certificate of a server, and how it is replaced; certificate_dates: when it is valid
    known_heads      heads that came before mean what they meant then
    service_manager  sockets that systemd passes, and what it is told
    unix_signals     signals of the process; tasks: how what runs beside requests ends
    errors           limits of the client, and how a request can fail
    sse              server-sent events
    answer_errors    errors inside answers with status 200

HTTP is parsed by httptools in both directions, never by hand.
"""
