"""A kernel family as declared in its file: `KernelTemplate` and the records of its header."""

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
COST_KEYS = ("loaded_bytes", "waves", "steps", "stages", "waits", "stored_bytes")
"""The keys of a header's `[cost]`; docs/templates.md explains each."""
HEADER = re.compile(r"\s*/\*#\s*kernel\b(.*?)#\*/", re.DOTALL)
"""the header at the start of a family's file; the group is TOML"""


@dataclass(frozen=True, slots=True)
class Param:
    """A tunable parameter: its values in order, the first being the default."""

    name: str
    values: tuple[Value, ...]
    doc: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a problem, device or config; `reason` states it in words, also in the error for a violation."""

    reason: str
    holds: Expression


@dataclass(frozen=True, slots=True)
class StageTemplate:
    """A `[[stage]]` or `[[prepare]]` of the header, not yet evaluated."""

    entry: str
    args: tuple[str, ...]
    block: tuple[Expression, Expression, Expression]
    grid: tuple[Expression, Expression, Expression]
    smem_bytes: Expression
    when: Expression


@dataclass(frozen=True, slots=True)
class ConstantTemplate:
    """A `[constant]` entry: a __constant__ symbol, its source, and when it exists."""

    name: str
    origin: str
    when: Expression


@dataclass(frozen=True, slots=True)
class KernelTemplate:
    """A kernel family: its checked header and its body."""

    name: str
    operation: Operation
    """the operation that its kernels compute"""
    path: Path
    summary: str
    supports: tuple[Condition, ...]
    """of the problem"""
    search_when: Expression
    """the supported problems for which a search includes it"""
    arch: tuple[Condition, ...]
    """of the device"""
    accuracy: Expression
    deterministic: Expression
    padded_work: Expression
    """outputs that the device could compute during a launch: the outputs of y, of tiles beyond its edges, and of idle
    SMs
    """
    params: tuple[Param, ...]
    derived: tuple[tuple[str, Expression], ...]
    """in an order in which each uses only earlier ones"""
    constraints: tuple[Condition, ...]
    """of a config: required by hardware and correctness"""
    prune: tuple[Condition, ...]
    """conditions on a config that is worth searching"""
    bank_conflicts: tuple[tuple[str, Expression], ...]
    """accesses of shared memory, and the additional passes that bank conflicts cost a block of the main stage"""
    cost: Mapping[str, Expression]
    """of a launch, what the cost model weighs: COST_KEYS; empty: it takes the launch's geometry"""
    error_factor: Expression
    """factor of the algorithm on the error bound of the accuracy class"""
    flops: Expression
    """floating-point operations of the family's algorithm"""
    constants: tuple[ConstantTemplate, ...]
    tensor_maps: tuple[TensorMapTemplate, ...]
    """if several have one name, a config uses the first whose `when` holds"""
    prepare: tuple[StageTemplate, ...]
    stages: tuple[StageTemplate, ...]
    packed_w_bytes: Expression
    workspace_bytes: Expression
    loop_count: Expression
    baseline: bool
    """whether it is a baseline, with which finals compare the winner"""
    optional_words: tuple[str, ...]
    """words that only some of the operations that share the family have"""
    text: str
    """the whole file, header included"""
    includes: tuple[tuple[str, str], ...]
    """name and text of every included `.cuh`, in the order of first use"""

    @property
    def base(self) -> str:
        """Its name in the operation of its file's folder, which need not be the one that it serves."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def hash(self) -> str:
        """SHA-256 of the file and of its included files."""
        return hashlib.sha256("\0".join((self.text, *(text for _, text in self.includes))).encode()).hexdigest()

    @property
    def changing(self) -> frozenset[str]:
        """The run-time sizes, and the operation's and its own derived values that follow from them."""
        found = set(self.operation.changing)
        for name, expression in self.derived:
            if expression.names & found:
                found.add(name)
        return frozenset(found)

    @property
    def read(self) -> frozenset[str]:
        """Arrays that its kernels take, as arguments or through tensor maps."""
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
        """A recorded config with the current parameters of the family.

        A parameter that it lacks was added later, and its first value is the earlier behaviour. None if it
        belongs to another family, or has a parameter or a value that no longer exists.
        """
        values = recorded.params
        if recorded.template != self.name or not values.keys() <= {param.name for param in self.params}:
            return None
        if any(param.name in values and values[param.name] not in param.values for param in self.params):
            return None
        return Config.of(self.name, {param.name: values.get(param.name, param.values[0]) for param in self.params})
