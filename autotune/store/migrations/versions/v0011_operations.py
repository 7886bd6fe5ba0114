"""Layers of any operation: its name, and sizes and words as JSON, by which a layer is known."""

import json

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

SIZES = (
    *("n", "c", "h", "w", "k", "r", "s", "stride_h", "stride_w", "pad_h", "pad_w"),
    *("dilation_h", "dilation_w", "groups"),
)
WORDS = ("dtype", "layout", "epilogue")
KEPT = (*SIZES, *WORDS, "p", "q", "flops", "minimal_bytes")
NUMBERS = ",\n    ".join(f"{name} INTEGER" for name in SIZES)
TABLE = f"""CREATE TABLE layers_new (
    -- The shape of a problem of an operation. Another run-time size, such as conv2d's n, is another row.
    id INTEGER NOT NULL PRIMARY KEY,
    -- For SQL, what conv2d has; NULL where another operation has no such size or word.
    {NUMBERS},
    dtype TEXT,
    layout TEXT,
    epilogue TEXT,
    p INTEGER,  -- output height
    q INTEGER,  -- output width
    flops INTEGER NOT NULL,  -- of the direct algorithm, a multiply-add counted as two
    minimal_bytes INTEGER NOT NULL,  -- inputs read once, outputs written once
    operation TEXT NOT NULL,
    problem TEXT NOT NULL,  -- JSON object of every size and word, keys sorted
    declaration TEXT,  -- operation.toml of an operation that does not come along with autotune, else NULL
    UNIQUE (operation, problem)
)"""
BEFORE = "    n, c, h, w, k,"


def upgrade() -> None:
    """Make the table anew; ids stay as they are."""
    connection = op.get_bind()
    view = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'results'").scalar_one()
    if BEFORE not in view:
        raise ValueError("the view results is not autotune's")
    connection.exec_driver_sql("DROP VIEW results")
    connection.exec_driver_sql(TABLE)
    columns = ("id", *KEPT)
    rows = list(connection.exec_driver_sql(f"SELECT {', '.join(columns)} FROM layers"))  # noqa: S608
    if rows:
        names, values = ", ".join(columns), ", ".join("?" * len(columns))
        sql = f"INSERT INTO layers_new ({names}, operation, problem) VALUES ({values}, 'conv2d', ?)"  # noqa: S608
        connection.exec_driver_sql(sql, [(*row, _problem(row[1:])) for row in rows])
    connection.exec_driver_sql("DROP TABLE layers")
    connection.exec_driver_sql("ALTER TABLE layers_new RENAME TO layers")
    connection.exec_driver_sql(view.replace(BEFORE, f"    operation, problem,\n{BEFORE}"))


def _problem(values: tuple[object, ...]) -> str:
    """A row's sizes and words. A value that JSON does not have stays as a text: readers find that it is no problem."""
    named = dict(zip((*SIZES, *WORDS), values, strict=False))
    return json.dumps(named, sort_keys=True, separators=(",", ":"), default=repr)


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
