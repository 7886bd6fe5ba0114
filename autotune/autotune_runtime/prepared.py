"""Run an operation on CuPy, PyTorch or PyCUDA arrays: derive the problem from their shapes and create the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from . import arrays
from .arrays import View
from .interface import SCALAR, DeclaredProblem, Enqueue, Handle, Interface, InterfaceArray, Library, Number

GIVEN = ("in", "weights", "inout")
"""Roles of the arrays that the caller must pass. Missing arrays with other roles are created."""
WEIGHTS = ("weights",)
CALLED = ("in", "inout")
"""`WEIGHTS` are the roles of arrays that are prepared once, `CALLED` the roles of the arrays that each pass takes.
Scalars are passed by name with each pass."""
RETURNED = ("out", "inout")


Made: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Arrays to create: (name, name of a given array of the same library and dtype, shape)."""


def problem_of(
    interface: Interface,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    named: Mapping[str, int | str],
    axes_of: Callable[[InterfaceArray], tuple[str, ...]] | None = None,
) -> DeclaredProblem:
    """Return the problem of arrays with these shapes and dtypes. `named` contains all other sizes and words.

    `axes_of` returns an array's axes in the order of its shape; None means the order in which the problem's layout
    stores them. Raises ValueError if two arrays disagree, or if a size is missing.
    """
    values: dict[str, int | str] = dict(named)
    layout = str(named.get("layout", interface.words.get("layout", ("",))[0]))
    for array in interface.arrays:
        if array.name not in shapes:
            continue
        if array.type_word not in values and (dtype := _problems_dtype(array, dtypes[array.name])):
            values[array.type_word] = dtype
        axes = array.axes[layout] if axes_of is None else axes_of(array)
        if len(axes) != len(shapes[array.name]):
            raise ValueError(f"{array.name}: has shape {shapes[array.name]}, expected [{', '.join(axes)}]")
        for axis, extent in zip(axes, shapes[array.name], strict=True):
            if any(size.name == axis for size in interface.sizes) and values.setdefault(axis, extent) != extent:
                raise ValueError(f"{array.name}: has shape {shapes[array.name]}, but {axis} is {values[axis]}")
    return interface.problem(values)


def _problems_dtype(array: InterfaceArray, dtype: str) -> str | None:
    """Return the problem's dtype word, given an array's dtype, or None if several words are possible."""
    words = [word for word, stored in array.dtypes.items() if stored == dtype]
    return words[0] if len(words) == 1 else None


def run(
    library: Library,
    *positional: object,
    stream: object = None,
    workspace: object = None,
    **named: object,
) -> object:
    """Enqueue a pass on the given arrays and return the outputs.

    Pass input arrays by position or by name, and sizes and words that no shape determines by name. The workspace, and
    any outputs that you don't pass, are created with the first array's library and device. If `stream` is None, it is
    the current stream of the first array's library. Raises LibraryError with the library's message, and TypeError or
    ValueError for arrays that don't match.
    """
    scalars = scalars_of(library.interface, named)
    given, sizes = _Takes(library.interface, GIVEN).given(positional, named)
    views = {name: arrays.view(array, name) for name, array in given.items()}
    problem = _problem(library.interface, views, sizes)
    with arrays.on_device_of(next(iter(given.values()))):
        made = _made(library, problem, views, GIVEN)
        workspace_bytes = 0 if problem.is_empty else library.workspace_bytes(problem)
        enqueue = None if problem.is_empty else library.enqueuer(problem, workspace_bytes)
        plan = _plan(library.interface, made, workspace_bytes, enqueue)
        return _pass(plan, given, views, scalars, workspace, stream)


def scalars_of(interface: Interface, named: dict[str, object]) -> dict[str, Number]:
    """Remove the scalars from a call's keyword arguments and return them. Raises TypeError if one is missing."""
    scalars: dict[str, Number] = {}
    for array in interface.arrays:
        if array.role == SCALAR:
            number = named.pop(array.name, None)
            if not isinstance(number, (int, float)) or (isinstance(number, float) and array.format in "iq"):
                wanted = "a whole number" if array.format in "iq" else "a number"
                raise TypeError(f"{array.name}: {interface.name} takes {wanted} of this name, got {number!r}")
            scalars[array.name] = number
    return scalars


