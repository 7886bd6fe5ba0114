"""`python -m autotune` is the command line."""

from autotune.cli import main

if __name__ == "__main__":
    main()
