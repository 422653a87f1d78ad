"""The help of every command, its defaults, its second names, and errors about flags in our own words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from maitred.cli.app import _COMMANDS, command_named
from maitred.cli.usage import USUAL_FLAGS, in_our_words


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_flag_says_its_default(name: str) -> None:
    flags = [each for each in command_named(name).params if each.param_type_name == "option"]
    assert [flag.opts[0] for flag in flags if "Default: " not in flag.help] == []


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_help_has_every_name_whole_in_80_columns_and_no_types_of_python(
    name: str, maitred: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = maitred(name, "--help-all").out
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert not re.search(r"<(bool|str|int|float)", text)


@pytest.mark.parametrize("name", USUAL_FLAGS)
def test_the_usual_flags_exist_and_are_few(name: str) -> None:
    known = {each.opts[0] for each in command_named(name).params}
    assert set(USUAL_FLAGS[name]) <= known
    assert len(USUAL_FLAGS[name]) < 0.6 * len(known)


def test_the_short_help_has_the_usual_flags_and_says_where_the_others_are(maitred: Any) -> None:
    short, whole = maitred("simulate", "--help").out, maitred("simulate", "--help-all").out
    assert "--num-requests" in short
    assert "--pd-decider" not in short
    assert "maitred simulate --help-all" in short
    assert "--pd-decider" in whole
    assert "--help-all" not in whole


def test_hidden_flags_work_all_the_same(maitred: Any) -> None:
    assert "--step-by-step" not in maitred("simulate", "--help").out
    assert maitred("simulate", "--rate", 9, "--num-requests", 3, "--step-by-step", "--quiet").code == 0


def test_a_command_with_few_flags_shows_them_all(maitred: Any) -> None:
    assert "--ray" in maitred("sweep", "--help").out
    assert "--help-all" not in maitred("sweep", "--help").out


RUN = ("--num-requests", "20", "--input-tokens", "50", "--output-tokens", "9")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (("--rate", 9), ("--request-rate", 9)),
        (("--rate", 9, "--block-size-in-tokens", 32), ("--rate", 9, "--block-size", 32)),
        (("--rate", 9, "--total-kv-blocks", 99), ("--rate", 9, "--num-gpu-blocks-override", 99)),
        (("--rate", 9, "--arrival", "gamma:2"), ("--rate", 9, "--burstiness", 0.25)),
        (("--rate", 9, "--arrival", "poisson"), ("--rate", 9, "--burstiness", 1)),
        (("--rate", 9, "--model", "llama-3.1-8b", "--tp", 2), ("--rate", 9, "--model", "llama-3.1-8b", "-tp", 2)),
    ],
)
def test_flags_of_vllm_mean_what_ours_mean(maitred: Any, ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    said = maitred("simulate", *ours, *RUN)
    assert said.code == 0
    assert maitred("simulate", *theirs, "--num-prompts", 20, *RUN[2:]).out == said.out


def test_burstiness_changes_the_arrivals(maitred: Any) -> None:
    assert maitred("simulate", "--rate", 9, *RUN, "--burstiness", 0.1).out != maitred("simulate", "--rate", 9, *RUN).out


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--burstiness", 2, "--arrival", "poisson"), "--burstiness does not go with --arrival"),
        (("--burstiness", 0), "--burstiness: 0 cannot be used"),
    ],
)
def test_a_burstiness_that_cannot_be(maitred: Any, flags: tuple[Any, ...], problem: str) -> None:
    result = maitred("simulate", "--rate", 9, *RUN, *flags)
    assert result.code == 2
    assert problem in result.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("simulate", "--rat", 3), "unknown flag --rat (did you mean"),
        (("simulate", "--rate", "x"), "--rate takes a number; see"),
        (("simulate", "--num-requests", "1.5"), "--num-requests takes a whole number; see"),
        (("simulate", "--rate"), "--rate: a value is missing; see"),
        (("simulate", "--quiet=3"), "--quiet takes no value; see"),
        (("simulate", "trace.csv"), "trace.csv: this is more than the command takes; see"),
        (("sirve",), "unknown command 'sirve' (did you mean"),
        (("models", "--tp", 0), "--tensor-parallel-size must be at least 1; see"),
        (("convert",), "IN is missing; see"),
    ],
)
def test_a_mistake_in_a_flag_is_told_in_our_words(maitred: Any, arguments: tuple[Any, ...], problem: str) -> None:
    result = maitred(*arguments)
    assert result.code == 2
    assert result.err.startswith(f"maitred: error: {problem}")


def test_a_model_alone_runs_and_says_what(maitred: Any) -> None:
    result = maitred("simulate", "--model", "llama-3.1-8b", "--num-instances", 2)
    assert result.code == 0
    assert "note: no workload is given, so it is --rate 32 --num-requests 1000" in result.err
    assert "llama-3.1-8b on 2 instances of 1 × H100" in result.out
    assert "within SLO           100.0%" in result.out
    given = maitred("simulate", "--model", "llama-3.1-8b", "--num-instances", 2, "--rate", 32, "--num-requests", 1000)
    assert given.out == result.out
    assert "note" not in given.err


def test_without_a_model_a_workload_is_needed(maitred: Any) -> None:
    assert "there is no workload" in maitred("simulate").err
    assert "--rate is missing" in maitred("simulate", "--model", "llama-3.1-8b", "--num-requests", 5).err


@pytest.mark.parametrize("flag", [("--json",), ("--metrics-path", "-"), ("--metrics-path", "/dev/stdout")])
def test_figures_are_printed_as_json(maitred: Any, flag: tuple[str, ...]) -> None:
    result = maitred("simulate", "--rate", 9, *RUN, *flag, *(["--quiet"] if flag[-1] == "/dev/stdout" else []))
    figures = json.loads(result.out)
    assert figures["completed_requests"] == 20
    assert figures["simulated"].startswith("generic linear model, no particular GPU")


def test_two_places_for_the_figures_are_a_mistake(maitred: Any) -> None:
    result = maitred("simulate", "--rate", 9, *RUN, "--json", "--metrics-path", "m.json")
    assert result.code == 2
    assert "--json does not go with --metrics-path" in result.err


def test_older_versions_of_the_library_are_translated_too() -> None:
    assert in_our_words("Invalid value for '--rate': 'x' is not a valid float.") == "--rate takes a number"
    assert in_our_words("Invalid value for '--tp': 0 is not in the range x>=1.") == "--tp must be at least 1"
    assert in_our_words("No such option: --prot Did you mean --port?") == "unknown flag --prot (did you mean --port?)"


def offered(maitred: Any, *words: str) -> list[str]:
    """Return what bash is offered for the last of these words."""
    shell = {"_MAITRED_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    result = maitred(env=shell)
    assert result.code == 0
    return result.out.split()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("maitred", "cap"), {"capacity"}),
        (("maitred", "simulate", "--num-inst"), {"--num-instances"}),
        (("maitred", "simulate", "--pd-dec"), {"--pd-decider"}),
        (("maitred", "simulate", "--hardware", "H"), {"H100", "H200", "H20"}),
        (("maitred", "simulate", "--model", "mixtral"), {"mixtral-8x7b"}),
        (("maitred", "simulate", "--scheduler", "aged"), {"aged-sjf"}),
        (("maitred", "simulate", "--admission", "p"), {"priority"}),
        (("maitred", "capacity", "--hardware", "MI"), {"MI300X", "MI325X"}),
        (("maitred", "simulate", "--config", "x"), set()),
    ],
)
def test_a_shell_completes_commands_flags_and_names(maitred: Any, words: tuple[str, ...], expected: set[str]) -> None:
    assert set(offered(maitred, *words)) == expected


def test_ctrl_c_while_the_commands_are_imported_ends_without_a_traceback() -> None:
    """The first import of typer is when SIGINT comes, some hundred milliseconds before any command runs."""
    code = """
import signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "typer": signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
from maitred.cli import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "--rate", "1", "--num-requests", "1", "--model", "a" * 300],
        ["calibrate", "a" * 300],
        ["sweep", "a" * 300],
        ["bench", "http://127.0.0.1:9", "--tokenizer", "a" * 300],
    ],
    ids=["a model", "measurements", "a study", "a tokenizer"],
)
def test_a_path_at_which_nothing_can_be_looked_up_is_named(maitred: Any, command: list[str]) -> None:
    """As a path in a folder that another user may not read, which raises PermissionError where root finds nothing."""
    result = maitred(*command)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "aaa...: file name too long" in result.err or "aaa: file name too long" in result.err


def test_an_error_repeats_no_name_of_thousands_of_characters(maitred: Any) -> None:
    result = maitred("simulate", "--rate", "1", "--num-requests", "1", "--scheduler", "fcf" * 10_000)
    assert (result.code, len(result.err) < 3_000, result.err.count("\n")) == (2, True, 1)
    assert "unknown scheduler 'fcffcf" in result.err
