"""What tests on sockets run in."""

import pytest
from world import Backend, run_on_sockets


def test_a_scenario_that_fails_with_a_port_open_ends():
    async def scenario():
        await Backend().start()
        raise RuntimeError("the failure of a test")

    # uvloop tells of the port as it closes it.
    with pytest.warns(ResourceWarning, match="TCPServer"), pytest.raises(RuntimeError, match="of a test"):
        run_on_sockets(scenario())
