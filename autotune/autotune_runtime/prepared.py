"""An operation on arrays of CuPy, PyTorch or PyCUDA: its problem follows from their shapes, and outputs are created."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from . import arrays
from .arrays import View
from .interface import SCALAR, DeclaredProblem, Enqueue, Handle, Interface, InterfaceArray, Library, Number

GIVEN = ("in", "weights", "inout")
"""Roles of the arrays that a caller passes; all others are created if they are not given."""
WEIGHTS = ("weights",)
CALLED = ("in", "inout")
"""The given arrays that are prepared once, and the arrays of each pass. Scalars are given with each pass, by name."""
RETURNED = ("out", "inout")


Made: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Arrays to create, the given array whose kind they have, and their shapes."""


def problem_of(
    interface: Interface,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    named: Mapping[str, int | str],
    axes_of: Callable[[InterfaceArray], tuple[str, ...]] | None = None,
) -> DeclaredProblem:
    """The problem of arrays with these shapes and dtypes; `named` are the sizes and words that they do not determine.

    `axes_of` gives the axes in the order of an array's shape; None: the order in which the problem's layout stores
    them. Raises ValueError if two arrays disagree, or if a size is missing.
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
    """The word of the problem for the dtype of an array; None if several are possible."""
    words = [word for word, stored in array.dtypes.items() if stored == dtype]
    return words[0] if len(words) == 1 else None


def run(
    library: Library,
    *positional: object,
    stream: object = None,
    workspace: object = None,
    **named: object,
) -> object:
    """Enqueue a pass on the given arrays, by position among the arrays that are read or by name; return the outputs.

    Outputs that are not given are new arrays of the first one's kind, and so is the workspace. Sizes and words that no
    shape determines are passed by name. `stream` None: the current one for the first array. Raises LibraryError with
    the library's message, TypeError and ValueError for arrays that do not match.
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
    """Remove the scalars from the arguments of a call and return them. Raises TypeError if one is missing."""
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
    """An operation with weights that were prepared once; call it with the other arrays that are read.

    It runs any run-time sizes. The weights are copied: they may be changed or freed once its stream has reached the
    point where it was made. It belongs to the weights' device (PyCUDA: the current one). Several threads may call it at
    once, on any streams.
    """

    def __init__(self, library: Library, *positional: object, stream: object = None, **named: object) -> None:
        """Prepare the given weights, by position among the weights or by name.

        Sizes and words that their shapes do not determine are passed by name, or as further arrays of such shapes; the
        run-time sizes, by which the kernel is chosen, are 1 by default. Raises as `run`.
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
        """study.layer of the kernel that runs."""
        return self.handle.kernel_name

    def __call__(self, *positional: object, stream: object = None, workspace: object = None, **named: object) -> object:
        """Enqueue a pass on the arrays that are read, without weights; return the outputs. Raises as `run`."""
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
    """A pass on arrays of known and checked shapes."""

    made: Made
    workspace_bytes: int
    enqueue: Enqueue | None
    """None: a run-time size is 0"""
    order: tuple[str, ...]
    """all arrays"""
    outputs: tuple[str, ...]
    """the outputs, if they are given"""


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
    """Create missing arrays and enqueue a pass; return the outputs."""
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
    """Sorts the arguments of a call into arrays, and sizes and words."""

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
        """Arrays by name, and the other named arguments.

        Raises TypeError for a missing array or one too many. A size may have the name of an array, as conv2d's width
        and filters do: a number is the size.
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
    """The arrays to create in addition to the given ones, and which of these they resemble; `others` are given
    elsewhere.

    Raises ValueError for arrays that do not match the problem or each other; each of `roles` must be given.
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
