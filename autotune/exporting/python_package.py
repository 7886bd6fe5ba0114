"""An export's Python package: the runtime and, for operations used in networks, the conversion of networks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autotune import autotune_runtime
from autotune.autotune_runtime.network_interfaces import BY_NAME
from autotune.errors import StoreError
from autotune.measurement.exported import interface_of
from autotune.operation.operation import Operation
from autotune.operation.registry import CONV2D
from autotune.text_file import read_text

OF_NETWORKS = frozenset(BY_NAME)
"""The operations whose exports convert PyTorch networks."""
ANY_OPERATION = (
    *("__init__.py", "arrays.py", "c_library.py", "interface.py", "prepared.py"),
    *("torch_call.py", "torch_operator.py", "torch_race.py", "torch_runtime.py"),
)
"""Modules of the package that are the same for all operations. Each export adds a `declared.py` with its operation's
declaration.
"""
_OF_NETWORKS = """\
From Python, with the folder `python` on the path, use:

- `autotune_runtime.prepare` for arrays of PyCUDA, CuPy or PyTorch
- `autotune_runtime.torch_convert.convert` to replace the operators of a PyTorch network by kernels that are faster"""
_OF_ANY = """\
From Python, with the folder `python` on the path, use:

- `autotune_runtime.run` on arrays of CuPy, PyTorch or PyCUDA
- `autotune_runtime.torch_operator()`, an operator for PyTorch with a schema and a fake kernel"""

RUNTIME = "autotune_runtime"
"""Name of the package and the header in exports of conv2d. For other operations, it is autotune_NAME."""
_OLD_NAMES = {
    "autotune_conv2d.h": f"/* This header is now called {RUNTIME}.h; the next version removes the old name. */\n"
    f'#include "{RUNTIME}.h"\n',
    "python/autotune_conv2d.py": f'raise ImportError("autotune_conv2d is now called {RUNTIME}: import {RUNTIME}")\n',
}
"""Files for compatibility, by path, to be removed one version after the rename."""


def named(text: str, declared: Operation) -> str:
    """Replace conv2d with the operation's name in a text from the export's templates."""
    if declared.name != CONV2D:
        text = text.replace(RUNTIME, f"autotune_{declared.name}")
    return text.replace(CONV2D, declared.name).replace(CONV2D.upper(), declared.name.upper())


def package_texts(declared: Operation) -> dict[str, str]:
    """Return the package's files, from path to contents."""
    package = Path(autotune_runtime.__file__).parent
    into = f"python/{named(package.name, declared)}"
    names: Iterable[str] = ANY_OPERATION
    if declared.name in OF_NETWORKS:
        names = (path.name for path in package.iterdir() if path.suffix in (".py", ".json"))
    texts = {f"{into}/{name}": read_text(package / name, StoreError) for name in sorted(names)}
    if declared.name == CONV2D:
        texts |= _OLD_NAMES
    return texts | {f"{into}/declared.py": _declared(declared)}


def _declared(declared: Operation) -> str:
    """Write the package's `declared.py`. For an operation used in networks, it declares all other such
    operations too.
    """
    imported, interfaces = "", "(INTERFACE,)"
    if declared.name in OF_NETWORKS:
        imported = "from .network_interfaces import NETWORK_INTERFACES\n"
        interfaces = "(INTERFACE, *(each for each in NETWORK_INTERFACES if each.name != INTERFACE.name))"
    return f'''"""The declaration of {declared.name}: its problems and their arrays."""

{imported}from .interface import Interface, InterfaceArray, InterfaceSize

INTERFACE = {interface_of(declared)!r}
INTERFACES = {interfaces}
'''


def package_words(declared: Operation) -> str:
    """Return the exported README's section about the package."""
    return named(_OF_NETWORKS if declared.name in OF_NETWORKS else _OF_ANY, declared)
