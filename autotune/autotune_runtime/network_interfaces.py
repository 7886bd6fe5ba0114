"""The declarations of the operations by which networks are converted; the exports of each contain this module.

`network_interfaces.json` is written from each `operation.toml` by `pytest tests/host/test_exported_python.py
--update-golden`.
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
