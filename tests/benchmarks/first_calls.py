"""Seconds until the first result of networks, converted without tuning and with `torch.compile`.

    python -m tests.benchmarks.first_calls FOLDER NETWORK... [--n 1 8] [--dtype float16]

The networks are those of networks.py. Each measurement has a process of its own, which runs after the imports of
PyTorch, autotune and torchvision or diffusers, with empty caches, including the driver's. The time starts when the
network is on the GPU, before it has run, and ends with the network's first result. Writes a line for each measurement
to FOLDER/first-calls.jsonl and prints a row for each network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CACHES = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")


def main(words: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--n", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtype", default="float16")
    arguments = parser.parse_args(words)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for n in arguments.n:
        for network in arguments.networks:
            converted, compiled = (
                in_own_process(arguments.folder, network, n, arguments.dtype, how) for how in ("convert", "compile")
            )
            print(f"| {network} | {n} | {converted:.1f} | {compiled:.1f} |", flush=True)


def in_own_process(folder: Path, network: str, n: int, dtype: str, how: str) -> float:
    """The seconds of a first call in a new process."""
    source = f"from tests.benchmarks.first_calls import first_call; first_call({network!r}, {n}, {dtype!r}, {how!r})"
    with tempfile.TemporaryDirectory() as empty:
        variables = {name: f"{empty}/{name}" for name in CACHES}
        path = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, **variables, "PYTHONPATH": path}
        command = [sys.executable, "-c", source]
        ended = subprocess.run(command, cwd=empty, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    seconds = float(ended.stdout.splitlines()[-1])
    row = {"network": network, "n": n, "dtype": dtype, "how": how, "seconds": seconds}
    with (folder / "first-calls.jsonl").open("a") as kept:
        kept.write(f"{json.dumps(row)}\n")
    return seconds


def first_call(network: str, n: int, dtype: str, how: str) -> None:
    """Run a network once, and print the seconds that it took."""
    import torch

    from autotune import convert
    from tests.benchmarks.networks import uncalibrated

    torch.manual_seed(0)
    original, x = uncalibrated(network, n, getattr(torch, dtype))
    torch.cuda.synchronize()
    started = time.monotonic()
    with torch.inference_mode():
        made = convert(original, x, wait=True)[0] if how == "convert" else torch.compile(original)
        made(x)
        torch.cuda.synchronize()
    print(time.monotonic() - started)


if __name__ == "__main__":
    main()
