"""What `autotune` and `python -m autotune` start."""

from __future__ import annotations

import signal
import sys


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
    command_line()


if __name__ == "__main__":
    main()
