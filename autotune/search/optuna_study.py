"""Trials of a subject as a study in a storage of Optuna's, for its own tools; the database stays what counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import StudyError
from autotune.search.encoding import FAMILY
from autotune.trial import Config, Outcome, Trial, Value

NUMBER = "number"
"""The attribute of a trial that tells which of the database's it is."""
WRITTEN_BY = "written by"


@dataclass(frozen=True, slots=True)
class TimedTrial:
    """A trial that ended, and when."""

    trial: Trial
    started_at: datetime
    ended_at: datetime
    proposed_by: str


Values = Mapping[str, Mapping[str, Sequence[Value]]]
"""Family to parameter to the values that it may have."""


def write_study(
    url: str, name: str, trials: Sequence[TimedTrial], values: Values, attributes: Mapping[str, str | int]
) -> int:
    """Write trials to a study, which is made where there is none, and return how many it did not have.

    A value is the median time in microseconds, to be minimised; failed trials are FAIL, those that broke a rule before
    they were run PRUNED, with outcome, reason and message among the attributes. Raises StudyError for a study of that
    name that was not written so, or of other parameters.
    """
    own = {WRITTEN_BY: "autotune optuna-study", **attributes}
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with _storage(url) as storage:
            study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
            if not study.user_attrs and not study.trials:
                for key, value in own.items():
                    study.set_user_attr(key, value)
            if not own.items() <= study.user_attrs.items():
                raise StudyError(
                    f"there is a study {name!r} from elsewhere; "
                    "delete it (`optuna delete-study`) or give another storage"
                )
            there = {trial.user_attrs.get(NUMBER) for trial in study.get_trials(deepcopy=False)}
            new = [trial for trial in trials if trial.trial.number not in there]
            study.add_trials([_frozen(trial, values) for trial in new])
    except ValueError as error:  # a parameter that has other values than it had
        raise StudyError(f"study {name!r}: {error}; delete it (`optuna delete-study`) and write it again") from error
    except StorageInternalError as error:
        raise error.__cause__ or error from None
    finally:
        optuna.logging.set_verbosity(verbosity)
    return len(new)


@contextmanager
def _storage(url: str) -> Iterator[RDBStorage]:
    """A storage of Optuna's, whose connections are closed at the end; Optuna itself leaves them to the interpreter."""
    storage = RDBStorage(url)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _frozen(timed: TimedTrial, values: Values) -> FrozenTrial:
    """A trial as Optuna keeps it."""
    trial = timed.trial
    params, distributions = _params(trial.config, values)
    state = TrialState.COMPLETE if trial.median_us is not None else TrialState.FAIL
    made = optuna.trial.create_trial(
        state=TrialState.PRUNED if trial.outcome == Outcome.INVALID_CONFIG else state,
        value=trial.median_us,
        params=params,
        distributions=distributions,
        user_attrs={
            NUMBER: trial.number,
            "outcome": str(trial.outcome),
            "reason": trial.reason,
            "message": trial.message,
            "proposed_by": timed.proposed_by,
            "source_hash": trial.source_hash or "",
        },
    )
    made.datetime_start = timed.started_at.astimezone().replace(tzinfo=None)  # Optuna's dates are local, without a zone
    made.datetime_complete = made.datetime_start + max(timed.ended_at - timed.started_at, timedelta())
    return made


def _params(config: Config, values: Values) -> tuple[dict[str, Value], dict[str, BaseDistribution]]:
    """The family and its parameters under its prefix, and their distributions."""
    params: dict[str, Value] = {FAMILY: config.template}
    distributions: dict[str, BaseDistribution] = {FAMILY: CategoricalDistribution(tuple(values))}
    for name, value in config.items:
        params[f"{config.template}.{name}"] = value
        distributions[f"{config.template}.{name}"] = CategoricalDistribution(tuple(values[config.template][name]))
    return params, distributions
