"""The command line's start, for `autotune` and `python -m autotune` alike."""

import os

BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What numpy's linear algebra looks at when it is loaded."""


def main() -> None:
    """Run the command line with single-threaded linear algebra, unless the user says otherwise.

    The search's matrices are small: on a machine that compiles meanwhile, two threads made a proposal six times slower.
    """
    for name in BLAS_THREADS:
        os.environ.setdefault(name, "1")
    from autotune.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
