"""Operations: the arrays, sizes and reference that `operation.toml` declares, and where operations are found."""
