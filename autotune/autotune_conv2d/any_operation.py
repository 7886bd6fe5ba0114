"""An operation on arrays of CuPy, PyTorch or PyCUDA, whatever the operation: sizes come from the arrays' shapes."""

from __future__ import annotations

from collections.abc import Mapping

from . import arrays
from .interface import ArrayShape, DeclaredProblem, Interface, InterfaceArray, Library

GIVEN = ("in", "weights", "inout")
"""Roles of the arrays that a caller has; all others are made where they are not given."""
RETURNED = ("out", "inout")


def problem_of(
    interface: Interface,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    named: Mapping[str, int | str],
) -> DeclaredProblem:
    """The problem of arrays with these shapes and dtypes; `named` are sizes and words that these do not say.

    Raises ValueError where two arrays disagree, and where a size is left open.
    """
    found: dict[str, int | str] = dict(named)
    layout = str(named.get("layout", interface.words.get("layout", ("",))[0]))
    for array in interface.arrays:
        if array.name not in shapes:
            continue
        if "dtype" not in found and (dtype := _problems_dtype(array, dtypes[array.name])):
            found["dtype"] = dtype
        axes = array.axes[layout]
        if len(axes) != len(shapes[array.name]):
            raise ValueError(f"{array.name}: has shape {shapes[array.name]}, expected [{', '.join(axes)}]")
        for axis, extent in zip(axes, shapes[array.name], strict=True):
            if any(size.name == axis for size in interface.sizes) and found.setdefault(axis, extent) != extent:
                raise ValueError(f"{array.name}: has shape {shapes[array.name]}, but {axis} is {found[axis]}")
    return interface.problem(found)


def _problems_dtype(array: InterfaceArray, dtype: str) -> str | None:
    """The problem's dtype that an array's says; None where that may be several."""
    saying = [word for word, stored in array.dtypes.items() if stored == dtype]
    return saying[0] if len(saying) == 1 else None


def check(declared: ArrayShape, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless an array has the shape that its problem gives it."""
    if shape != declared.shape:
        raise ValueError(f"{declared.name}: has shape {shape}, expected {declared.shape}")


def run(
    library: Library[DeclaredProblem],
    *positional: object,
    stream: object = None,
    workspace: object = None,
    **named: object,
) -> object:
    """Enqueue a pass on the arrays given, by their place among those that are read or by name; the outputs.

    Outputs that are not given are new arrays of the first one's kind; so is a workspace where one is needed. Sizes and
    words that no shape says are given by name. `stream` None: the one that is current for the first array. Raises
    LibraryError in the library's words, TypeError and ValueError for arrays that do not fit.
    """
    interface = library.interface
    read = [array.name for array in interface.arrays if array.role in GIVEN]
    if len(positional) > len(read):
        raise TypeError(f"{interface.name} takes {', '.join(read)}; got {len(positional)} arrays")
    given = dict(zip(read, positional, strict=False))
    names = {array.name for array in interface.arrays}
    given |= {name: named.pop(name) for name in list(named) if name in names}
    given = {name: array for name, array in given.items() if array is not None}
    if not given:
        raise TypeError(f"{interface.name} takes {', '.join(read)}")
    views = {name: arrays.view(array, name) for name, array in given.items()}
    dtypes = {name: arrays.dtype_of(array, name) for name, array in given.items()}
    shapes = {name: view.shape for name, view in views.items()}
    problem = problem_of(interface, shapes, dtypes, named)  # type: ignore[arg-type]  # which it checks
    first = next(iter(given.values()))
    on = arrays.stream_address(stream, first)
    with arrays.on_device_of(first):
        for declared in library.array_shapes(problem):
            if declared.name not in given:
                if declared.role in GIVEN:
                    raise ValueError(f"{declared.name}: missing")
                like = next((given[name] for name, dtype in dtypes.items() if dtype == declared.dtype), None)
                if like is None:
                    raise ValueError(f"{declared.name}: no array of {declared.dtype} to make another like; give it")
                given[declared.name] = arrays.empty_like(like, declared.shape, on)
                views[declared.name] = arrays.view(given[declared.name], declared.name)
            view = arrays.view(given[declared.name], declared.name, declared.dtype)
            check(declared, view.shape)
        needed = library.workspace_bytes(problem)
        if needed and workspace is None:
            workspace = arrays.workspace_like(first, needed, on)
        space = arrays.View(0, (), 0, None) if workspace is None else arrays.view(workspace, "workspace")
        addresses = {name: view.address for name, view in views.items()}
        library.forward(problem, addresses, space.address, space.size_bytes, on)
    made = tuple(given[array.name] for array in interface.arrays if array.role in RETURNED and array.name in given)
    return made[0] if len(made) == 1 else made
