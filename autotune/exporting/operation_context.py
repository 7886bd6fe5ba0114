"""Write an operation's declaration in C++, for an export's templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from autotune.autotune_runtime.interface import Status
from autotune.errors import StoreError
from autotune.expressions.expression import Expression
from autotune.family.codegen_cpp import fold
from autotune.measurement.numpy_reference import in_numpy
from autotune.measurement.reference import error_unit
from autotune.operation.declarations import COMPUTED, FILLS, READ, ROLES, SCALAR, ArrayTemplate, Role
from autotune.operation.operation import Operation
from autotune.operation.storage_types import TYPES

MOST_AXES = 8
"""Maximum number of axes of an array, as in the C interface's conv2d_array."""
_FILES = ("kernels", "selftest", "benchmark", "dispatch", "golden", "operation")
_TARGETS = ("all", "clean", "help", "install", "package", "test", "edit_cache", "rebuild_cache")
_LIBRARIES = ("c", "cuda", "dl", "gcc", "gcc_s", "m", "pthread", "rt", "stdc++")
NOT_EXPORTED = frozenset((*_FILES, *_TARGETS, *_LIBRARIES))
"""Operation names that would clash with an export's files, CMake targets or libraries."""
_STATUSES = {
    *(status.name.lower() for status in Status),
    *("api", "abi_version", "alignment", "arguments", "image", "reference"),
}
"""Names of constants in the C interface, in lower case."""
_TYPES = frozenset(
    (
        *("Argument", "Array", "Arrays", "Case", "Constant", "Current", "Data", "Declared", "Device", "Driver"),
        *("ErrorBound", "Extents", "Failure", "Golden", "Handle", "Inputs", "Int", "Keeper", "Kept", "Kernel"),
        *("Launch", "Layer", "Loaded", "Memory", "Output", "Pass", "Plan", "Problem", "Reference", "Role", "Sample"),
        *("Samples", "Stored", "Taken", "Tensors", "Unevaluable", "Whole"),
    )
)
"""Names of the library's types. Enumerations must not clash with them."""

_PARAMETERS = ("handle", "arguments", "stream", "bytes", "sizes", "at")
"""Names of parameters of the functions that also take the run-time sizes."""
_C_TYPES = {"f32": "float", "f64": "double", "i32": "int32_t", "i64": "int64_t"}


def operation_context(operation: Operation) -> dict[str, object]:
    """Return an operation's values for the templates. Expressions are in C++ and read a problem called `layer`.

    Raises StoreError for names that an export uses for something else.
    """
    _check_names(operation)
    names = operation.names_of(*ROLES)
    sizes = tuple(size.name for size in operation.sizes)
    members = (f"{name}(given.{name})" for name in sizes)
    words = (f"{kind}(static_cast<{kind.capitalize()}>(given.{kind}))" for kind in operation.words)
    fixed = (name for name in (*sizes, *operation.words) if name not in operation.runtime)
    inputs, weights = operation.inputs, operation.names_of("weights")
    launched = tuple(name for name in names if name not in weights)
    return {
        "name": operation.name,
        "runtime": operation.runtime,
        "runtime_text": _listed(operation.runtime),
        "runtime_of_problem": ", ".join(f"problem.{name}" for name in operation.runtime),
        "runtime_of_at": ", ".join(f"at[{place}]" for place, _ in enumerate(operation.runtime)),
        "reference": not in_numpy(operation),  # whether it is in C++, so that the self-test can use it
        "error_unit": error_unit(operation.bounds.of(operation.output)),  # computed from the value of the C++ reference
        "roles": ROLES,
        "fills": FILLS,
        "dtypes": tuple(TYPES),
        "dtype_bytes": tuple(each.size_bytes for each in TYPES.values()),
        "dtype_floats": tuple(each.is_float for each in TYPES.values()),
        "sizes": operation.sizes,
        "words": tuple(operation.words.items()),
        "enumerations": tuple(operation.enumerations.items()),
        "constants": word_constants(operation),
        "parts": operation.parts,
        "derived": tuple((name, _cpp(bound.expression, operation)) for name, bound in operation.derived),
        "rules": tuple(f"({_cpp(rule.holds.expression, operation)})" for rule in operation.rules),
        "arrays": tuple(_array(array, operation) for array in operation.arrays),
        "flops": _cpp(operation.flops.expression, operation),
        "members": ",\n          ".join((*members, *words)),  # initialisers of a problem from the C interface's
        "same_shape": " &&\n           ".join(f"a.{name} == b.{name}" for name in fixed),
        "names": names,
        "inputs": inputs,  # arguments of the reference
        "input_data": ", ".join(f"data[{names.index(name)}]" for name in inputs),
        "is_read": _one_of(READ),
        "is_output": _one_of(COMPUTED),
        "changes_what_it_reads": any(array.role in READ and array.role in COMPUTED for array in operation.arrays),
        "weight_names": weights,
        "weights": _listed(weights),
        "weights_set": _set(weights),
        "launched": _listed(launched),  # the arrays of each launch
        "launched_set": _set(launched),
    }


