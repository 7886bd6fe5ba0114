"""Templates that would run for ever or fill the memory by mistake: one line that names the template."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.tiny import Command, write_family

from .attack import attacked, refused

BODY, HEADER = "constexpr int C =", '"a block computes at most 512 outputs" ='
CHAIN = "".join(f"/*% set a{n + 1} %*/${{a{n}}}${{a{n}}}/*% endset %*/\n" for n in range(40))
LOOPS = "//% for i in range(100000)\n//% for j in range(100000)\n//% endfor\n//% endfor\n"
FIBONACCI = "/*% macro f(n) %*/\n//% if n > 1\n${f(n - 1)}${f(n - 2)}\n//% endif\n/*% endmacro %*/\n${f(60)}\n"
SQUARINGS = "\n".join(f's{n + 1} = "s{n} * s{n}"' for n in range(40))
SLOW = {
    "loops in loops": (BODY, f"{LOOPS}{BODY}"),
    "a macro that calls itself twice": (BODY, f"{FIBONACCI}{BODY}"),
    "text that doubles 40 times": (BODY, f"/*% set a0 = 'a text' %*/\n{CHAIN}\n{BODY}"),
}
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


@pytest.mark.parametrize("name", every(3, SLOW))
def test_it_is_stopped(folder: Path, fork_server: ForkServer, name: str) -> None:
    write_family(folder / "families", SLOW[name])
    refused(attacked(fork_server, folder, *TUNE, within_s=60.0), "families/tiny.cu.j2: ", "takes more than ")


@pytest.mark.parametrize("name", every(2, BAD))
def test_it_is_refused_at_once(folder: Path, tune: Command, name: str) -> None:
    write_family(folder / "families", BAD[name])
    assert len(refused(tune(), "families/tiny.cu.j2: ")) < 1000
