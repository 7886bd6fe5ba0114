"""Import a network from a file, or from Python code that builds it, as a study that tunes its layers."""

from autotune.importing.fused_layers import OPERATIONS, Findings, findings
from autotune.importing.model_source import read_source
from autotune.importing.network import Request
from autotune.importing.study_text import NamedLayer, fused_parts, named_layers, reasons, study_text, summaries
from autotune.importing.training import training_findings

__all__ = [
    "OPERATIONS",
    "Findings",
    "NamedLayer",
    "Request",
    "findings",
    "fused_parts",
    "named_layers",
    "read_source",
    "reasons",
    "study_text",
    "summaries",
    "training_findings",
]
