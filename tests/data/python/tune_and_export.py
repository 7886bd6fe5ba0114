"""A script as a user writes it: `mypy --strict` checks it, and it runs unchanged, without `if __name__ == "__main__"`.
"""

import sys
from pathlib import Path
from typing import assert_type

import autotune

device = sys.argv[1]
tried: list[int] = []


def on_trial(trial: autotune.Trial, progress: autotune.Progress) -> None:
    assert_type(trial.median_us, float | None)
    assert_type(progress.best, autotune.Trial | None)
    tried.append(trial.number)


small = autotune.Conv2dProblem(n=2, c=1, h=9, w=8, k=4, r=3, s=3)
study = autotune.Study(
    "mine",
    layers=(autotune.Layer("conv1", small),),
    templates=("direct",),
    space={"direct": {"unroll": ("none", "rs"), "filters": ("global",)}},
    trials=1,
)
result = autotune.tune(study, device=device, db="mine.db", on_trial=on_trial)
assert_type(result, autotune.TuneResult)
assert_type(result.layers[0].best, autotune.Trial | None)
for best in autotune.best(small, db=Path("mine.db")):
    assert_type(best.median_us, float)
    print(best.name, best.row.trial.config.params["filters"])
with autotune.Store("mine.db", create=False) as store:
    assert [row.trial.number for row in store.trials.list("mine.conv1")] == tried
try:
    exported = autotune.export(study, "kernels", db="mine.db", proof=False)
except autotune.AutotuneError as error:
    sys.exit(str(error))
assert_type(exported.sources, tuple[Path, ...])
print(*exported.sources)
