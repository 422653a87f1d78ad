"""`maitred engine` on the command line: a process that serves, and mistakes and warnings in this process."""

import socket
import subprocess
import sys
import urllib.request

import pytest


@pytest.fixture
def stderr_until_ready(maitred, monkeypatch):
    """A function that runs the command up to the instant at which it would serve, and returns the lines on stderr."""
    monkeypatch.setattr("maitred.wire.server.run_server", lambda *_app, on_ready, **_address: on_ready("http://127.0.0.1:9"))
    return lambda *flags: maitred("engine", *flags).err.splitlines()


def test_it_says_where_it_listens_and_ends_well_when_told_to():
    command = [sys.executable, "-m", "maitred", "engine", "--port", "0", "--model", "tiny", "--speed", "100"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    url = line.split()[3].rstrip(",")
    assert line == f"maitred: engine on {url}, model: tiny\n"
    with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
        assert answer.status == 200
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


def test_the_name_of_vllm_for_the_model_is_taken(stderr_until_ready):
    assert stderr_until_ready("--served-model-name", "tiny")[0] == "maitred: engine on http://127.0.0.1:9, model: tiny"


def test_a_port_in_use_is_one_line(maitred):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = maitred("engine", "--port", port)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"maitred: error: --port: port {port} is in use")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--scheduler", "sfj"), "did you mean 'sjf'?"),
        (("--latency", "linear:1,2"), "linear:5000,17.5,60"),
        (("--latency", "quadratic:1"), "linear"),
        (("--model", "llama-3.1-9b", "--hardware", "H100"), "did you mean 'llama-3.1-8b'?"),
        (("--output-tokens", "gamma:1,2"), "lognormal:MEAN,SD"),
        (("--speed", "0"), "speed must be a number above 0"),
    ],
)
def test_a_wrong_flag_is_one_line_that_says_what_is_right(arguments, expected, maitred):
    result = maitred("engine", "--port", "0", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("maitred: error: ")
    assert expected in result.err
    assert result.err.count("\n") == 1


def test_warnings_come_before_it_serves(stderr_until_ready):
    warning, ready = stderr_until_ready("--scheduler", "lpm")
    assert warning.startswith("maitred: warning: lpm orders by the prefix cache, which is off")
    assert ready.startswith("maitred: engine on http://")


def test_overheads_are_said_to_have_no_effect(stderr_until_ready):
    first, second = stderr_until_ready("--alpha-coeffs", "500,1,100", "--beta-coeffs", "5000,17.5,60")
    assert first.startswith("maitred: warning: alpha (--alpha-coeffs) has no effect here")
    assert second.startswith("maitred: engine on ")
