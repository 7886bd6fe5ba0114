"""Declare the operations that `convert` uses for a network's layers. Exports of these operations contain this module.

`pytest tests/host/test_exported_python.py --update-golden` writes `network_interfaces.json` from the `operation.toml`
files.
"""

from __future__ import annotations

import json
from pathlib import Path

from .interface import Interface, InterfaceArray, InterfaceSize

NETWORK_INTERFACES = tuple(
    Interface(
        each["name"],
        tuple(each["runtime"]),
        tuple(InterfaceSize(**size) for size in each["sizes"]),
        {name: tuple(words) for name, words in each["words"].items()},
        tuple(
            InterfaceArray(**{**array, "axes": {layout: tuple(axes) for layout, axes in array["axes"].items()}})
            for array in each["arrays"]
        ),
    )
    for each in json.loads(Path(__file__).with_suffix(".json").read_text())
)
BY_NAME = {each.name: each for each in NETWORK_INTERFACES}
