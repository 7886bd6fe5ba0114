"""Write the spaces that a results database holds as T4 files. Run by hand:

    python -m tests.benchmarks.t4_files studies/recorded/h200.db FOLDER --configs 200

A space is what was evaluated of one family on one layer and device, failures included. Spaces with fewer configs are
left out. `tests.benchmarks.replay`, `methodology` and other readers of T4 files take the files
(https://github.com/odgaard/TuningSchema).
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping
from pathlib import Path

from autotune.trial import Outcome
from tests.recorded_spaces import Recording, read_recordings

INVALIDITY = {Outcome.COMPILE: "compile", Outcome.TIMEOUT: "timeout", Outcome.WRONG_RESULT: "correctness"}
"""T4's words for outcomes; all others are failures at run time."""


def document(space: Recording) -> Mapping[str, object]:
    """The T4 file of a space."""
    _, _, device = space.name.partition(" on ")
    metadata = {
        "timeunit": "microseconds",
        "kernel_name": space.template,
        "device_name": device,
        "study": space.name,
        "written_by": "autotune 0.1.0",
    }
    results = []
    for row, failure in enumerate(space.failures):
        config = {"configuration": space.config(row).params}
        if failure:
            results.append(config | {"invalidity": INVALIDITY.get(failure[0], "runtime"), "correctness": 0.0})
            continue
        time = {"name": "time", "value": float(f"{space.times_us[row]:.7g}"), "unit": "microseconds"}
        results.append(config | {"invalidity": "correct", "correctness": 1.0, "measurements": [time]})
    return {"schema_version": "1.0.0", "metadata": metadata, "results": results}


def main() -> None:
    """Write the spaces that are large enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--configs", type=int, default=100, help="of a space, at least")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for recorded in read_recordings(arguments.database):
        layer = recorded.name.partition("#")[2].partition(" on ")[0]
        for space in recorded.spaces:
            if len(space.rows) < arguments.configs:
                continue
            path = arguments.folder / f"{space.template}-{layer}.t4.json.gz"
            path.write_bytes(gzip.compress(json.dumps(document(space)).encode(), mtime=0))
            failed = sum(each is not None for each in space.failures)
            print(f"{path}: {len(space.rows)} configs, {failed} of them failed")


if __name__ == "__main__":
    main()
