"""Loops, numbers and texts that a mistake makes endless: refused at once, in one line that names the template."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.long_run import every
from tests.unit.tiny import Command, write_family

from .attack import refused

BODY, HEADER = "constexpr int C =", '"a block computes at most 512 outputs" ='
SQUARINGS = "\n".join(f's{n + 1} = "s{n} * s{n}"' for n in range(40))
BAD = {
    "a loop of 10^12": (BODY, f"//% for i in range(10 ** 12)\n//% endfor\n{BODY}"),
    "powers of powers": (BODY, f"// ${{9 ** (9 ** 9)}}\n{BODY}"),
    "powers of powers in the header": (HEADER, f'"true" = "9 ** (9 ** 9) > 1"\n{HEADER}'),
    "powers of a parameter": (HEADER, f'"true" = "(9 + threads) ** (9 ** 9) > 1"\n{HEADER}'),
    "40 squarings": ("[derived]\n", f'[derived]\ns0 = "threads"\n{SQUARINGS}\n'),
    "text times 10^12": (BODY, f"// ${{'x' * 10 ** 12}}\n{BODY}"),
    "text of a width": (BODY, f"// ${{'%1000000000d' % 1}}\n{BODY}"),
    "a macro that calls itself": (BODY, f"/*% macro f() %*/${{f()}}/*% endmacro %*/\n${{f()}}\n{BODY}"),
    "100,000 values": ("values = [1, 2, 3, 4, 6]", f"values = {list(range(100_000))}"),
}
TUNE = ("tune", "small.toml", "--family-dir", "families", "--device", "null")


@pytest.mark.parametrize("name", every(2, BAD))
def test_it_is_refused_at_once(folder: Path, tune: Command, name: str) -> None:
    write_family(folder / "families", BAD[name])
    assert len(refused(tune(), "families/tiny.cu.j2: ")) < 1000
