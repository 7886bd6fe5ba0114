"""The exception tree. A config's failure is data (an Outcome); every other failure is one of these.

AutotuneError
    StudyError       a study file or problem is wrong: path, line or key, allowed values
        NoTemplate   no family supports a layer, and why each does not
    ModelError       a model cannot be imported: path or name, what is wrong or missing
    TemplateError    a template is wrong: path, line or key
    StoreError       the database cannot be used: newer schema, locked, not a database
    ToolchainError   nvcc or a C++ compiler is missing or broken, and how to get it
    DeviceError      no such device, no driver, a device that cannot do what was asked
        DeviceLost   the device stopped answering and did not come back
    Rejected         a config's own fault; becomes an Outcome, never escapes the line
        Disproved    of several kernels that were timed together, those that are wrong by then
"""

from __future__ import annotations

from collections.abc import Mapping


class AutotuneError(Exception):
    """An error a user can act on; its message is one line: what, where, what to do."""


class StudyError(AutotuneError):
    """A study file, or a problem in it, is wrong."""


class NoTemplate(StudyError):
    """No template family supports a layer."""


class ModelError(AutotuneError):
    """A model, from which a study is to be made, cannot be read."""


class TemplateError(AutotuneError):
    """A template's header, body or expression is wrong."""


class StoreError(AutotuneError):
    """The results database cannot be opened, read or written."""


class StoreWarning(UserWarning):
    """What a user should know about a results database that works; one line, which the command line prints."""


class ToolchainError(AutotuneError):
    """A compiler is missing or does not work."""


class DeviceError(AutotuneError):
    """The device does not exist or cannot do what was asked of it."""


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
    """Kernels that were right when they were verified are wrong after they were timed: position to message."""

    def __init__(self, messages: Mapping[int, str]) -> None:
        super().__init__("correctness", "wrong_after_timing", next(iter(messages.values())))
        self.messages = dict(messages)

    def __reduce__(self) -> tuple[type[Disproved], tuple[dict[int, str]]]:  # type: ignore[override]
        return (Disproved, (self.messages,))
