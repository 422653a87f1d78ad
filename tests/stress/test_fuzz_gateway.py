"""Half a second of each attack on the gateway; bench/fuzz_gateway.py is the long one."""

from __future__ import annotations

import bench_script


def test_hostile_clients_and_a_hostile_backend_leave_the_gateway_as_it_was() -> None:
    ended = bench_script.run("fuzz_gateway.py", "--seconds", "0.5", "--no-timing")
    assert ended.stdout.endswith("the gateway is as it was\n"), ended.stdout + ended.stderr
    assert ended.returncode == 0