def word_constants(operation: Operation) -> Mapping[str, Mapping[str, str]]:
    """Return each word's C name, by enumeration. It contains the enumeration's name if the word is ambiguous."""
    times = Counter(word for words in operation.words.values() for word in words)
    prefix = operation.name.upper()

    def constant(kind: str, word: str) -> str:
        alone = times[word] == 1 and word.lower() not in _STATUSES
        return f"{prefix}_{word.upper()}" if alone else f"{prefix}_{kind.upper()}_{word.upper()}"

    return {kind: {word: constant(kind, word) for word in words} for kind, words in operation.words.items()}


def _check_names(operation: Operation) -> None:
    if operation.name in NOT_EXPORTED:
        raise StoreError(
            f"{operation.name}: cannot be exported: a library of this name would be mistaken for another; "
            "rename its folder"
        )
    for name in operation.runtime:
        if name in _PARAMETERS:
            raise StoreError(f"{operation.name}: cannot be exported: its functions have an argument {name}; rename it")
    for kind in operation.enumerations:
        if kind.capitalize() in _TYPES:
            raise StoreError(
                f"{operation.name}: cannot be exported: a library has a type {kind.capitalize()!r}; rename {kind}"
            )
    for array in operation.arrays:
        if len({len(extents) for extents in array.shapes.values()}) > 1:
            raise StoreError(
                f"{operation.name}: cannot be exported: {array.name} has more axes in one layout than in another"
            )
        if any(len(extents) > MOST_AXES for extents in array.shapes.values()):
            raise StoreError(f"{operation.name}: cannot be exported: {array.name} has more than {MOST_AXES} axes")


def _one_of(roles: tuple[Role, ...]) -> str:
    return " || ".join(f"array.role == Role::{role}" for role in roles)


def _set(names: tuple[str, ...]) -> str:
    """Write C assignments of parameters to the arguments with the same names."""
    return ", ".join(f"arguments.{name} = {name}" for name in names)


def _array(array: ArrayTemplate, operation: Operation) -> dict[str, object]:
    """Return an array's values for the templates."""
    texts = {layout: [extent.expression.text for extent in extents] for layout, extents in array.shapes.items()}
    shapes = {layout: f"[{', '.join(extents)}]" for layout, extents in texts.items()}
    alike = len(set(shapes.values())) == 1
    shape = next(iter(shapes.values())) if alike else ", ".join(f"{layout} {text}" for layout, text in shapes.items())
    when = array.when.expression.text
    return {
        "name": array.name,
        "role": array.role,
        "c_type": _C_TYPES[next(iter(array.dtypes.values()))] if array.role == SCALAR else "",
        "doc": shape if when == "true" else f"{shape}, where {when}",
        "when": _cpp(array.when.expression, operation),
        "type_word": array.type_word,  # the word that determines the storage type of elements
        "dtypes": tuple(array.dtypes[word] for word in operation.words[array.type_word]),
        "extents": tuple(_cpp(extent, operation) for extent in _extents(texts, array.name)),
        "fill": array.fill,
        "least": _cpp(array.least.expression, operation),  # bounds of test data that are integers
        "most": _cpp(array.most.expression, operation),
        "low": array.low.hex(),  # bounds of uniform test data
        "high": array.high.hex(),
    }


def _extents(texts: Mapping[str, list[str]], name: str) -> Iterator[Expression]:
    """Yield an array's extents as expressions that choose by layout."""
    for axis in zip(*texts.values(), strict=True):
        *others, last = zip(texts, axis, strict=True)
        text = "".join(f"({extent}) if layout == '{layout}' else " for layout, extent in others) + f"({last[1]})"
        yield Expression(text, f"extents of {name}")


def _cpp(expression: Expression, operation: Operation) -> str:
    return fold(expression, {}, operation).cpp


def _listed(names: tuple[str, ...]) -> str:
    """List names as text: `a, b and c`."""
    *before, last = names or ("",)
    return f"{', '.join(before)} and {last}" if before else last
