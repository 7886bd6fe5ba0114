"""The Python package of an export: conv2d's own, or for any other operation the part of it that knows none."""

from __future__ import annotations

from pathlib import Path

from autotune import autotune_conv2d
from autotune.errors import StoreError
from autotune.exporting.operation_view import OperationView
from autotune.family.render import render_words
from autotune.measurement.exported import interface_of
from autotune.operation import Operation
from autotune.operations import CONV2D
from autotune.reading import read_text
from autotune.shipped import shipped

ANY_OPERATION = ("any_operation.py", "arrays.py", "dlpack.py", "interface.py", "torch_any.py", "torch_runtime.py")
"""Modules of conv2d's package that know no operation."""
_OF_CONV2D = """\
From Python, with `python` on the path: `autotune_conv2d.Conv2d` on arrays of PyCUDA, CuPy or PyTorch, and
`autotune_conv2d.torch_convert.convert`, which puts the kernels in the place of a PyTorch network's own convolutions
where they are faster."""
_OF_ANY = """\
From Python, with `python` on the path: `autotune_conv2d.run` on arrays of CuPy, PyTorch or PyCUDA, and
`autotune_conv2d.torch_operator()`, an operator for PyTorch with a schema and a fake kernel."""


def named(text: str, declared: Operation) -> str:
    """A text of the export's templates, which say conv2d where an operation's name belongs, with the name there."""
    return text.replace(CONV2D, declared.name).replace(CONV2D.upper(), declared.name.upper())


def text_of(path: Path) -> str:
    """A file of an export's templates. Raises StoreError."""
    return read_text(path, StoreError)


def package_texts(declared: Operation, view: OperationView) -> dict[str, str]:
    """The package's files by path."""
    package = Path(autotune_conv2d.__file__).parent
    if declared.name == CONV2D:
        return {f"python/{package.name}/{path.name}": text_of(path) for path in sorted(package.glob("*.py"))}
    into = f"python/{named(package.name, declared)}"
    texts = {f"{into}/{name}": text_of(package / name) for name in ANY_OPERATION}
    template = shipped("templates") / "export" / "package.py.j2"
    values = {"operation": view, "interface": repr(interface_of(declared))}
    return texts | {f"{into}/__init__.py": render_words(text_of(template), values, template.name)}


def package_words(declared: Operation) -> str:
    """What the folder's README says of it."""
    return _OF_CONV2D if declared.name == CONV2D else named(_OF_ANY, declared)
