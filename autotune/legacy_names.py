"""Earlier names of parameters of shipped families, and of keys of headers and studies.

Recorded configs keep their names, and `KernelTemplate.current_config` maps each. Recorded headers and stored studies
are mapped when they are read. A study file or a header with an old name gets an error that names
the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

V = TypeVar("V")


def _pairs(text: str) -> Mapping[str, str]:
    """`OLD=NEW ...`"""
    return dict(pair.split("=", 1) for pair in text.split())


_PIPELINE = "teams=consumer_warpgroups slots=stages staging=epilogue_stages"
_TRANSFORMED = f"{_PIPELINE} formers=producer_warps batch=producer_pixels"
_WARP_TILES = "products=mma map_tiles=warp_tiles_k block_k=warps_k bands=row_tiles cuts=channel_slices"
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "depthwise": _pairs("bands=row_tiles"),
    "depthwise_strips": _pairs("shared_r=smem_filter_rows"),
    "direct_strip": _pairs("block_warps=warps_q block_k=warps_k channels=stage_channels"),
    "image_direct": _pairs("bands=row_tiles rounds=tiles_per_thread staging=epilogue_stages"),
    "implicit_gemm_sm90": _pairs("epilogue_parts=epilogue_subtiles"),
    "input_stationary": _pairs("staging=epilogue_stages ahead=prefetch_tiles copies=producer"),
    "mma_gemm": _pairs(
        f"{_WARP_TILES} rows=warp_p strips=column_tiles runs=contiguous_taps lookahead=register_prefetch"
    ),
    "mma_implicit_gemm": _pairs("teams=consumer_warpgroups map_tiles=block_tiles_k depth=stage_channels slots=stages"),
    "mma_pair": _pairs(
        f"{_PIPELINE} neighbours=mma_q rows=thread_p columns=thread_q quads=channel_groups batch=commit_rows "
        "bands=row_tiles sharing=cooperating_warpgroups lookahead=register_prefetch"
    ),
    "mma_shift": _pairs(f"{_TRANSFORMED} rows=mma_p cuts=image_tiles"),
    "mma_strip": _pairs(
        f"{_WARP_TILES} teams=consumer_groups copiers=producer_warps columns=thread_q rows=mma_p "
        "rounds=tiles_per_warp lookahead=register_prefetch"
    ),
    "mma_sweep": _pairs(f"{_TRANSFORMED} bands=row_tiles cuts=subtiles copies=copy_stages"),
    "mma_toeplitz": _pairs("rows=thread_p bands=row_tiles slots=stages staging=epilogue_stages"),
    "windowed": _pairs("patch_q=thread_q patch_p=thread_p maps=tile_k unroll_maps=unroll_k"),
}
"""Family to the earlier and current names of its parameters. No name is on both sides, so a current config is not
changed.
"""
HEADER_KEYS = _pairs("tuned_for=search_when padded_outputs=padded_work conflicts=bank_conflicts")
"""Keys of a family's header: the old word and the new one."""
STUDY_KEYS = {"span": "end_to_end = true or false", "stop_below": "min_gain", "prior": "part of warm_start"}
"""Keys of a study: the old word and its replacement."""
_ONE_CONDITION = {"supports": "the family supports the problem", "arch": "the family supports the architecture"}
"""Tables of conditions that were one expression, and the reason that such an expression gets."""


def current_header(header: Mapping[str, object]) -> dict[str, object]:
    """A recorded header's content with current keys and forms."""
    content = {HEADER_KEYS.get(key, key): value for key, value in header.items()}
    for key, reason in _ONE_CONDITION.items():
        if isinstance(content.get(key), str):
            content[key] = {reason: content[key]}
    return content


def current_study(study: Mapping[str, object]) -> dict[str, object]:
    """A stored study's content with current keys."""
    content = dict(study)
    if "stop_below" in content:
        content["min_gain"] = content.pop("stop_below")
    content.pop("prior", None)
    if "span" in content:
        content["end_to_end"] = content.pop("span") == "end_to_end"
    return content


def current(family: str, values: Mapping[str, V]) -> dict[str, V]:
    """A config's values, or any values by parameter, under the current names of a family's parameters."""
    names = PARAMETERS.get(family, {})
    return {names.get(name, name): value for name, value in values.items()}


def renamed(family: str, name: str) -> str | None:
    """The current name of a family's renamed parameter; None if it was not renamed."""
    return PARAMETERS.get(family, {}).get(name)
