"""Operations: the arrays, sizes and reference declared by `operation.toml`, and where operations are found."""
