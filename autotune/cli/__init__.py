"""The command line. The only place that prints or exits."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import NoReturn, TextIO

import click

from autotune.cli.accuracy import accuracy
from autotune.cli.answers import query, trials
from autotune.cli.best import best
from autotune.cli.changes import diff, history
from autotune.cli.check import check
from autotune.cli.choose import choose
from autotune.cli.cluster import agent
from autotune.cli.completion import completion
from autotune.cli.devices import devices
from autotune.cli.dispatch import dispatch
from autotune.cli.doctor import doctor, show_version
from autotune.cli.export import export
from autotune.cli.families import templates
from autotune.cli.freshness import retime, stale
from autotune.cli.grouped import GroupedCommands
from autotune.cli.import_model import import_model
from autotune.cli.importance import importance
from autotune.cli.interrupts import cleaning_up_on
from autotune.cli.ladder import ladder
from autotune.cli.new_op import new_op
from autotune.cli.optuna_study import optuna_study
from autotune.cli.profile import profile
from autotune.cli.replay import replay
from autotune.cli.report import report
from autotune.cli.sanitize import sanitize
from autotune.cli.show import show_trial
from autotune.cli.source import source
from autotune.cli.streams import cannot_be_written, for_people
from autotune.cli.studies import studies
from autotune.cli.transfer import dump, export_t4, import_, load, merge
from autotune.cli.tune import compare, tune
from autotune.cli.upkeep import cache, quarantine
from autotune.cli.watch import watch
from autotune.cli.why import why
from autotune.errors import AutotuneError, StoreWarning, what_the_machine_lacks

_VERSION = "Show the version, and those of nvcc, driver and GPU."
_GROUPS = {
    "Tune": (import_model, new_op, studies, tune, watch, agent, compare, ladder, dispatch, replay),
    "Ask": (best, report, why, trials, show_trial, history, importance, diff, choose, query, accuracy, profile),
    "Ship": (export, source, export_t4, optuna_study),
    "Look after": (
        *(doctor, devices, templates, check, sanitize, stale, retime),
        *(merge, dump, load, import_, cache, quarantine, completion),
    ),
}


@click.group(cls=GroupedCommands, groups=_GROUPS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help=_VERSION)
@click.pass_context
def cli(context: click.Context) -> None:
    """Tune generated CUDA kernels for convolution layers, keep every trial, export the best."""
    context.call_on_close(sys.stdout.flush)  # a reader that went away is noticed here, not when Python itself ends


def main() -> None:
    """Run the command line: exit 0, 1 for an AutotuneError (one line), 2 for wrong usage, 128 and more for signals.

    Those are SIGHUP, SIGINT (Ctrl-C), a closed pipe (SIGPIPE) and SIGTERM, numbered as a shell does. `retime` ends with
    3 where a winner is not what it was.
    """
    with for_people(), cleaning_up_on(signal.SIGHUP, signal.SIGINT, signal.SIGTERM), warnings.catch_warnings():
        warnings.simplefilter("always", StoreWarning)
        warnings.showwarning = _note
        stdout = sys.stdout
        try:
            cli(prog_name="autotune")
        except AutotuneError as error:
            _end(str(error))
        except (OSError, MemoryError, ImportError, RuntimeError) as error:
            if isinstance(error, OSError) and error.filename is None and cannot_be_written(stdout):
                _end(f"standard output: cannot be written: {error.strerror}")
            lacking = what_the_machine_lacks(error)
            if lacking is None:
                raise
            _end(lacking)
        except SystemExit:
            if sys.stdout is not stdout:  # `autotune trials | head`: click silences it and exits with 1
                sys.exit(128 + signal.SIGPIPE)
            raise


def _end(why: str) -> NoReturn:
    click.echo(f"autotune: {' '.join(why.splitlines())}", err=True)
    sys.exit(1)


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,
) -> None:
    """Print a note about the results database as one line, any other warning as Python does."""
    if issubclass(category, StoreWarning):
        click.echo(f"autotune: note: {message}", err=True)
    else:
        click.echo(warnings.formatwarning(message, category, filename, lineno, line), err=True, nl=False)
