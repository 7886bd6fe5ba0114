"""Templates include only files from the folders of templates."""

from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.tiny import Command, write_family

from .attack import attacked, refused

SECRET = "swordfish"
TUNE = ("tune", "small.toml", "--family-dir", "families", "--device", "null")


@pytest.fixture
def secret(folder: Path) -> Path:
    """A file next to the folder of templates."""
    path = folder / "secret.h"
    path.write_text(f"// {SECRET}\n")
    (folder / "families" / "linked.h").symlink_to(path)
    (folder / "families" / "up").symlink_to(folder)
    return path


@pytest.mark.parametrize(
    "line",
    every(
        3,
        [
            '#include "/etc/passwd"',
            '#include "{secret}"',
            '#include "../secret.h"',
            '#include "../families/../secret.h"',
            '#include "linked.h"',
            '#include "up/secret.h"',
            '#include "/proc/self/environ"',
            '#include "../secret.h" // of mine',
            "#include <{secret}>",
            "#include <../secret.h>",
            '  # include_next "../secret.h"',
            '#embed "../secret.h"',
            "#include SECRET",
            "#include \"${{'../secret.h'}}\"",
            '/*% from "../secret.h" import mma %*/',
            '/*% include "../secret.h" %*/',
            '//% include "/etc/passwd"',
        ],
    ),
)
def test_no_file_elsewhere_gets_into_a_kernel(folder: Path, secret: Path, tune: Command, line: str) -> None:
    """Nothing of the file is compiled, stored or printed."""
    written = line.format(secret=secret)
    path = write_family(folder / "families", ("constexpr int C =", f"{written}\nconstexpr int C ="))
    done = tune()
    refused(done, path.name)
    database = folder / "autotune.db"
    seen = done.err + done.out + (database.read_bytes().decode("latin-1") if database.exists() else "")
    assert SECRET not in seen
    assert "root:" not in seen


def test_links_within_the_folders_are_followed(folder: Path, fork_server: ForkServer) -> None:
    """A link to a file inside the folder, and a folder that is a link itself."""
    (folder / "families" / "_plain.cuh").write_text("// plain\n")
    (folder / "families" / "_linked.cuh").symlink_to("_plain.cuh")
    write_family(folder / "families", ("constexpr int C =", '#include "_linked.cuh"\nconstexpr int C ='))
    (folder / "elsewhere").symlink_to("families")
    done = attacked(fork_server, folder, "tune", "small.toml", "--family-dir", "elsewhere", "--device", "null")
    assert done.code == 0, done.err


def test_a_chain_of_includes_ends(folder: Path, fork_server: ForkServer) -> None:
    """2,000 files, each of which includes the next."""
    for number in range(2000):
        (folder / "families" / f"_{number}.cuh").write_text(f'#include "_{number + 1}.cuh"\n')
    write_family(folder / "families", ("constexpr int C =", '#include "_0.cuh"\nconstexpr int C ='))
    refused(attacked(fork_server, folder, *TUNE), "_255.cuh: more than 256 included files")
