"""SMG's recorded scenarios, played against the real gateway.

    scenario   the file's format, strictly
    moments    when something happens: seconds, or a condition in words
    engines    mock engines, in this process
    client     one request on a connection of its own, observed to the byte
    gateway    `maitred serve` as a subprocess, configured as SMG would be
    play       a timeline, and the record of what came of it
    metrics    the recorded names and labels of counters
    record     what was observed
    expect     what was expected, key by key
    intentions what was wanted, where it is said in words
    rows       independent requests and start-ups, one per row
    turns      what may happen at the same time
    runner     all scenarios of a file

What the runner does not understand raises CannotCheck, and that is a failure: nothing passes because it was skipped.
"""
