"""The exception tree. A config's failure is data (an Outcome); every other failure is one of these.

AutotuneError
    StudyError       a study file or problem is wrong: path, line or key, allowed values
        NoTemplate   no family supports a layer; the reason for each family
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
from collections.abc import Mapping


def shortened(text: str, most: int = 100) -> str:
    """Shorten a text from a file or a user for a message, to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def quoted(value: object) -> str:
    """Quote a value from a file or a user for a message, shortened."""
    return shortened(repr(value))


class AutotuneError(Exception):
    """An error that the user can act on. Its one-line message says what is wrong, where, and what to do."""


class StudyError(AutotuneError):
    """A study file, or a problem in it, is wrong."""


class NoTemplate(StudyError):
    """No template family supports a layer."""


class ModelError(AutotuneError):
    """A model can't be imported."""


class TemplateError(AutotuneError):
    """A template's header, body or expression is wrong."""


class StoreError(AutotuneError):
    """The results database cannot be opened, read or written."""


class StoreWarning(UserWarning):
    """A one-line warning about a results database that is still usable, printed by the command line."""


class ToolchainError(AutotuneError):
    """A compiler is missing or does not work."""


class DeviceError(AutotuneError):
    """The device does not exist or does not support the request."""


class DeviceLost(DeviceError):
    """The device stopped answering, and starting a new worker didn't help."""


class Rejected(AutotuneError):
    """A config can't be used. The trial stores the words in `outcome` and `reason`."""

    def __init__(self, outcome: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.reason = reason
        self.message = message

    def __reduce__(self) -> tuple[type[Rejected], tuple[str, str, str]]:
        return (Rejected, (self.outcome, self.reason, self.message))


class Disproved(Rejected):
    """Kernels passed verification but turned out to be wrong after they were timed. `messages` are by position."""

    def __init__(self, messages: Mapping[int, str]) -> None:
        super().__init__("wrong_result", "wrong_after_timing", next(iter(messages.values())))
        self.messages = dict(messages)

    def __reduce__(self) -> tuple[type[Disproved], tuple[dict[int, str]]]:  # type: ignore[override]
        return (Disproved, (self.messages,))


DISK_IS_FULL = "the disk is full; make room and run the command again"


def file_error(error: OSError) -> str | None:
    """Return a one-line message for a file error or a full disk, or None for any other error."""
    full = error.errno == errno.ENOSPC
    if error.filename is None:
        return DISK_IS_FULL if full else None
    return f"{error.filename}: {DISK_IS_FULL if full else error.strerror}"


def not_written(what: object, error: OSError, advice: str) -> str:
    """Return a one-line message for a file or folder that can't be written."""
    if error.errno == errno.ENOSPC:
        return f"{what}: {DISK_IS_FULL}"
    return f"{what}: cannot be written: {error.strerror}; {advice}"
