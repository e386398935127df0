"""May this SQL text run: is it one SELECT over the store's own tables, and nothing that leaves it?

The parser decides, not a search for words: DuckDB's own syntax tree is walked, every table function
must be on a short list, every table a plain name, and scalar functions that reach files, settings
or the process are refused. The connection's locks (no external access, locked configuration, a
read-only transaction) stand behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import duckdb
import orjson

from heddle.collector.errors import QueryRefused

TABLE_FUNCTIONS: Final = frozenset({"unnest", "range", "generate_series", "json_each", "json_tree"})
"""What may stand after FROM beside tables and subqueries."""
REFUSED: Final = frozenset(
    {
        "read_text", "read_blob", "read_csv", "read_csv_auto", "sniff_csv", "glob", "getenv",
        "read_json", "read_json_auto", "read_ndjson", "read_parquet", "parquet_scan", "nextval",
        "currval", "setseed", "write_log", "getvariable", "query", "query_table", "current_setting",
        "which_secret", "parse_duckdb_log_message", "json_execute_serialized_sql",
    }
)  # fmt: skip
"""Functions that are no business of a reader, wherever they stand."""
GROWING: Final = frozenset(
    {
        "repeat", "lpad", "rpad", "format", "printf", "bar", "list_resize", "array_resize", "range",
        "generate_series",
    }
)  # fmt: skip
"""A number makes gigabytes of one value of these, in one call that no interrupt ends and no memory
limit counts. After FROM the last two give rows, which both do bound."""
_MAX_CHARACTERS: Final = 100_000


def checked(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    """The one SELECT of *text*; QueryRefused says why not."""
    if len(text) > _MAX_CHARACTERS:
        message = f"the SQL is {len(text)} characters long, at most {_MAX_CHARACTERS} are read"
        raise QueryRefused(message)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = "the SQL holds half of a character (a lone surrogate)"
        raise QueryRefused(message) from error
    statement = _single(connection, text)
    for node in _nodes(_tree(connection, statement)):
        _judge(node)
    return statement


def _single(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    try:
        found = connection.extract_statements(text)
    except duckdb.Error as error:
        message = f"the SQL cannot be read: {str(error).splitlines()[0]}"
        raise QueryRefused(message) from error
    if len(found) != 1:
        message = f"{len(found)} statements were sent; send one SELECT"
        raise QueryRefused(message)
    if found[0].type != duckdb.StatementType.SELECT:
        message = f"{found[0].type.name} is not allowed; this door takes one SELECT"
        raise QueryRefused(message)
    return found[0].query.strip().rstrip(";")


def _tree(connection: duckdb.DuckDBPyConnection, statement: str) -> Any:
    rows = connection.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
    tree = orjson.loads(rows[0][0])
    if tree.get("error"):
        # PRAGMA, SHOW, DESCRIBE and CALL can parse as SELECT and yet have no tree of one.
        message = f"only a plain SELECT is allowed ({tree.get('error_message', 'no SELECT')})"
        raise QueryRefused(message)
    return tree["statements"]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)


def _judge(node: dict[str, Any]) -> None:
    kind = node.get("type")
    if kind == "BASE_TABLE":
        _table(node)
    elif kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in TABLE_FUNCTIONS:
            message = f"FROM {name}(...) is not allowed; choose from the tables of the store"
            raise QueryRefused(message)
        node["function"]["type"] = "ROWS"  # judged here, and not again as one value
    elif kind == "SHOW_REF":
        message = "SHOW, DESCRIBE and SUMMARIZE are not allowed; GET /v1/tables lists the columns"
        raise QueryRefused(message)
    elif kind == "FUNCTION":
        name = str(node.get("function_name", "")).lower()
        if name in REFUSED | GROWING or name.startswith(("pragma_", "duckdb_")):
            message = f"the function {name} is not allowed here"
            raise QueryRefused(message)


def _table(node: dict[str, Any]) -> None:
    name = str(node.get("table_name", ""))
    schema, catalog = str(node.get("schema_name", "")), str(node.get("catalog_name", ""))
    if not name.replace("_", "a").isalnum() or catalog or schema not in ("", "main"):
        shown = ".".join(part for part in (catalog, schema, name) if part)
        message = f"{shown!r} is no table of the store; files and other databases are not read"
        raise QueryRefused(message)
    if name.lower().startswith(("duckdb_", "pragma_", "sqlite_", "pg_")):
        message = f"{name} is not allowed; choose from the tables of the store"
        raise QueryRefused(message)
