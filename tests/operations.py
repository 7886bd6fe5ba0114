"""A small operation that does not come along, for what must hold of any."""

from __future__ import annotations

from pathlib import Path

DECLARATION = """runtime = "rows"

[sizes]
rows = { doc = "rows" }
columns = { doc = "columns" }
halo = { doc = "columns on both sides that are not scaled", default = 0, least = 0 }

[words]
dtype = ["f32", "f16"]

[derived]
inner = "columns - 2 * halo"

[rules]
"halo = ${halo} leaves nothing of ${columns} columns" = "inner > 0"

[[array]]
name = "x"
role = "in"
shape = ["rows", "columns"]
integers = [-2, 2]

[[array]]
name = "y"
role = "out"
shape = ["rows", "inner"]

[similarity]
factors = { columns = 1.0, rows = 0.1 }

[cost]
reduction = "1"
flops = "rows * inner"
"""


def declare(directory: Path, name: str = "scale", text: str = DECLARATION) -> Path:
    """The folder of an operation in a directory."""
    folder = directory / name
    folder.mkdir()
    (folder / "operation.toml").write_text(text)
    return folder