class Prepared:
    """An operation whose weights have been prepared once. Call it with the other input arrays.

    It works for all run-time sizes. The weights are copied: once the stream has finished preparing, you may change or
    free them. A Prepared belongs to the weights' device (with PyCUDA: the current device). Several threads may call it
    at once, on any streams.
    """

    def __init__(self, library: Library, *positional: object, stream: object = None, **named: object) -> None:
        """Prepare weights, which are passed by position or by name.

        If the weights' shapes don't determine all sizes and words, pass the others by name, or pass further arrays with
        these sizes. The run-time sizes determine which kernel is chosen, and default to 1. Raises the same errors as
        `run`.
        """
        interface = library.interface
        given, sizes = _Takes(interface, WEIGHTS).given(positional, named)
        views = {name: arrays.view(array, name) for name, array in given.items()}
        layout = str(sizes.get("layout", interface.words.get("layout", ("",))[0]))
        shaped = {axis for array in interface.arrays if array.name in views for axis in array.axes[layout]}
        for name in interface.runtime:
            if name not in shaped:
                sizes.setdefault(name, 1)
        problem = _problem(interface, views, sizes)
        first = next(iter(given.values()))
        on = arrays.stream_address(stream, first)
        with arrays.on_device_of(first):
            _made(library, problem, views, WEIGHTS)
            self.handle = Handle(library, problem, {name: view.address for name, view in views.items()}, on)
        self._library = library
        self._sizes = {name: value for name, value in problem.values.items() if name not in interface.runtime}
        self._weights = {
            each.name: views[each.name] for each in interface.arrays if each.role in WEIGHTS and each.name in views
        }
        self._takes = _Takes(interface, CALLED)
        self._plans: dict[tuple[object, ...], _Plan] = {}

    @property
    def kernel_name(self) -> str:
        """Name of the kernel that runs, in the form study.layer."""
        return self.handle.kernel_name

    def __call__(self, *positional: object, stream: object = None, workspace: object = None, **named: object) -> object:
        """Enqueue a pass on the input arrays, without the weights, and return the outputs. Raises the same errors as
        `run`.
        """
        scalars = scalars_of(self._library.interface, named)
        given, sizes = self._takes.given(positional, named)
        views = {name: arrays.view(array, name) for name, array in given.items()}
        asked: tuple[object, ...] = tuple(sizes.items())
        for name, view in views.items():
            asked += (name, view.shape, view.elements, view.device)
        with arrays.on_device_of(next(iter(given.values()))):
            plan = self._plans.get(asked)
            if plan is None:
                plan = self._plans[asked] = self._planned(views, sizes)
            return _pass(plan, given, views, scalars, workspace, stream)

    def _planned(self, views: Mapping[str, View], sizes: Mapping[str, object]) -> _Plan:
        problem = _problem(self._library.interface, views, {**self._sizes, **sizes})
        made = _made(self._library, problem, views, CALLED, self._weights)
        if problem.is_empty:
            return _plan(self._library.interface, made, 0, None)
        n = problem.runtime_sizes
        return _plan(self._library.interface, made, self.handle.workspace_bytes(*n), self.handle.enqueuer(*n))


@dataclass(frozen=True, slots=True)
class _Plan:
    """A pass on arrays whose shapes have been checked."""

    made: Made
    workspace_bytes: int
    enqueue: Enqueue | None
    """None if a run-time size is 0, so that there is nothing to run"""
    order: tuple[str, ...]
    """names of all arrays, in the order of the interface"""
    outputs: tuple[str, ...]
    """names of all outputs in the interface; a pass returns the outputs that the problem has"""


def _plan(interface: Interface, made: Made, workspace_bytes: int, enqueue: Enqueue | None) -> _Plan:
    order = tuple(array.name for array in interface.arrays)
    outputs = tuple(array.name for array in interface.arrays if array.role in RETURNED)
    return _Plan(made, workspace_bytes, enqueue, order, outputs)


