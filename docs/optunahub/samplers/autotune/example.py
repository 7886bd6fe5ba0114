"""Tune three parameters of which only some combinations are feasible."""

import itertools

import optuna
import optunahub


module = optunahub.load_module("samplers/autotune")
space = [
    {"block_x": x, "block_y": y, "unroll": unroll}
    for x, y, unroll in itertools.product((8, 16, 32, 64, 128), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8))
    if 64 <= x * y <= 1024
]
sampler = module.AutotuneSampler(seed=0, space=space)


def objective(trial: optuna.Trial) -> float:
    config = sampler.suggest(trial)
    return (
        abs(config["block_x"] - 32) / 32
        + abs(config["block_y"] - 8) / 8
        + abs(config["unroll"] - 4) / 4
    )


study = optuna.create_study(sampler=sampler)
study.optimize(objective, n_trials=30)
print(study.best_params, study.best_value)
