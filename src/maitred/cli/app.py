"""The commands, and how they end.

The parameters of a command's function are its flags, and its docstring is its help (see `flags`); `_COMMANDS` says where each
command is. Only typer and the standard library are imported at the top of these modules. What a command needs is imported
inside its function, so that `maitred --help` does not import an HTTP server.

A mistake of the user ends with one line on stderr and exit code 2, and so does output that cannot be written (a full disk).
Ctrl-C ends with 130. If the reader of the output is gone (`| head`), the command ends with 1 and prints nothing, as typer and
rich do. A character that the encoding of the terminal does not have is printed as `?`. Any other exception is a defect of
maitred and shows its traceback.
"""

from __future__ import annotations

import errno
import inspect
import io
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, Final, NoReturn, cast

import typer
from typer.core import TyperGroup

from maitred import __version__, is_compiled
from maitred.cli import (
    INTERRUPTED,
    bench,
    calibration,
    check,
    demo,
    engine,
    envoy_config,
    listings,
    replay,
    scheduler,
    serve,
    simulate,
    study,
    traces,
    tune,
    validation,
    verify,
    why,
)
from maitred.cli.flags import Command, documented
from maitred.cli.smg_flags import spread_values
from maitred.cli.usage import ALL_HELP, USUAL_FLAGS, WholeHelp, in_our_words, without_types
from maitred.core.environment import PREFIX
from maitred.core.errors import MaitredError, describe_os_error, quote
from maitred.core.printing import printable

USER_ERROR: Final = 2
NO_READER: Final = 141  # 128 + SIGPIPE; 1 would say of a verify that a decision differs
CANNOT_WRITE: Final = {errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC}

_COMMANDS: Final[Mapping[str, Command[Any] | Callable[..., None]]] = {
    "serve": serve.run,
    "scheduler": scheduler.run,
    "envoy-config": envoy_config.run,
    "engine": engine.run,
    "simulate": simulate.run,
    "compare": study.compare,
    "sweep": study.sweep,
    "capacity": study.capacity,
    "bench": bench.run,
    "demo": demo.run,
    "convert": traces.convert,
    "formats": listings.formats,
    "policies": listings.policies,
    "models": listings.models,
    "check": check.run,
    "calibrate": calibration.calibrate,
    "validate": validation.validate,
    "verify": verify.verify,
    "why": why.why,
    "tune": tune.tune,
    "replay": replay.replay,
}


_READ_VARIABLES: Final = frozenset(
    ("serve", "scheduler", "envoy-config", "engine", "simulate", "compare", "sweep", "capacity", "bench", "check", "replay")
)


class _LazyCommands(TyperGroup):
    """The list of commands. Only the command that is called gets its flags, because these import what they describe."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        if name in ("serve", "scheduler"):
            rest = spread_values(rest)
        if name in _READ_VARIABLES and not ctx.resilient_parsing:
            _warn_of_variables()
        if ALL_HELP in rest:
            return name, command_named(str(name)), ["--help"]
        # A shell that completes a word is to see hidden flags, too.
        return name, command_named(str(name), in_short=not ctx.resilient_parsing), rest


def _warn_of_variables() -> None:
    """Print a warning for each variable of the environment that was probably meant to configure something."""
    if any(name.startswith(PREFIX) for name in os.environ):
        from maitred.config.merged import variable_warnings
        from maitred.config.root import Config

        for warning in variable_warnings(Config, os.environ):
            typer.echo(f"maitred: warning: {printable(warning)}", err=True)


@lru_cache
def command_named(name: str, *, in_short: bool = False) -> Any:
    """Return the command `name` as typer makes it. `in_short` hides all but the usual flags from its help."""
    run = _COMMANDS[name]
    shown = USUAL_FLAGS.get(name, ()) if in_short else ()
    single = _typer(add_completion=False)
    documented_run = documented(run.callback() if isinstance(run, Command) else run, shown)
    epilog = f"These are the usual flags. All: maitred {name} {ALL_HELP}" if shown else None
    single.command(name, cls=WholeHelp, help=_help(run), epilog=epilog)(documented_run)
    return typer.main.get_command(single)


def _help(run: object) -> str:
    """Return the docstring of a command with its paragraphs in one line each, which the terminal wraps."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (inspect.getdoc(run) or "").split("\n\n"))


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, **settings)


def _listed() -> None:
    """Stand for a command in the list of all."""


app = _typer(name="maitred", cls=_LazyCommands, add_completion=True)
for _name, _run in _COMMANDS.items():
    app.command(_name, help=_help(_run))(_listed)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"maitred {__version__} ({'compiled' if is_compiled() else 'interpreted'})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _maitred(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", metavar="", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """One scheduling stack for LLM serving: gateway, emulated engine and simulator."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@lru_cache
def _all_commands() -> Any:
    return typer.main.get_command(app)


# Depending on its version, typer contains click or uses the installed one; this finds UsageError in both.
_USAGE_ERROR: Final = cast(type[Exception], typer.BadParameter.__mro__[1])


def run() -> NoReturn:
    """Run the command line of this process, and end it. Always raises SystemExit."""
    _tolerate_output()
    try:
        code = _all_commands().main(prog_name="maitred", standalone_mode=False)
        sys.stdout.flush()
    except MaitredError as error:
        code = complain(str(error))
    except _USAGE_ERROR as error:
        code = complain(_usage(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (BrokenPipeError, SystemExit) as end:  # typer itself exits with 1 for what it prints
        if not isinstance(end, BrokenPipeError) and not isinstance(end.__context__, BrokenPipeError):
            raise
        code = NO_READER
        _discard_output()
    except OSError as error:
        if (
            error.filename is not None
        ):  # Nothing else raises these: a path that may not be looked at, or is too long for a name.
            sys.exit(complain(f"{quote(error.filename)}: {describe_os_error(error)}"))
        if error.errno not in CANNOT_WRITE:
            raise
        _discard_output()
        code = complain(f"cannot write the output: {os.strerror(error.errno)}")
    sys.exit(code if isinstance(code, int) else 0)


def complain(message: str) -> int:
    """Print what is wrong, in one line on stderr. Returns the exit code for it."""
    with suppress(OSError):  # stderr cannot be written either
        typer.echo(f"maitred: error: {printable(' '.join(message.split()))}", err=True)
    return USER_ERROR


def _usage(error: BaseException) -> str:
    context: typer.Context | None = getattr(error, "ctx", None)
    message: str = error.format_message() if hasattr(error, "format_message") else str(error)
    command = context.command_path if context else "maitred"
    return f"{in_our_words(message)}; see {command} --help"


def _tolerate_output() -> None:
    """Discard output to a closed descriptor (`>&-`), and replace characters that the encoding does not have."""
    sys.stdout = sys.stdout or _null_stream()
    sys.stderr = sys.stderr or _null_stream()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _null_stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(os.open(os.devnull, os.O_WRONLY), "w"), encoding="utf-8")


def _discard_output() -> None:
    """Discard buffered output: it cannot be written either, and the interpreter would report that when it flushes at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
