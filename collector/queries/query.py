"""What is a named query: which filters does it take, which columns does it give, N of how many?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa

from heddle.collector.errors import QueryRefused
from heddle.collector.records import FRAMES, Column

Filters = Mapping[str, Sequence[str]]
_SQL: Final = {"text": "VARCHAR", "int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN"}
_ARROW: Final = {
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}
LIMIT: Final = "limit"

EQUALS: Final = {
    "run": "run_id",
    "rollout": "rollout_id",
    "group": "group_id",
    "trajectory": "trajectory_id",
    "worker": "worker_id",
    "task": "task",
    "state": "state",
    "outcome": "outcome",
    "step": "CAST(step_index AS VARCHAR)",
    "tool": "tool_name",
    "op": "op",
    "trace": "trace_id",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows asked for, and how many there are without the limit."""

    table: Any
    total: int


@dataclass(frozen=True, slots=True)
class Query:
    """A question with a name. `sql` holds {where} once; `compute` answers instead of SQL."""

    name: str
    meaning: str
    filters: tuple[str, ...]
    sql: str = ""
    order: str = ""
    needs: tuple[str, ...] = ()
    """At least one of these filters must be given."""
    extra: Mapping[str, str] | None = None
    """Filters that are not plain equality: their SQL condition, `?` for each value."""
    compute: Callable[[duckdb.DuckDBPyConnection, Filters], Answer] | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """What it returns."""
        return FRAMES[self.name]

    def answer(self, cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
        """Run it; QueryRefused when the filters do not fit."""
        self._check(filters)
        limit = _limit(filters)
        if self.compute is not None:
            whole = self.compute(cursor, filters)
            return whole if limit is None else Answer(whole.table.slice(0, limit), whole.total)
        statement, values = self._statement(filters)
        if limit is None:
            table = _run(cursor, statement, values)
            return Answer(table, table.num_rows)
        table = _run(cursor, f"{statement} LIMIT {limit}", values)
        if table.num_rows < limit:
            return Answer(table, table.num_rows)
        count = cursor.execute(f"SELECT count(*) FROM ({statement})", values).fetchall()
        return Answer(table, int(count[0][0]))

    def _check(self, filters: Filters) -> None:
        unknown = sorted(filters.keys() - {*self.filters, LIMIT})
        if unknown:
            known = ", ".join((*self.filters, LIMIT))
            message = f"{self.name} has no filter {unknown[0]!r}; it takes {known}"
            raise QueryRefused(message)
        if self.needs and not any(filters.get(name) for name in self.needs):
            message = f"{self.name} needs one of the filters {', '.join(self.needs)}"
            raise QueryRefused(message)

    def _statement(self, filters: Filters) -> tuple[str, list[str]]:
        conditions: list[str] = []
        values: list[str] = []
        for name, given in filters.items():
            if name == LIMIT or not given:
                continue
            conditions.append(self._condition(name, len(given)))
            values.extend(given)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        casts = ", ".join(f'CAST("{c.name}" AS {_SQL[c.type]}) AS "{c.name}"' for c in self.columns)
        order = f" ORDER BY {self.order}" if self.order else ""
        return f"SELECT {casts} FROM ({self.sql.format(where=where)}){order}", values

    def _condition(self, name: str, count: int) -> str:
        own = (self.extra or {}).get(name)
        if own is not None:
            if own.count("?") != count:
                message = f"filter {name!r} of {self.name} takes one value"
                raise QueryRefused(message)
            return own
        marks = ", ".join("?" * count)
        return f"{EQUALS[name]} IN ({marks})" if count > 1 else f"{EQUALS[name]} = ?"


def table_of(name: str, rows: Sequence[Sequence[Any]]) -> Any:
    """Rows as the Arrow table of that query's columns."""
    columns = FRAMES[name]
    schema = pa.schema([(c.name, _ARROW[c.type]) for c in columns])
    if not rows:
        return schema.empty_table()
    values = zip(*rows, strict=True)
    return pa.Table.from_arrays(
        [pa.array(v, type=f.type) for v, f in zip(values, schema, strict=True)], schema=schema
    )


def _run(cursor: duckdb.DuckDBPyConnection, statement: str, values: list[str]) -> Any:
    return cursor.sql(statement, params=values).to_arrow_table()


def _limit(filters: Filters) -> int | None:
    given = filters.get(LIMIT)
    if not given:
        return None
    if len(given) == 1 and given[0].isdecimal():
        return int(given[0])
    message = f"limit is {given[0]!r}, expected a whole number"
    raise QueryRefused(message)
