"""Earlier names of header and study keys.

Recorded headers and stored studies are converted when they are read. If a study file or a header uses an old name, the
error mentions the new one.
"""

from __future__ import annotations

from collections.abc import Mapping

HEADER_KEYS = {"tuned_for": "search_when", "padded_outputs": "padded_work", "conflicts": "bank_conflicts"}
"""Keys of a family's header: old name to new name."""
STUDY_KEYS = {"span": "end_to_end = true or false", "stop_below": "min_gain", "prior": "part of warm_start"}
"""Keys of a study: old name to replacement."""
_ONE_CONDITION = {"supports": "the family supports the problem", "arch": "the family supports the architecture"}
"""Tables of conditions that used to be a single expression, and the reason given to such an expression."""


def current_header(header: Mapping[str, object]) -> dict[str, object]:
    """Convert a recorded header to the current keys and forms."""
    content = {HEADER_KEYS.get(key, key): value for key, value in header.items()}
    for key, reason in _ONE_CONDITION.items():
        if isinstance(content.get(key), str):
            content[key] = {reason: content[key]}
    return content


def current_study(study: Mapping[str, object]) -> dict[str, object]:
    """Convert a stored study to the current keys."""
    content = dict(study)
    if "stop_below" in content:
        content["min_gain"] = content.pop("stop_below")
    content.pop("prior", None)
    if "span" in content:
        content["end_to_end"] = content.pop("span") == "end_to_end"
    return content
