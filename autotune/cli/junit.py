"""JUnit XML for continuous integration: a test case for each winner, re-timed or not.

The format is the one that Jenkins describes (https://llg.cubic.org/docs/junit/). Names may have any characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from xml.etree import ElementTree as Xml


@dataclass(frozen=True, slots=True)
class Case:
    """One testcase."""

    group: str
    name: str
    result: Literal["passed", "failure", "error", "skipped"]
    message: str
    """the printed text of a passed test case"""


def junit_xml(
    name: str, cases: Sequence[Case], properties: Mapping[str, str], began_at: datetime, took_s: float
) -> bytes:
    """One suite as an XML file in UTF-8."""
    counts = {result: sum(case.result == result for case in cases) for result in ("failure", "error", "skipped")}
    numbers = {"tests": len(cases), "failures": counts["failure"], "errors": counts["error"]}
    totals = {**{key: str(number) for key, number in numbers.items()}, "time": f"{took_s:.3f}"}
    suites = Xml.Element("testsuites", {"name": name, **totals})
    began = f"{began_at:%Y-%m-%dT%H:%M:%S}"
    suite = Xml.SubElement(
        suites, "testsuite", {"name": name, **totals, "skipped": str(counts["skipped"]), "timestamp": began}
    )
    listed = Xml.SubElement(suite, "properties")
    for key, value in properties.items():
        Xml.SubElement(listed, "property", {"name": key, "value": _allowed(value)})
    for case in cases:
        found = Xml.SubElement(suite, "testcase", {"classname": _allowed(case.group), "name": _allowed(case.name)})
        if case.result == "passed":
            Xml.SubElement(found, "system-out").text = _allowed(case.message)
        elif case.result == "skipped":
            Xml.SubElement(found, "skipped", {"message": _allowed(case.message)})
        else:
            Xml.SubElement(found, case.result, {"message": _allowed(case.message), "type": case.result})
    Xml.indent(suites, " ")
    text: str = Xml.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _allowed(text: str) -> str:
    """The text with what XML 1.0 (2.2) has no characters for, such as control characters, escaped as in Python."""
    return "".join(
        c
        if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c >= "\U00010000"
        else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )
