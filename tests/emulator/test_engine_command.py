"""`maitred engine` on the command line."""

import socket
import subprocess
import sys
import urllib.request

import pytest


def engine(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "maitred", "engine", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_it_says_where_it_listens_and_ends_well_when_told_to():
    process = engine("--port", "0", "--model", "tiny", "--speed", "100")
    line = process.stderr.readline()
    url = line.split()[3].rstrip(",")
    assert line == f"maitred: engine on {url}, model: tiny\n"
    with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
        assert answer.status == 200
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = engine("--port", str(port))
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"maitred: error: --port: port {port} is in use")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scheduler", "sfj"), "did you mean 'sjf'?"),
        (("--latency", "linear:1,2"), "linear:5000,17.5,60"),
        (("--latency", "quadratic:1"), "linear"),
        (("--model", "llama-3.1-9b", "--hardware", "H100"), "did you mean 'llama-3.1-8b'?"),
        (("--output-tokens", "gamma:1,2"), "lognormal:MEAN,SD"),
        (("--speed", "0"), "speed must be a number above 0"),
    ],
)
def test_a_wrong_flag_is_one_line_that_says_what_is_right(arguments, said):
    process = engine("--port", "0", *arguments)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("maitred: error: ")
    assert said in err
    assert err.count("\n") == 1


def test_what_is_hardly_meant_is_said_before_it_serves():
    process = engine("--port", "0", "--scheduler", "lpm")
    warning, ready = process.stderr.readline(), process.stderr.readline()
    process.terminate()
    process.communicate(timeout=20)
    assert warning.startswith("maitred: warning: lpm orders by the prefix cache, which is off")
    assert ready.startswith("maitred: engine on http://")


def test_overheads_are_said_to_have_no_effect():
    process = engine("--port", "0", "--alpha-coeffs", "500,1,100", "--beta-coeffs", "5000,17.5,60")
    first, second = process.stderr.readline(), process.stderr.readline()
    process.terminate()
    process.communicate(timeout=20)
    assert first.startswith("maitred: warning: alpha (--alpha-coeffs) has no effect here")
    assert second.startswith("maitred: engine on ")
