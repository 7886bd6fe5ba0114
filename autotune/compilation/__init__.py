"""What turns a program into a binary: compilers found, run, and their results kept."""
