"""The declaration of this package's operation; an export has that of its own here."""

from __future__ import annotations

from .interface import Interface
from .network_interfaces import NETWORK_INTERFACES

INTERFACES: tuple[Interface, ...] = NETWORK_INTERFACES
"""the operations whose libraries this package loads"""
INTERFACE = INTERFACES[0]
