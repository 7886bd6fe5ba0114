"""The entry point of `autotune` and `python -m autotune`."""

from __future__ import annotations

# The built-in module: importing `signal` takes another 10 ms, during which Ctrl-C prints a traceback.
import _signal as signal  # type: ignore[import-not-found]
import gc

COLLECTED_AFTER = 50_000
"""Number of objects allocated between two garbage collections. With Python's default of 700, commands that handle very
many trials spend a sixth of their time collecting garbage.
"""


def main() -> None:
    """Load the command line and run it. Until it is loaded, Ctrl-C ends the process immediately."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from autotune.cli import main as command_line

    gc.set_threshold(COLLECTED_AFTER)
    command_line()


if __name__ == "__main__":
    main()
