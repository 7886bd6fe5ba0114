"""Parse compute-sanitizer's output into findings, and recognise known false alarms."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_PREFIX = "========="
_SUMMARY = re.compile(r"^(?:ERROR SUMMARY: \d+ errors?|RACECHECK SUMMARY: \d+ hazards? displayed)", re.MULTILINE)
_NO_FINDING = re.compile(
    r"^(COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application|Internal Sanitizer|Error: No attachable"
    r"|Error: (process|Target)|Use |.*print-limit|.*were not printed|$)"
)
_DROPPED = re.compile(r"^(by thread|Saved host backtrace|Host Frame|Device Frame|Address 0x|=+|$)")
_LINE = re.compile(r"\bkernel\.cu:(\d+)")
_NOISE = re.compile(
    r"\+0x[0-9a-f]+|\(((?:[^()]|\([^()]*\))*\*(?:[^()]|\([^()]*\))*)\)| at 0x[0-9a-f]+| \[\d+ hazards\]"
)
_NEIGHBOURS = 2  # number of lines after a named line that belong to the same statement


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of error at one place."""

    words: str
    """the tool's description, without addresses, threads and parameter lists"""
    lines: tuple[int, ...]
    """lines of kernel.cu, in the tool's order"""
    count: int = 1
    """number of reports"""

    def __str__(self) -> str:
        return self.words if self.count == 1 else f"{self.words} ({self.count} reports)"


@dataclass(frozen=True, slots=True)
class FalseAlarm:
    """A kind of finding that is known to be false, from one tool on one family, between two kinds of lines."""

    family: str
    tool: str
    says: str
    """regular expression that matches the beginning of the finding"""
    between: tuple[str, str]
    """regular expressions for the code at the two lines that the finding names, in any order"""
    reason: str


_LANE_FOR_WARP = (
    "after a fence and __syncwarp, one lane arrives at the mbarrier for the loads of its whole warp, and the thread "
    "that starts the copy waits there; the tool does not see that the lane arrives for the others: it reports nothing "
    "if every lane arrives itself"
)
_REGISTER_BARRIER = (
    "the tool is wrong if the number of a full bar.sync is in a register: it reports 117 hazards of a kernel of 50 "
    "lines, and none if the instruction has the same number as a constant"
)
_RACE, _BULK_COPY = "(Error|Warning): Race", r"cp\.async\.bulk\.shared"
KNOWN = (
    FalseAlarm("mma_sweep", "racecheck", _RACE, (_BULK_COPY, r"\bfrom\["), _LANE_FOR_WARP),
    FalseAlarm("input_stationary", "racecheck", _RACE, (_BULK_COPY, r"\binputs\b|\bwindow"), _LANE_FOR_WARP),
    FalseAlarm("mma_strip", "racecheck", _RACE, (r"\bwords\b.*=", r"\bwords\b|\bfrom\b"), _REGISTER_BARRIER),
    FalseAlarm("mma_strip", "racecheck", _RACE, (r"\bto\[.*= loaded\[", r"leading\(rows\.of\["), _REGISTER_BARRIER),
    FalseAlarm("mma_pair", "racecheck", _RACE, (r"= from\[", r"\bstored\b"), _LANE_FOR_WARP),
)
"""racecheck's false findings in bundled families, which docs/sanitizers.md explains."""


def finished(log: str) -> bool:
    """Return whether the tool ran to its end, so that the log contains a summary."""
    return bool(_SUMMARY.search(_plain(log)))


def findings(log: str) -> tuple[Finding, ...]:
    """Return each kind of error in a tool's log once, in order."""
    counted = Counter(_finding(block) for block in _blocks(_plain(log)))
    return tuple(Finding(words, lines, count) for (words, lines), count in counted.items())


def false_alarm(found: Finding, family: str, tool: str, text: str, known: Sequence[FalseAlarm] = KNOWN) -> str:
    """Return why a finding in a kernel's text is known to be false, or "" if it isn't."""
    code = text.split("\n")
    named = ["\n".join(code[line - 1 : line + _NEIGHBOURS]) for line in dict.fromkeys(found.lines)]
    for alarm in known:
        if (alarm.family, alarm.tool) != (family, tool) or not re.match(alarm.says, found.words) or len(named) != 2:
            continue
        for one, other in (alarm.between, alarm.between[::-1]):
            if re.search(one, named[0]) and re.search(other, named[1]):
                return alarm.reason
    return ""


def _plain(log: str) -> str:
    """Return the tool's own lines of a log, without prefixes."""
    lines = (line[len(_PREFIX) :] for line in log.splitlines() if line.startswith(_PREFIX))
    return "\n".join(line.removeprefix(" ") for line in lines)


def _blocks(plain: str) -> Iterator[list[str]]:
    """Split the lines into reports: a line that is not indented begins a report, and indented lines continue it."""
    block: list[str] = []
    for line in plain.split("\n"):
        if line.startswith(" ") and block:
            block.append(line.strip())
            continue
        if block:
            yield block
        block = [] if _NO_FINDING.match(line) or line.startswith(" ") else [line]
    if block:
        yield block


def _finding(block: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    kept = [line for line in block if not _DROPPED.match(line)]
    words = " ".join(_NOISE.sub("", line) for line in kept)
    lines = tuple(int(number) for number in _LINE.findall(words))
    return re.sub(r"\b\d+ bytes (after|before|inside)", r"some bytes \1", words), lines
