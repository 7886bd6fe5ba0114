"""The entry point of `autotune` and `python -m autotune`."""

from __future__ import annotations

# Built in: to import `signal` takes 10 ms more, for its enums, in which Ctrl-C is a traceback.
import _signal as signal  # type: ignore[import-not-found]
import gc
import sys

COLLECTED_AFTER = 50_000
"""objects; from 700 on, as Python does, looking for cycles takes a sixth of a command over very many trials"""


def main() -> None:
    """Load the command line and run it. Until it is there a signal ends this at once: nothing is to be cleaned up."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from autotune.cli import main as command_line
    except (OSError, MemoryError, ImportError, RuntimeError) as error:
        from autotune.errors import what_the_machine_lacks

        lacking = what_the_machine_lacks(error)
        if lacking is None:
            raise
        sys.exit(f"autotune: {lacking}")
    gc.set_threshold(COLLECTED_AFTER)
    command_line()


if __name__ == "__main__":
    main()
