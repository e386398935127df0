"""Which Parquet files hold the spans of sealed rollouts, and how do queries see them?

`sealed_files` lists them; the view `sealed` reads exactly those, the partition columns from their
paths, so that a filter on run or rollout opens the files of that rollout alone. Files that another
collector put into the same data set are not listed here: it answers for them.
"""

from __future__ import annotations

from typing import Final

import duckdb

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS sealed_files (
    run_id VARCHAR, rollout_id VARCHAR, url VARCHAR, columns VARCHAR, rows BIGINT, bytes BIGINT,
    checksum VARCHAR, first_ns BIGINT, last_ns BIGINT, received_ns BIGINT, sealed_ns BIGINT
)
"""
_EMPTY: Final = "SELECT * FROM spans WHERE false"


def prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the table and the view."""
    connection.execute(_TABLE)
    publish(connection)


def publish(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the view read what the table lists; part of the caller's transaction."""
    # Files of equal columns are read together: the first one's footer speaks for all of them.
    groups = connection.execute(
        "SELECT columns, list(url ORDER BY url) FROM sealed_files GROUP BY columns ORDER BY columns"
    ).fetchall()
    parts = [_EMPTY, *(_reading(urls) for _, urls in groups)]
    connection.execute(f"CREATE OR REPLACE VIEW sealed AS {' UNION ALL BY NAME '.join(parts)}")


def _reading(urls: list[str]) -> str:
    listed = ", ".join("'" + url.replace("'", "''") + "'" for url in urls)
    return (
        "SELECT * REPLACE (attrs::JSON::VARIANT AS attrs) FROM"
        f" read_parquet([{listed}], hive_partitioning = true, hive_types_autocast = false)"
    )


def lock_down(connection: duckdb.DuckDBPyConnection, directory: str) -> None:
    """From here on no statement reaches a file outside *directory*, nor a setting."""
    quoted = directory.rstrip("/").replace("'", "''") + "/"
    connection.execute(
        f"SET allowed_directories = ['{quoted}']; SET enable_external_access = false;"
        "SET lock_configuration = true"
    )
