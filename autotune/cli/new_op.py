"""`new-op`: a folder to begin an operation of one's own in."""

from __future__ import annotations

import click


@click.command("new-op")
@click.argument("name")
def new_op(name: str) -> None:
    """Write a small operation that works, to be made your own.

    A folder NAME, and a study of it. The folder has what is no kernel (operation.toml), the reference that kernels are
    held against (reference.py) and a kernel family; docs/your-kernel.md leads on from there.
    """
    from autotune.api.starter import new_operation

    for path in new_operation(name):
        click.echo(str(path))
    click.echo(f"autotune check {name}/{name}.cu.j2\nautotune tune {name}.toml", err=True)
