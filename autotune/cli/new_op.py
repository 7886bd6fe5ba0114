"""`new-op`: a folder to begin an operation of one's own in."""

from __future__ import annotations

import click


@click.command("new-op")
@click.argument("name")
def new_op(name: str) -> None:
    """Create a small working operation to start your own from.

    It writes a folder NAME and a study of it. The folder has the operation's declaration (operation.toml), its
    reference implementation (reference.py) and one kernel family. docs/your-kernel.md explains the next steps.
    """
    from autotune.api.starter import new_operation

    for path in new_operation(name):
        click.echo(str(path))
    click.echo(f"autotune check {name}/{name}.cu.j2\nautotune tune {name}.toml", err=True)
