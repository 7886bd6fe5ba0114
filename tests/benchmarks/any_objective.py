"""Compare the default sampler with Optuna's on objectives that are not kernels. Run by hand:

    pip install cmaes scipy torch  # for CmaEsSampler and GPSampler
    python -m tests.benchmarks.any_objective FILE.csv --seeds 20 --sampler AutotuneSampler --sampler GPSampler

Writes a line for each objective, sampler and seed to FILE.csv: the best feasible value after some numbers of trials and
the CPU time per trial. Runs that are in the file already are not repeated. Then prints the table of docs/search.md,
whose runs are in tests/data/any-objective.csv.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import Trial

from autotune.search import AutotuneSampler
from autotune.search.threads import single_threaded

BUDGETS = (15, 30, 60)
HARTMANN_A = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
HARTMANN_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)
HARTMANN_C = np.array([1, 1.2, 3, 3.2])


def ackley(trial: Trial) -> float:
    """Many local minima around one of 0, in five variables (Ackley 1987)."""
    x = _floats(trial, 5, -15, 30)
    return float(20 + math.e - 20 * np.exp(-0.2 * np.sqrt(np.mean(x**2))) - np.exp(np.mean(np.cos(2 * math.pi * x))))


def rosenbrock(trial: Trial) -> float:
    """A curved valley, in four variables (Rosenbrock 1960)."""
    x = _floats(trial, 4, -5, 10)
    return float(np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))


def integers(trial: Trial) -> float:
    """Six integers, neighbours of which depend on each other."""
    x = np.array([trial.suggest_int(f"x{place}", 0, 20) for place in range(6)]) - np.array([3, 17, 8, 12, 5, 14])
    return float(np.sum(np.arange(1, 7) * x**2) / 10 + np.sum(np.abs(np.diff(x))))


def styblinski(trial: Trial) -> float:
    """32 local minima, in five variables (Styblinski & Tang 1990)."""
    x = _floats(trial, 5, -5, 5)
    return float(np.sum(x**4 - 16 * x**2 + 5 * x) / 2 + 5 * 39.1661657)


def pressure_vessel(trial: Trial) -> float:
    """Cost of a vessel: two integers, two numbers and three constraints, minimum 6059.71 (Sandgren 1990)."""
    shell, head = (0.0625 * trial.suggest_int(name, 1, 99) for name in ("shell", "head"))
    radius, length = trial.suggest_float("radius", 10, 200), trial.suggest_float("length", 10, 200)
    trial.set_constraint("shell", 0.0193 * radius - shell)
    trial.set_constraint("head", 0.00954 * radius - head)
    trial.set_constraint("volume", 1296000 - math.pi * radius**2 * length - 4 / 3 * math.pi * radius**3)
    cost = 0.6224 * shell * radius * length + 1.7781 * head * radius**2
    return cost + 3.1661 * shell**2 * length + 19.84 * shell**2 * radius


def welded_beam(trial: Trial) -> float:
    """Cost of a beam: four numbers and five constraints, minimum 1.7249 (Coello 2000)."""
    weld, length = trial.suggest_float("weld", 0.1, 2), trial.suggest_float("length", 0.1, 10)
    depth, width = trial.suggest_float("depth", 0.1, 10), trial.suggest_float("width", 0.1, 2)
    load, span, young, shear = 6000.0, 14.0, 30e6, 12e6
    arm = math.sqrt(length**2 / 4 + ((weld + depth) / 2) ** 2)
    inertia = 2 * math.sqrt(2) * weld * length * (length**2 / 12 + ((weld + depth) / 2) ** 2)
    first, second = load / (math.sqrt(2) * weld * length), load * (span + length / 2) * arm / inertia
    stress = math.sqrt(first**2 + first * second * length / arm + second**2)
    buckling = 4.013 * young * math.sqrt(depth**2 * width**6 / 36) / span**2
    buckling *= 1 - depth / (2 * span) * math.sqrt(young / (4 * shear))
    trial.set_constraint("stress", stress - 13600)
    trial.set_constraint("bending", 6 * load * span / (width * depth**2) - 30000)
    trial.set_constraint("weld", weld - width)
    trial.set_constraint("deflection", 4 * load * span**3 / (young * depth**3 * width) - 0.25)
    trial.set_constraint("buckling", load - buckling)
    return 1.10471 * weld**2 * length + 0.04811 * depth * width * (14 + length)


def spring(trial: Trial) -> float:
    """Weight of a spring: three numbers and four constraints, minimum 0.012665 (Arora 1989)."""
    wire, coil = trial.suggest_float("wire", 0.05, 2), trial.suggest_float("coil", 0.25, 1.3)
    turns = trial.suggest_float("turns", 2, 15)
    shear = (4 * coil**2 - wire * coil) / (12566 * (coil * wire**3 - wire**4) or 1e-9) + 1 / (5108 * wire**2) - 1
    trial.set_constraint("deflection", 1 - coil**3 * turns / (71785 * wire**4))
    trial.set_constraint("stress", shear)
    trial.set_constraint("frequency", 1 - 140.45 * wire / (coil**2 * turns))
    trial.set_constraint("size", (wire + coil) / 1.5 - 1)
    return (turns + 2) * coil * wire**2


def branin(trial: Trial) -> float:
    """Three equal minima (Branin 1972)."""
    x, y = trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)
    bend = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return bend**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887


def hartmann(trial: Trial) -> float:
    """Six local minima, in six variables (Dixon & Szegö 1978)."""
    x = _floats(trial, 6, 0, 1)
    return float(3.32237 - HARTMANN_C @ np.exp(-(HARTMANN_A * (x - HARTMANN_P) ** 2).sum(axis=1)))


def mixed(trial: Trial) -> float:
    """Every kind of parameter."""
    rate = math.log10(trial.suggest_float("rate", 1e-6, 1.0, log=True))
    layers, width = trial.suggest_int("layers", 1, 8), math.log2(trial.suggest_int("width", 16, 1024, log=True))
    drop = trial.suggest_float("drop", 0.0, 0.5, step=0.1)
    kind = trial.suggest_categorical("kind", ["tanh", "relu", "none"])
    batch = math.log2(trial.suggest_categorical("batch", [16, 32, 64, 128]))
    away = abs(rate + 4) + 0.3 * abs(layers - 6) + 0.2 * abs(width - 8)
    return away + drop + (kind != "relu") + abs(batch - 6) / 4


def conditional(trial: Trial) -> float:
    """Three families, each with its own parameters."""
    family = trial.suggest_categorical("family", ["tree", "linear", "net"])
    shared = trial.suggest_float("shared", 0, 1)
    if family == "tree":
        return 2 + abs(trial.suggest_int("depth", 1, 20) - 7) / 5 + shared
    if family == "linear":
        return 1.5 + shared
    rate, decay = trial.suggest_float("rate", 0, 1), trial.suggest_float("decay", 0, 1)
    return 8 * abs(rate - 0.8) + 2 * abs(decay - 0.3) + shared


def counted(trial: Trial) -> float:
    """A count of layers and a width for each."""
    widths = [trial.suggest_int(f"width{place}", 1, 64) for place in range(trial.suggest_int("layers", 1, 5))]
    best = (40, 24, 12)
    return abs(len(widths) - 3) + sum(abs(math.log2(one / other)) for one, other in zip(widths, best, strict=False))


def levy(trial: Trial) -> float:
    """Many local minima on a slope, in four variables (Laguna & Marti 2005)."""
    w = 1 + (_floats(trial, 4, -10, 10) - 1) / 4
    ends = math.sin(math.pi * w[0]) ** 2 + (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)
    return float(ends + np.sum((w[:-1] - 1) ** 2 * (1 + 10 * np.sin(math.pi * w[:-1] + 1) ** 2)))


def griewank(trial: Trial) -> float:
    """A wide bowl with ripples, in five variables (Griewank 1981)."""
    x = _floats(trial, 5, -50, 70)
    return float(1 + np.sum(x**2) / 4000 - np.prod(np.cos(x / np.sqrt(np.arange(1, 6)))))


def michalewicz(trial: Trial) -> float:
    """Narrow valleys that cross, in five variables (Michalewicz 1992)."""
    x = _floats(trial, 5, 0, math.pi)
    return float(4.687658 - np.sum(np.sin(x) * np.sin(np.arange(1, 6) * x**2 / math.pi) ** 20))


def goldstein(trial: Trial) -> float:
    """The logarithm of a function that spans six orders of magnitude (Goldstein & Price 1971)."""
    x, y = _floats(trial, 2, -2, 2)
    first = 1 + (x + y + 1) ** 2 * (19 - 14 * x + 3 * x**2 - 14 * y + 6 * x * y + 3 * y**2)
    second = 30 + (2 * x - 3 * y) ** 2 * (18 - 32 * x + 12 * x**2 + 48 * y - 36 * x * y + 27 * y**2)
    return math.log(first * second / 3)


def speed_reducer(trial: Trial) -> float:
    """Weight of a gear: six numbers, an integer and eleven constraints, minimum 2994.4 (Golinski 1973)."""
    face, module = trial.suggest_float("face", 2.6, 3.6), trial.suggest_float("module", 0.7, 0.8)
    teeth = trial.suggest_int("teeth", 17, 28)
    long1, long2 = trial.suggest_float("long1", 7.3, 8.3), trial.suggest_float("long2", 7.3, 8.3)
    wide1, wide2 = trial.suggest_float("wide1", 2.9, 3.9), trial.suggest_float("wide2", 5, 5.5)
    limits = [
        27 / (face * module**2 * teeth),
        397.5 / (face * module**2 * teeth**2),
        1.93 * long1**3 / (module * teeth * wide1**4),
        1.93 * long2**3 / (module * teeth * wide2**4),
        math.sqrt((745 * long1 / (module * teeth)) ** 2 + 16.9e6) / (110 * wide1**3),
        math.sqrt((745 * long2 / (module * teeth)) ** 2 + 157.5e6) / (85 * wide2**3),
        module * teeth / 40,
        5 * module / face,
        face / (12 * module),
        (1.5 * wide1 + 1.9) / long1,
        (1.1 * wide2 + 1.9) / long2,
    ]
    for place, used in enumerate(limits):
        trial.set_constraint(f"limit{place}", used - 1)
    shafts = wide1**2 + wide2**2
    gear = 0.7854 * face * module**2 * (3.3333 * teeth**2 + 14.9334 * teeth - 43.0934) - 1.508 * face * shafts
    return gear + 7.4777 * (wide1**3 + wide2**3) + 0.7854 * (long1 * wide1**2 + long2 * wide2**2)


def descent(trial: Trial) -> float:
    """The log validation error of a polynomial that gradient descent fits; fails where it diverges."""
    rate, decay = trial.suggest_float("rate", 1e-3, 10, log=True), trial.suggest_float("decay", 1e-6, 1, log=True)
    momentum, degree = trial.suggest_float("momentum", 0, 0.999), trial.suggest_int("degree", 1, 15)
    x = np.linspace(-1, 1, 60)
    y = np.sin(5 * x) + 0.3 * np.sin(37 * x)  # the second term is too fast to be learned
    inputs = np.polynomial.chebyshev.chebvander(x, degree)
    weights, speed = np.zeros(degree + 1), np.zeros(degree + 1)
    for _ in range(100):
        slope = inputs[::2].T @ (inputs[::2] @ weights - y[::2]) / len(x) + decay * weights
        speed = momentum * speed - rate * slope
        weights = weights + speed
        if np.abs(weights).max() > 1e6:
            return math.nan
    return math.log10(np.mean((inputs[1::2] @ weights - y[1::2]) ** 2) / 0.0399)  # the least of 20,000 random fits


def _floats(trial: Trial, count: int, low: float, high: float) -> npt.NDArray[np.float64]:
    return np.array([trial.suggest_float(f"x{place}", low, high) for place in range(count)])


OBJECTIVES: Mapping[str, Callable[[Trial], float]] = {
    "Ackley": ackley,
    "Rosenbrock": rosenbrock,
    "integers": integers,
    "Styblinski": styblinski,
    "pressure vessel": pressure_vessel,
    "welded beam": welded_beam,
    "Branin": branin,
    "Hartmann": hartmann,
    "mixed": mixed,
    "conditional": conditional,
    "counted": counted,
    "spring": spring,
    "Levy": levy,
    "Griewank": griewank,
    "Michalewicz": michalewicz,
    "Goldstein": goldstein,
    "speed reducer": speed_reducer,
    "descent": descent,
}
SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "AutotuneSampler": lambda seed: AutotuneSampler(seed=seed),
    "TPESampler": lambda seed: TPESampler(seed=seed),
    "GPSampler": lambda seed: GPSampler(seed=seed),
    "CmaEsSampler": lambda seed: CmaEsSampler(seed=seed),
    "RandomSampler": lambda seed: RandomSampler(seed=seed),
}


TITLES = {
    "Ackley": "Ackley, 5 variables (0)",
    "Rosenbrock": "Rosenbrock, 4 variables (0)",
    "integers": "six integers (0)",
    "Styblinski": "Styblinski and Tang, 5 variables (0)",
    "pressure vessel": "pressure vessel, 3 constraints (6060)",
    "welded beam": "welded beam, 5 constraints (1.725)",
    "Branin": "Branin, 2 variables (0)",
    "Hartmann": "Hartmann, 6 variables (0)",
    "mixed": "every kind of parameter (0)",
    "conditional": "three families (0)",
    "counted": "a count of layers (0)",
    "Goldstein": "Goldstein and Price, 2 variables (0)",
}
"""The objectives of the table, with their minima."""
RIVALS = {"TPESampler": "TPE", "CmaEsSampler": "CMA-ES", "GPSampler": "GPSampler"}
WITHIN = 1.05
"""A sampler counts as near the best up to this ratio."""


def summary(file: Path) -> Iterator[str]:
    """Lines of Markdown: the medians over seeds, and in how many cases AutotuneSampler is best or near the best."""
    samplers = {"AutotuneSampler": "`AutotuneSampler`", **RIVALS}
    runs: dict[tuple[str, str], list[list[float]]] = {}
    with file.open(newline="") as opened:
        for row in csv.DictReader(opened):
            best = [float(row[str(budget)]) for budget in BUDGETS]
            runs.setdefault((row["objective"], row["sampler"]), []).append(best)
    medians = {key: [median(column) for column in zip(*found, strict=True)] for key, found in runs.items()}
    yield f"| objective (minimum) | {' | '.join(samplers.values())} |"
    yield f"|{'---|' * (1 + len(samplers))}"
    for name, title in TITLES.items():
        cells = [", ".join(map(_digits, medians[name, sampler])) for sampler in samplers]
        yield f"| {title} | {' | '.join(cells)} |"
    ratios = {}
    for name, title in TITLES.items():
        for place, budget in enumerate(BUDGETS):
            own, least = medians[name, "AutotuneSampler"][place], min(medians[name, rival][place] for rival in RIVALS)
            ratios[f"{title.partition(' (')[0]} after {budget} trials"] = own / least if own else 1.0
    near, narrowest = sum(ratio <= WITHIN for ratio in ratios.values()), max(ratios, key=ratios.__getitem__)
    yield ""
    yield f"`AutotuneSampler` is best, or within 5 % of the best, in {near} of these {len(ratios)} cases."
    yield f"The largest ratio to the best is {ratios[narrowest]:.3f}: {narrowest}."
    seeds = max(map(len, runs.values()))
    fewer = [
        f"{TITLES[name].partition(' (')[0]}: {len(runs[name, 'GPSampler'])}"
        for name in TITLES
        if len(runs[name, "GPSampler"]) < seeds
    ]
    yield f"Medians are of {seeds} seeds{'; GPSampler has fewer on ' if fewer else ''}{', '.join(fewer)}."


def _digits(value: float) -> str:
    """A number with four significant digits, without an exponent."""
    return f"{float(f'{value:.4g}'):.9f}".rstrip("0").rstrip(".")


def best_of(study: optuna.Study, trials: int) -> float:
    """The best value that violates no constraint among the first trials; infinite if all violate one."""
    feasible = [t for t in study.trials[:trials] if all(value <= 0 for value in t.constraints.values())]
    return min((trial.values[0] for trial in feasible if trial.values), default=math.inf)


def main() -> None:
    """Run every sampler on every objective."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sampler", action="append", choices=SAMPLERS)
    parser.add_argument("--objective", action="append", choices=OBJECTIVES)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    if not arguments.file.exists():
        arguments.file.write_text("objective,sampler,seed,15,30,60,ms\n")
    done = {tuple(line.split(",")[:3]) for line in arguments.file.read_text().splitlines()}
    for seed in range(arguments.seeds):
        for name in arguments.objective or OBJECTIVES:
            for sampler in arguments.sampler or SAMPLERS:
                if (name, sampler, str(seed)) in done:
                    continue
                started = time.process_time()
                study = optuna.create_study(sampler=SAMPLERS[sampler](seed))
                with single_threaded():
                    study.optimize(OBJECTIVES[name], n_trials=max(BUDGETS))
                ms = 1e3 * (time.process_time() - started) / max(BUDGETS)
                best = ",".join(f"{best_of(study, budget):.6g}" for budget in BUDGETS)
                with arguments.file.open("a") as file:
                    file.write(f"{name},{sampler},{seed},{best},{ms:.1f}\n")
    print("\n".join(summary(arguments.file)))


if __name__ == "__main__":
    main()
