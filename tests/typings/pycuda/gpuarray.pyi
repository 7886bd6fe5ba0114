from typing import Any

import numpy.typing as npt

class GPUArray:
    def get(self) -> npt.NDArray[Any]: ...

def to_gpu(ary: npt.NDArray[Any]) -> GPUArray: ...
