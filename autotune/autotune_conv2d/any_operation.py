"""An operation on arrays of CuPy, PyTorch or PyCUDA, whatever the operation: sizes come from the arrays' shapes."""

from __future__ import annotations

from collections.abc import Mapping

from . import arrays
from .interface import ArrayShape, DeclaredProblem, Handle, Interface, InterfaceArray, Library

GIVEN = ("in", "weights", "inout")
"""Roles of the arrays that a caller has; all others are made where they are not given."""
WEIGHTS = ("weights",)
CALLED = ("in", "inout")
"""and of those, what is prepared once, and what comes with each pass"""
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
    given, sizes = _given(library.interface, GIVEN, positional, named)
    problem = _problem(library.interface, given, sizes)
    first = next(iter(given.values()))
    on = arrays.stream_address(stream, first)
    with arrays.on_device_of(first):
        addresses = _placed(library, problem, given, GIVEN, on)
        space = _space(library.workspace_bytes(problem), workspace, first, on)
        library.forward(problem, addresses, space.address, space.size_bytes, on)
    return _returned(library.interface, given)


class Prepared:
    """An operation with weights that were prepared once; call it with the other arrays that are read.

    It serves any run-time size. The weights may be changed or freed once its stream has reached the point where it
    was made.
    """

    def __init__(
        self, library: Library[DeclaredProblem], *positional: object, stream: object = None, **named: object
    ) -> None:
        """Prepare the weights given, by their place among the weights or by name.

        Sizes and words that their shapes do not say are given by name, or as further arrays of such shapes; the
        run-time size, by which the kernel is chosen, is 1 by default. Raises as `run`.
        """
        interface = library.interface
        given, sizes = _given(interface, WEIGHTS, positional, named)
        shapes = {name: arrays.view(array, name).shape for name, array in given.items()}
        if not any(interface.runtime in _axes(interface, name, sizes) for name in shapes):
            sizes.setdefault(interface.runtime, 1)
        problem = _problem(interface, given, sizes)
        first = next(iter(given.values()))
        on = arrays.stream_address(stream, first)
        with arrays.on_device_of(first):
            addresses = _placed(library, problem, given, WEIGHTS, on, made=False)
            self.handle = Handle(library, problem, addresses, on)
        self._library = library
        self._sizes = {name: value for name, value in problem.values.items() if name != interface.runtime}

    @property
    def kernel_name(self) -> str:
        """study.layer of the kernel that runs."""
        return self.handle.kernel_name

    def __call__(self, *positional: object, stream: object = None, workspace: object = None, **named: object) -> object:
        """Enqueue a pass on the arrays that are read and no weights; the outputs. As `run`, also in what it raises."""
        interface = self._library.interface
        given, sizes = _given(interface, CALLED, positional, named)
        problem = _problem(interface, given, {**self._sizes, **sizes})
        n = int(problem.values[interface.runtime])
        first = next(iter(given.values()))
        on = arrays.stream_address(stream, first)
        with arrays.on_device_of(first):
            addresses = _placed(self._library, problem, given, CALLED, on)
            space = _space(self.handle.workspace_bytes(n), workspace, first, on)
            self.handle.run(n, addresses, space.address, space.size_bytes, on)
        return _returned(interface, given)


def _given(
    interface: Interface, roles: tuple[str, ...], positional: tuple[object, ...], named: dict[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """Arrays by name, and what else is named. Raises TypeError where there is no array, or one too many."""
    expected = [array.name for array in interface.arrays if array.role in roles]
    takes = f"{interface.name} takes {', '.join(expected)}" + (" to be prepared" if roles == WEIGHTS else "")
    if len(positional) > len(expected):
        raise TypeError(f"{takes}; got {len(positional)} arrays")
    given = dict(zip(expected, positional, strict=False))
    names = {array.name for array in interface.arrays}
    given |= {name: array for name, array in named.items() if name in names}
    given = {name: array for name, array in given.items() if array is not None}
    if not given:
        raise TypeError(takes if expected else f"{interface.name} has no weights to be prepared; call run")
    return given, {name: value for name, value in named.items() if name not in names}


def _problem(interface: Interface, given: Mapping[str, object], sizes: Mapping[str, object]) -> DeclaredProblem:
    shapes = {name: arrays.view(array, name).shape for name, array in given.items()}
    dtypes = {name: arrays.dtype_of(array, name) for name, array in given.items()}
    return problem_of(interface, shapes, dtypes, sizes)  # type: ignore[arg-type]  # which it checks


def _axes(interface: Interface, name: str, named: Mapping[str, object]) -> tuple[str, ...]:
    layout = str(named.get("layout", interface.words.get("layout", ("",))[0]))
    return next(tuple(array.axes[layout]) for array in interface.arrays if array.name == name)


def _placed(
    library: Library[DeclaredProblem],
    problem: DeclaredProblem,
    given: dict[str, object],
    roles: tuple[str, ...],
    on: int,
    *,
    made: bool = True,
) -> dict[str, int]:
    """Addresses of arrays that are checked; of `roles` each must be given, and others but weights are made."""
    like = {arrays.dtype_of(array, name): array for name, array in reversed(given.items())}
    addresses = {}
    for declared in library.array_shapes(problem):
        if declared.name not in given:
            if declared.role in roles:
                raise ValueError(f"{declared.name}: missing")
            if declared.role in GIVEN or not made:
                continue
            if declared.dtype not in like:
                raise ValueError(f"{declared.name}: no array of {declared.dtype} to make another like; give it")
            given[declared.name] = arrays.empty_like(like[declared.dtype], declared.shape, on)
        view = arrays.view(given[declared.name], declared.name, declared.dtype)
        check(declared, view.shape)
        addresses[declared.name] = view.address
    return addresses


def _space(needed: int, workspace: object, like: object, on: int) -> arrays.View:
    """A workspace, made where one is needed and none given."""
    if needed and workspace is None:
        workspace = arrays.workspace_like(like, needed, on)
    return arrays.View(0, (), 0, None) if workspace is None else arrays.view(workspace, "workspace")


def _returned(interface: Interface, given: Mapping[str, object]) -> object:
    made = tuple(given[array.name] for array in interface.arrays if array.role in RETURNED and array.name in given)
    return made[0] if len(made) == 1 else made
