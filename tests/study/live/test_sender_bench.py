"""bench/sender.py runs, on few requests."""

import runpy
import sys
from pathlib import Path


def test_it_measures_the_sender_beside_a_bare_client(monkeypatch, capsys):
    script = Path(__file__).parents[3] / "bench" / "sender.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--requests", "8", "--events", "3", "--rate", "40", "--secs", "0.2"])
    measured = runpy.run_path(str(script))
    monkeypatch.setitem(measured["main"].__globals__, "ROUNDS", 1)
    measured["main"]()
    assert "beyond it" in capsys.readouterr().out
