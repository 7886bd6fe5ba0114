from collections.abc import Sequence

def compile(
    source: str,
    nvcc: str = ...,
    options: Sequence[str] | None = ...,
    keep: bool = ...,
    no_extern_c: bool = ...,
    arch: str | None = ...,
    code: str | None = ...,
    cache_dir: str | bool | None = ...,
    include_dirs: Sequence[str] = ...,
    target: str = ...,
) -> bytes: ...
