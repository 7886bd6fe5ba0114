"""The command line. Only this package prints or exits."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, TextIO

import click

from autotune.cli.command_group import GroupedCommands
from autotune.cli.output import for_people, note
from autotune.errors import AutotuneError, StoreWarning, file_error
from autotune.tempdirs import removing_leftovers

_VERSION = "Show the versions of autotune, nvcc, the driver and the GPU."
_LINE = 4096  # maximum number of characters in an error message
_GROUPS = {
    "Tune": {
        "import-model": "studies",
        "new-op": "studies",
        "studies": "studies",
        "tune": "tune",
        "worker": "cluster",
        "compare": "tune",
        "ladder": "ladder",
        "dispatch": "dispatch",
        "fit-model": "fit_model",
    },
    "Inspect": {
        "best": "best",
        "report": "report",
        "why": "why",
        "trials": "trials",
        "show": "trials",
        "history": "trials",
        "importance": "importance",
        "diff": "diff",
        "query": "database",
        "profile": "profile",
    },
    "Export": {
        "export": "export",
        "source": "export",
    },
    "Maintain": {
        "doctor": "doctor",
        "devices": "devices",
        "templates": "templates",
        "check": "check",
        "stale": "retime",
        "retime": "retime",
        "merge": "database",
        "dump": "database",
        "load": "database",
        "clean": "database",
    },
}
"""The commands and their modules, in the order of `--help`."""
_MEASURING = {"tune", "compare", "ladder", "dispatch", "retime"}
"""Commands that store trials while they run."""
_OLD_NAMES = {
    "agent": "worker",
    "cache": "clean",
    "choose": "dispatch --explain",
    "pycuda": "doctor --build-pycuda",
    "quarantine": "clean",
    "accuracy": "`python -m tests.benchmarks.class_agreement STUDY` in a checkout does the same",
    "completion": 'add `eval "$(_AUTOTUNE_COMPLETE=bash_source autotune)"` to ~/.bashrc; docs/install.md has others',
    "export-t4": "`autotune trials --json` prints every trial, `autotune dump` the whole database",
    "import": "`python -m tests.benchmarks.replay FILE` in a checkout searches a space that another tool recorded",
    "replay": "`python -m tests.benchmarks.replay FILE` in a checkout does the same",
    "watch": "`autotune trials STUDY` and `autotune best STUDY` show a study while it is tuned",
    "sanitize": "`autotune export` runs the same sanitizers on every kernel that it writes",
    "optuna-study": "docs/search.md has the lines of Python that write an Optuna study",
}
"""Commands from earlier versions, each with the words that run instead until the next version, or with advice."""
_OLD_OPTIONS = {
    **dict.fromkeys(("--cubin", "--ptx"), "`cuobjdump` prints these texts of an export's `.fatbin` files"),
    "--by": "diff takes NAME@GENERATION for a study, and more of a device's name",
    "--gpu": "--device",
    "--prior": "--warm-start",
    "--stop-below": "--min-gain",
    "--template": "--family",
    "--templates": "--family-dir",
    **dict.fromkeys(
        ("--only-unsupported", "--unserved"),
        "`dispatch STUDY --explain` shows layers without a kernel; tune them by `--layer NAME`",
    ),
    "--verbose": "--db says which database is used",
    "-v": "--db says which database is used",
}
"""Options from earlier versions, each with the option that replaces it until the next version, or with advice."""


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from autotune.cli.doctor import show_version

        show_version(context)


@click.group(
    cls=GroupedCommands,
    groups=_GROUPS,
    old_names=_OLD_NAMES,
    old_options=_OLD_OPTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "AUTOTUNE"},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help=_VERSION)
@click.pass_context
def cli(context: click.Context) -> None:
    """Find the fastest CUDA kernel for each layer of your network, check it, and export it as a library.

    Jinja2 templates generate the kernels, Optuna searches their parameters, PyCUDA compiles and runs each one, a
    float64 reference checks it, and an SQLite database keeps every trial.
    """
    context.call_on_close(sys.stdout.flush)  # so that a closed pipe is noticed here, not when Python exits


def main() -> None:
    """Run the command line.

    The exit code is 0 for success, 1 for an AutotuneError (printed on one line), and 2 for wrong usage. After SIGHUP,
    SIGINT (Ctrl-C), SIGPIPE (a closed pipe) or SIGTERM, it is 128 plus the signal's number, as in a shell. `retime`
    exits with 3 if a winner regressed or failed.
    """
    with (
        for_people(),
        cleaning_up_on(signal.SIGHUP, signal.SIGINT, signal.SIGTERM) as end_where_a_signal_came,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("always", StoreWarning)
        warnings.showwarning = _note
        stdout = sys.stdout
        try:
            cli(prog_name="autotune")
        except AutotuneError as error:
            end_where_a_signal_came()
            _end(str(error))
        except OSError as error:
            end_where_a_signal_came()
            line = file_error(error)
            if line is None:
                raise
            _end(line)
        except RuntimeError:
            end_where_a_signal_came()
            raise
        except SystemExit as end:
            if end.code == 128 + signal.SIGTERM:
                kept = "; every measured trial is in the database" if _MEASURING.intersection(sys.argv) else ""
                note(f"autotune: ended by SIGTERM{kept}")
            if sys.stdout is not stdout:  # `autotune trials | head`: click hides the closed pipe and exits with 1
                sys.exit(128 + signal.SIGPIPE)
            raise


def _end(why: str) -> NoReturn:
    line = " ".join(why.splitlines())
    if len(line) > _LINE:  # a name from a file or a user may have any length
        line = f"{line[: _LINE * 3 // 4]} ... {line[-_LINE // 4 :]}"
    note(f"autotune: {line}")
    sys.exit(1)


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,
) -> None:
    """Print a warning about the results database as a one-line note, and any other warning in Python's own way."""
    if issubclass(category, StoreWarning):
        note(f"autotune: note: {message}")
    else:
        click.echo(warnings.formatwarning(message, category, filename, lineno, line), err=True, nl=False)


@contextmanager
def cleaning_up_on(*signals: signal.Signals) -> Iterator[Callable[[], None]]:
    """Raise SystemExit on the first of these signals, so that temporary folders are removed and workers end.

    Later signals are ignored, because they would interrupt the cleanup. The context manager yields a function that
    exits again if a signal has arrived. This is necessary because the exception may get lost: SQLite replaces
    exceptions in its callbacks with an error of its own, and Python 3.11 replaces an exception raised during the
    creation of a class with a RuntimeError.
    """
    ending: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        if not ending:
            ending.append(number)
            sys.exit(128 + number)

    def end_again() -> None:
        if ending:
            sys.exit(128 + ending[0])

    heeded = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
    previous = [(number, signal.signal(number, end)) for number in heeded]
    try:
        with removing_leftovers():
            yield end_again
    finally:
        for number, handler in previous:
            signal.signal(number, handler)
