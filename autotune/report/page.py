"""results -> page: a single HTML file without external files. The same results always give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from autotune import __version__
from autotune.analysis.networks import Network, NetworkLayer
from autotune.escape import printable
from autotune.report import words
from autotune.report.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart
from autotune.report.convergence import colours
from autotune.report.layer_page import LayerPage, layer_page
from autotune.report.results import LayerResults, Results
from autotune.report.roofline_chart import RooflinePoint, roofline

_OPEN_LAYERS = 2
"""Maximum number of layers with which every section starts open."""


@dataclass(frozen=True, slots=True)
class NetworkPage:
    """A network's table, with links to its layers' sections."""

    network: Network
    roofline: Chart | None
    ids: tuple[str, ...]
    """ids of the sections of the layers, in order; empty for a layer without a section"""

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of layers that win, tie and lose against their rivals, by verdict."""
        verdicts = [one.rival.verdict for one in self.network.layers if one.rival]
        return {word: verdicts.count(word) for word in ("win", "tie", "loss")}

    @property
    def widest(self) -> float:
        """The binary logarithm of the largest ratio between two times, in either direction, and at least 1."""
        ratios = [
            one.rival.against_us / one.rival.median_us
            for one in self.network.layers
            if one.rival and one.rival.against_us > 0
        ]
        return max(1.0, *(abs(math.log2(ratio)) for ratio in ratios)) if ratios else 1.0

    @property
    def largest_share(self) -> float:
        """The largest share of the network's time that a single layer takes."""
        return max((self.network.share(one) or 0.0 for one in self.network.layers), default=0.0) or 1.0

    def reach(self, ratio: float) -> float:
        """Return the length of a ratio's bar from the middle, in per cent of the whole width."""
        return round(min(50 * abs(math.log2(ratio)) / self.widest, 50), 2)


def page(found: Results) -> str:
    """Render results as HTML."""
    kinds = colours(one.trials for one in found.layers)
    layers = tuple(layer_page(f"l{place}", one, kinds) for place, one in enumerate(found.layers, 1))
    environment = _environment()
    script = Markup(_text(environment, "report.js"))  # noqa: S704  # a file of this package
    return environment.get_template("report.html.j2").render(
        results=found,
        layers=layers,
        networks=tuple(_network(place, one, layers) for place, one in enumerate(found.networks, 1)),
        devices=_devices(found.layers),
        open=len(layers) <= _OPEN_LAYERS,
        style=Markup(_text(environment, "report.css")),  # noqa: S704  # and another
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        box={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("autotune.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {
        "us": words.microseconds,
        "percent": words.percent,
        "times": words.times,
        "digits": words.digits,
        "flops": partial(words.rate, unit="FLOP"),
        "bytes": partial(words.rate, unit="B"),
        "count": words.count,
    }
    return environment


def _shown(value: object) -> object:
    """Escape a value for the page, including characters that could mislead a reader."""
    return value if isinstance(value, Markup | int | float) else printable(str(value))


def _text(environment: Environment, name: str) -> str:
    """Return a file from the templates' folder, unchanged."""
    assert environment.loader is not None  # noqa: S101  # _environment sets a loader
    text, _, _ = environment.loader.get_source(environment, name)
    return text


def _devices(layers: Sequence[LayerResults]) -> tuple[LayerResults, ...]:
    """Return the first layer of each device, environment and measurement mode."""
    found: dict[tuple[object, ...], LayerResults] = {}
    for one in layers:
        found.setdefault((one.device.identity, one.environment.identity, one.measurement_mode), one)
    return tuple(found.values())


def _network(place: int, network: Network, layers: Sequence[LayerPage]) -> NetworkPage:
    ids = {
        one.results.layer.name: one.id
        for one in layers
        if (one.results.device.name, one.results.measurement_mode) == (network.device, network.measurement_mode)
    }
    own = [one for one in layers if one.id in ids.values()]
    points = [found for one in network.layers for found in _points(one, ids.get(one.layer.name, ""))]
    return NetworkPage(
        network=network,
        roofline=roofline(f"n{place}-roofline", points, own[0].results.rates if own else ()),
        ids=tuple(ids.get(one.layer.name, "") for one in network.layers),
    )


def _points(one: NetworkLayer, link: str) -> list[RooflinePoint]:
    """Return the roofline points of a layer's kernel and rival."""
    if one.kernel is None:
        return []
    best, problem = one.kernel.best, one.layer.problem
    accuracy = best.row.trial.accuracy
    found = [RooflinePoint(one.layer.name, problem, best.median_us, "winner", accuracy, link=link, labelled=False)]
    if one.rival is not None:
        name = f"{one.layer.name}, {one.rival.against}"
        found.insert(
            0, RooflinePoint(name, problem, one.rival.against_us, "rival", accuracy, link=link, labelled=False)
        )
    return found
