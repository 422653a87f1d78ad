"""The short help of commands with many flags, and errors about flags in our own words.

`maitred COMMAND --help` shows the flags that most runs need, `--help-all` all of them. A command that is not in `USUAL_FLAGS`
has few flags and shows all at once.

The library that parses the command line words its errors for programmers ("'x' is not a valid float"). `in_our_words` says what
is wrong, where, and what would be right, as all other errors do:

    Invalid value for '--rate': 'x' is not a valid float.    ->    --rate takes a number

It also cuts the names of a flag that has several, and shows types of Python (`<bool>`); `WholeHelp` does neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from typer.core import TyperArgument, TyperCommand

ALL_HELP: Final = "--help-all"
_WORKLOAD: Final = (
    "--trace",
    "--workload-spec",
    "--rate",
    "--num-requests",
    "--input-tokens",
    "--output-tokens",
    "--class-mix",
)
_INSTANCE: Final = ("--hardware", "--tensor-parallel-size", "--latency-model", "--scheduler", "--max-num-seqs")
USUAL_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "simulate": (
        *(*_WORKLOAD, "--num-instances", "--routing-policy", "--config", "--admission", "--capacity", "--model", *_INSTANCE),
        *("--enable-prefix-caching", "--max-num-batched-tokens", "--flavour", "--slo-ttft-ms", "--slo-tpot-ms", "--seed"),
        *("--per", "--report", "--plot", "--results-path", "--metrics-path", "--json", "--quiet"),
    ),
    "bench": (
        *(*_WORKLOAD, "--base-url", "--endpoint", "--model", "--concurrency", "--max-concurrency", "--num-warmups"),
        *("--predict", "--no-stream", "--no-ignore-eos", "--seed", "--per", "--report", "--results-path", "--trace-output"),
        *("--json", "--quiet"),
    ),
    "capacity": (
        *(*_WORKLOAD, "--config", "--model", "--hardware", "--tensor-parallel-size", "--num-instances", "--price"),
        *("--constraint", "--tolerance", "--seeds", "--jobs", "--plot", "--json", "--slo-ttft-ms", "--slo-tpot-ms"),
    ),
    "compare": (*_WORKLOAD, "--seeds", "--metric", "--jobs", "--json", "--slo-ttft-ms", "--slo-tpot-ms"),
    "serve": (
        *("--backend", "--slots-per-backend", "--routing-policy", "--host", "--port", "--config", "--admission"),
        *("--admission-config", "--api-key", "--tenant-api-key", "--decision-log", "--record"),
    ),
    "scheduler": (
        *("--listen", "--ext-proc", "--pages-host", "--pages-port", "--election", "--lease-secs", "--name"),
        *("--link-secret-file", "--backend", "--discover", "--slots-per-backend", "--routing-policy", "--config"),
        *("--admission", "--admission-config", "--decision-log"),
    ),
    "engine": ("--port", "--host", "--model", "--output-tokens", "--speed", "--config", *_INSTANCE, "--enable-prefix-caching"),
}
"""The flags in the short help, by command and each by its first name."""

_NAMES: Final = r"'?(?P<name>[^'\s]+?)(?:\.\.\.)?'?(?: / '[^']+')*"
"""A flag by its names, of which the first one counts."""
_VALUE: Final = rf"Invalid value(?: for {_NAMES})?: "
_WORDINGS: Final[tuple[tuple[str, str], ...]] = (
    (
        rf"No such option:? {_NAMES}\.?(?:\s*\(?(?:Possible options:|Did you mean) (?P<near>.*?)\)?\??)?",
        r"unknown flag \g<name>",
    ),
    (rf"No such command {_NAMES}\.?(?:\s*\(?Did you mean (?P<near>.*?)\)?\??)?", r"unknown command '\g<name>'"),
    (rf"Option {_NAMES} requires an argument\.?", r"\g<name>: a value is missing"),
    (rf"Option {_NAMES} does not take a value\.?", r"\g<name> takes no value"),
    (r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)\.?", r"\1: this is more than the command takes"),
    (rf"Missing (?:argument|option|parameter):? {_NAMES}\.?(?: .*)?", r"\g<name> is missing"),
    (rf"{_VALUE}(?:.* is not a valid integer|Input should be a valid integer).*", r"\g<name> takes a whole number"),
    (rf"{_VALUE}(?:.* is not a valid float|Input should be a valid number).*", r"\g<name> takes a number"),
    (rf"{_VALUE}.* is not in the range x>=(\S+?)\.?", r"\g<name> must be at least \2"),
    (rf"{_VALUE}Input should be greater than or equal to (\S+?)\.?", r"\g<name> must be at least \2"),
)
"""Texts of the library in its versions, and ours."""


class WholeHelp(TyperCommand):
    """A command whose help has all names of a flag, and no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, as the help shows them."""
        return without_types(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        wrap_names()
        super().format_help(ctx, formatter)


def without_types(parameters: list[Any]) -> list[Any]:
    """Return these parameters so that the help shows what stands for their value in our words, or nothing."""
    for each in parameters:
        if isinstance(each, TyperArgument):
            each.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        elif each.is_flag and each.metavar is None:
            each.metavar = ""
    return parameters


@cache
def wrap_names() -> None:
    """Let the names of a flag and long words take several lines in the help."""
    from typer import rich_utils

    highlighted = rich_utils.highlighter

    def wrapped(shown: Any) -> Any:
        text = highlighted(shown.replace(",--", ", --") if isinstance(shown, str) else shown)
        text.overflow = "fold"
        return text

    rich_utils.highlighter = wrapped  # type: ignore[assignment]


def in_our_words(message: str) -> str:
    """Return an error of the library that parses the command line in our words, or as it is if it is not known."""
    message = " ".join(message.split())
    for theirs, ours in _WORDINGS:
        found = re.fullmatch(theirs, message)
        if found:
            near = found.groupdict().get("near")
            return found.expand(ours) + (f" (did you mean {near}?)" if near else "")
    return message.rstrip(".")
