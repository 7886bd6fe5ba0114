"""The exception tree. A config's failure is data (an Outcome); every other failure is one of these.

AutotuneError
    StudyError       a study file or problem is wrong: path, line or key, allowed values
        NoTemplate   no family supports a layer, and why each does not
    ModelError       a model cannot be imported: path or name, what is wrong or missing
    TemplateError    a template is wrong: path, line or key
    StoreError       the database cannot be used: newer schema, locked, not a database
    ToolchainError   nvcc or a C++ compiler is missing or broken, and how to get it
    DeviceError      no such device, no driver, or a device that does not support the request
        DeviceLost   the device stopped answering and did not come back
    Rejected         a config cannot be used; becomes an Outcome, never leaves the pipeline
        Disproved    kernels that are wrong after they were timed together
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping

_PASSWORDS = (
    (re.compile(r"(?<=:)(/+[^\s/@:]{0,200}:)[^\0]{1,200}@"), r"\1***@"),  # a path may have lost one of the slashes
    (re.compile(r"(?<=:)(/+)[^\s:]{1,500}@"), r"\1***@"),  # a token instead of a user
    (re.compile(r"(?<![:/])(//[^\s/@:]{0,200}:)\S{1,500}@"), r"\1***@"),
    (re.compile(r"(?<!\breplay)(?<=[\w%.]):[^\s/@:]{1,200}@(?=[\w\[])"), ":***@"),  # replay:FILE@DEVICE has no password
    (re.compile(r"(\bfile:[^\s?]{0,500}\?)\S{1,1000}"), r"\1***"),  # SQLite's, whose options may contain a key
    (
        re.compile(
            r"(passw(?:or)?d|pwd|passphrase|secret|token|hexkey|api_?key)(\s?=\s?|%3d)"
            r"""('[^']{0,1000}'|"[^"]{0,1000}"|[^\s&;]{1,1000})""",
            re.IGNORECASE,
        ),
        r"\1\2***",
    ),
)
"""the parts of URLs and connection strings that may contain passwords"""


def without_passwords(text: str) -> str:
    """The text with *** for every password in a URL or a connection string."""
    if "@" in text or "=" in text or "%3" in text:
        for pattern, instead in _PASSWORDS:
            text = pattern.sub(instead, text)
    return text


def shortened(text: str, most: int = 100) -> str:
    """A text from a file or a user as a message quotes it: cut after this many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def quoted(value: object) -> str:
    """A value from a file or a user as a message quotes it."""
    return shortened(repr(value))


class AutotuneError(Exception):
    """An error a user can act on; its message is one line: what, where, what to do, and never a password."""

    def __init__(self, message: str = "") -> None:
        super().__init__(without_passwords(message))


class StudyError(AutotuneError):
    """A study file, or a problem in it, is wrong."""


class NoTemplate(StudyError):
    """No template family supports a layer."""


class ModelError(AutotuneError):
    """A model that is to be imported cannot be read."""


class TemplateError(AutotuneError):
    """A template's header, body or expression is wrong."""


class StoreError(AutotuneError):
    """The results database cannot be opened, read or written."""


class StoreWarning(UserWarning):
    """A remark about a results database that works; one line, which the command line prints."""


class ToolchainError(AutotuneError):
    """A compiler is missing or does not work."""


class DeviceError(AutotuneError):
    """The device does not exist or does not support the request."""


class DeviceLost(DeviceError):
    """The device stopped answering and a fresh worker could not revive it."""


class Rejected(AutotuneError):
    """A config cannot be used. `outcome` and `reason` are the words that the trial stores."""

    def __init__(self, outcome: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.reason = reason
        self.message = message

    def __reduce__(self) -> tuple[type[Rejected], tuple[str, str, str]]:
        return (Rejected, (self.outcome, self.reason, self.message))


class Disproved(Rejected):
    """Kernels that passed verification are wrong after they were timed: position to message."""

    def __init__(self, messages: Mapping[int, str]) -> None:
        super().__init__("wrong_result", "wrong_after_timing", next(iter(messages.values())))
        self.messages = dict(messages)

    def __reduce__(self) -> tuple[type[Disproved], tuple[dict[int, str]]]:  # type: ignore[override]
        return (Disproved, (self.messages,))


DISK_IS_FULL = "the disk is full; make room and run the command again"
_LACKING = {
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "too many open files on this machine; end other programs",
    errno.ENOSPC: DISK_IS_FULL,
    errno.EDQUOT: "the disk quota is used up; make room and run the command again",
    errno.ENOMEM: "there is not enough memory; free some, or raise the limit (ulimit -v)",
    errno.EAGAIN: "no more processes or threads can be started; end other programs, or raise the limit (ulimit -u)",
}


def what_the_machine_lacks(error: BaseException) -> str | None:
    """One line for an error of the machine or of a file; None for any other error.

    Python's importer and the dynamic linker report missing memory or files only in the text of the error.
    """
    words = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, FileNotFoundError) and not _has_working_directory():
        return "the working directory was removed; change to one that is there"
    if "No usable temporary directory" in words:
        return "no folder for temporary files can be written; set TMPDIR to one that can be"
    if isinstance(error, MemoryError) or "failed to map segment" in words or "annot allocate memory" in words:
        number = errno.ENOMEM
    elif "Too many open files" in words:
        number = errno.EMFILE
    elif "can't start new thread" in words:
        number = errno.EAGAIN
    name = getattr(error, "filename", None)
    if number not in _LACKING:
        return f"{name}: {os.strerror(number)}" if name and number else None
    return f"{name}: {_LACKING[number]}" if name else _LACKING[number]


def not_written(what: object, error: OSError, advice: str) -> str:
    """One line for a file or folder that cannot be written."""
    lacking = _LACKING.get(error.errno or 0)
    return f"{what}: {lacking}" if lacking else f"{what}: cannot be written: {error.strerror}; {advice}"


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