def _pass(
    plan: _Plan,
    given: dict[str, object],
    views: dict[str, View],
    scalars: Mapping[str, Number],
    workspace: object,
    stream: object,
) -> object:
    """Create missing arrays, enqueue a pass and return the outputs."""
    first = next(iter(given.values()))
    on = arrays.stream_address(stream, first)
    for name, like, shape in plan.made:
        given[name] = arrays.empty_like(given[like], shape, on)
        views[name] = arrays.view(given[name], name)
    if plan.workspace_bytes and workspace is None:
        workspace = arrays.workspace_like(first, plan.workspace_bytes, on)
    address = 0
    if workspace is not None:
        space = arrays.view(workspace, "workspace")
        address = space.address
        if space.size_bytes < plan.workspace_bytes:
            raise ValueError(f"workspace: has {space.size_bytes} bytes, expected {plan.workspace_bytes}")
    if plan.enqueue is not None:
        addresses = {name: view.address for name, view in views.items()}
        plan.enqueue(on, address, [addresses.get(name, 0) or scalars.get(name, 0) for name in plan.order])
    outputs = tuple(given[name] for name in plan.outputs if name in given)
    return outputs[0] if len(outputs) == 1 else outputs


class _Takes:
    """Separates a call's arrays from its sizes and words."""

    def __init__(self, interface: Interface, roles: tuple[str, ...]) -> None:
        self.expected = [array.name for array in interface.arrays if array.role in roles]
        self.names = {array.name for array in interface.arrays}
        self.words = f"{interface.name} takes {', '.join(self.expected)}"
        if roles == WEIGHTS:
            prepared = f"{self.words} to be prepared"
            self.words = prepared if self.expected else f"{interface.name} has no weights to prepare; call run"

    def given(
        self, positional: tuple[object, ...], named: Mapping[str, object]
    ) -> tuple[dict[str, object], dict[str, object]]:
        """Return the arrays by name, and the other keyword arguments.

        Raises TypeError if there are no arrays or too many. A size may have the same name as an array, such as conv2d's
        w (width and filters); an integer is then the size.
        """
        if len(positional) > len(self.expected):
            raise TypeError(f"{self.words}; got {len(positional)} arrays")
        given = {name: array for name, array in zip(self.expected, positional, strict=False) if array is not None}
        sizes = {}
        for name, value in named.items():
            if name not in self.names or isinstance(value, int):
                sizes[name] = value
            elif value is not None:
                given[name] = value
        if not given:
            raise TypeError(self.words)
        return given, sizes


def _problem(interface: Interface, views: Mapping[str, View], sizes: Mapping[str, object]) -> DeclaredProblem:
    shapes = {name: view.shape for name, view in views.items()}
    dtypes = {name: arrays.dtype_of(view, name) for name, view in views.items()}
    return problem_of(interface, shapes, dtypes, sizes)  # type: ignore[arg-type]  # which it checks


def _made(
    library: Library,
    problem: DeclaredProblem,
    views: Mapping[str, View],
    roles: tuple[str, ...],
    others: Mapping[str, View] | None = None,
) -> Made:
    """Check the given arrays and return those that have to be created. `others` are arrays given earlier.

    Raises ValueError for arrays that don't match the problem or each other, or if an array with one of these `roles` is
    missing.
    """
    declared = {array.name: array for array in library.array_shapes(problem)}
    for name, view in views.items():
        if name not in declared:
            raise ValueError(f"{name}: this problem of {library.interface.name} has none")
        arrays.check(view, name, declared[name].dtype, declared[name].shape)
    placed = {**(others or {}), **views}
    where = {view.device: name for name, view in placed.items() if view.device is not None}
    if len(where) > 1:
        raise ValueError("; ".join(f"{name}: is on device {device}" for device, name in where.items()))
    like = {declared[name].dtype: name for name in reversed([*views])}
    made = []
    for name, array in declared.items():
        if name in placed:
            continue
        if array.role in roles:
            raise ValueError(f"{name}: missing")
        if array.role in (*GIVEN, SCALAR) or roles == WEIGHTS:
            continue
        if array.dtype not in like:
            raise ValueError(f"{name}: no array of {array.dtype} to make another like; give it")
        made.append((name, like[array.dtype], array.shape))
    return tuple(made)
