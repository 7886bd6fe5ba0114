"""The declarations of the operations in this package. In an export, this file declares the exported operation."""

from __future__ import annotations

from .interface import Interface
from .network_interfaces import NETWORK_INTERFACES

INTERFACES: tuple[Interface, ...] = NETWORK_INTERFACES
"""operations whose libraries this package loads"""
INTERFACE = INTERFACES[0]
