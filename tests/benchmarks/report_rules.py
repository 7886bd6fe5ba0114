"""Print one study of the layers of all reports, with their rules, to rank them with `dispatch`.

python -m tests.benchmarks.report_rules > report-rules.toml
"""

from __future__ import annotations

from dataclasses import replace

from autotune.problem import Layer
from autotune.study import Study, distinct_layers
from autotune.study_reader import shipped_study
from autotune.study_writer import study_toml

MOST_IMAGES = 10000
"""A layer with fewer images gets a larger count, so that all layers have equally many images."""


def study() -> Study:
    """Each layer once, and the techniques that a rule names."""
    reports = [shipped_study(f"reports/{number:03}") for number in range(5)]
    named = [replace(layer, name=f"{report.name[-3:]}-{layer.name}") for report in reports for layer in report.layers]
    layers = [_weighted(layer) for layer in distinct_layers(named)]
    rules = [rule for report in reports for rule in report.rules]
    sides = {(rule.report, side) for rule in rules for side in (rule.below, rule.above)}
    techniques = tuple(
        replace(technique, reported_ms={})
        for report in reports
        for technique in report.techniques
        if (technique.report, technique.name) in sides
    )
    return Study(name="report-rules", layers=tuple(layers), trials=40, techniques=techniques, rules=tuple(rules))


def _weighted(layer: Layer) -> Layer:
    return replace(layer, count=max(1, MOST_IMAGES // layer.problem.runtime_size))


if __name__ == "__main__":
    print(study_toml(study()), end="")
