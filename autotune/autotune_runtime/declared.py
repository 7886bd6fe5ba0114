"""The declaration of this package's operation; an export has that of its own here."""

from __future__ import annotations

from .conv_interfaces import CONV_INTERFACES
from .interface import Interface

INTERFACES: tuple[Interface, ...] = CONV_INTERFACES
"""the operations whose libraries this package loads"""
INTERFACE = INTERFACES[0]
