"""A kernel family as declared in its file: `KernelTemplate` and its header's records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.expressions.expression import Expression
from autotune.family.tensor_map_template import TensorMapTemplate
from autotune.operation.operation import Operation
from autotune.trial import Config, Value

SUFFIX = ".cu.j2"
COST_KEYS = ("loaded_bytes", "waves", "steps", "stages", "waits", "issues", "depth", "stored_bytes")
"""The keys of a header's `[cost]`, which docs/templates.md explains."""
HEADER = re.compile(r"\s*/\*#\s*kernel\b(.*?)#\*/", re.DOTALL)
"""Matches the header at the beginning of a family's file. The group is its TOML."""


@dataclass(frozen=True, slots=True)
class Param:
    """A tunable parameter and its values in order. The first one is the default."""

    name: str
    values: tuple[Value, ...]
    doc: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a problem, device or config. `reason` puts it into words and is the error if it is violated."""

    reason: str
    holds: Expression


@dataclass(frozen=True, slots=True)
class StageTemplate:
    """One of the header's `[[stage]]` or `[[prepare]]` tables, before it is evaluated for a config."""

    entry: str
    args: tuple[str, ...]
    block: tuple[Expression, Expression, Expression]
    grid: tuple[Expression, Expression, Expression]
    smem_bytes: Expression
    when: Expression


@dataclass(frozen=True, slots=True)
class ConstantTemplate:
    """A `[constant]` entry: a __constant__ symbol, the array that fills it, and the condition under which it exists."""

    name: str
    origin: str
    when: Expression


@dataclass(frozen=True, slots=True)
class KernelTemplate:
    """A kernel family: its checked header and its body."""

    name: str
    operation: Operation
    """the operation that the family's kernels compute"""
    path: Path
    summary: str
    supports: tuple[Condition, ...]
    """conditions on the problem"""
    search_when: Expression
    """condition under which a search includes the family, if the problem is supported"""
    arch: tuple[Condition, ...]
    """conditions on the device"""
    accuracy: Expression
    deterministic: Expression
    padded_work: Expression
    """number of outputs that the device could compute during a launch: the outputs of y, of the parts of tiles beyond
    its edges, and of idle SMs
    """
    params: tuple[Param, ...]
    derived: tuple[tuple[str, Expression], ...]
    """derived values, ordered so that each uses only earlier ones"""
    constraints: tuple[Condition, ...]
    """conditions on a config that hardware and correctness require"""
    prune: tuple[Condition, ...]
    """conditions on a legal config for it to be worth searching"""
    bank_conflicts: tuple[tuple[str, Expression], ...]
    """each access of shared memory, with the additional passes that bank conflicts cost a block of the main stage"""
    cost: Mapping[str, Expression]
    """COST_KEYS to quantities of a launch that the cost model weighs; empty: the model uses the launch geometry"""
    error_factor: Expression
    """factor by which the algorithm enlarges the error bound of the accuracy class"""
    flops: Expression
    """floating-point operations of the family's algorithm"""
    constants: tuple[ConstantTemplate, ...]
    tensor_maps: tuple[TensorMapTemplate, ...]
    """if several maps share a name, a config uses the first one whose `when` holds"""
    prepare: tuple[StageTemplate, ...]
    stages: tuple[StageTemplate, ...]
    packed_w_bytes: Expression
    workspace_bytes: Expression
    loop_count: Expression
    baseline: bool
    """whether the family is a baseline that finals compare with the winner"""
    optional_words: tuple[str, ...]
    """words that exist only in some of the operations that share the family"""
    text: str
    """the whole file, header included"""
    includes: tuple[tuple[str, str], ...]
    """name and text of every included `.cuh`, in the order of first use"""

    @property
    def base(self) -> str:
        """The name of the family's file without its suffix. Families that share a file have the same base."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def hash(self) -> str:
        """SHA-256 of the family's file and its included files."""
        return hashlib.sha256("\0".join((self.text, *(text for _, text in self.includes))).encode()).hexdigest()

    @property
    def changing(self) -> frozenset[str]:
        """The run-time sizes, and those of the operation's and the family's derived values that depend on them."""
        found = set(self.operation.changing)
        for name, expression in self.derived:
            if expression.names & found:
                found.add(name)
        return frozenset(found)

    @property
    def read(self) -> frozenset[str]:
        """The arrays that the kernels take, as arguments or through tensor maps and constants, by name."""
        stages = (*self.prepare, *self.stages)
        return frozenset(
            {argument for stage in stages for argument in stage.args}
            | {each.array for each in self.tensor_maps}
            | {constant.origin for constant in self.constants}
        )

    @property
    def header(self) -> str:
        """The header's TOML."""
        match = HEADER.match(self.text)
        return match.group(1).strip() if match else ""

    def current_config(self, recorded: Config) -> Config | None:
        """Convert a recorded config to the family's current parameters.

        If the config lacks a parameter, it was added later, and its first value is the earlier behaviour. Returns None
        if the config belongs to another family, or has a parameter or a value that no longer exists.
        """
        values = recorded.params
        if recorded.template != self.name or not values.keys() <= {param.name for param in self.params}:
            return None
        if any(param.name in values and values[param.name] not in param.values for param in self.params):
            return None
        return Config.of(self.name, {param.name: values.get(param.name, param.values[0]) for param in self.params})
