"""Where the templates and studies that come with the tool lie: in the wheel, or at the top of a checkout."""

from __future__ import annotations

from pathlib import Path


def shipped(kind: str) -> Path:
    """The folder `templates` or `studies` that came with this installation."""
    package = Path(__file__).resolve().parent
    installed = package / "shipped" / kind
    return installed if installed.is_dir() else package.parent / kind
