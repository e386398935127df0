"""What is a named query: which filters does it take, which columns does it give, N of how many?"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa

from heddle.collector.errors import QueryRefused
from heddle.collector.queries import paging
from heddle.collector.queries.filters import FILTERS
from heddle.collector.records import FRAMES, Column

warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning)

Filters = Mapping[str, Sequence[str]]
_SQL: Final = {"text": "VARCHAR", "int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN"}
_ARROW: Final = {
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}
# What has come and is not summed up yet is in `touched`. Two names of one key only widen the time.
_RAN: Final = (
    "SELECT min(first_ns), max(last_ns), count(open) FROM ("
    "SELECT start_ns AS first_ns, seen_ns AS last_ns, NULL AS open FROM rolled_trajectories"
    " WHERE trajectory_key IN ({keys})"
    " UNION ALL SELECT first_ns, last_ns, NULL FROM touched WHERE trajectory_id IN ({names})"
    " UNION ALL SELECT NULL, NULL, 1 FROM markers WHERE trajectory_id IN ({names}))"
)
_ALL: Final = {"of": "", "stated": "stated", "everything": "everything"}
_ENDED: Final = {"of": "ended_", "stated": "ended", "everything": "stored"}
"""The views that `of_spans` names, without start markers."""
LIMIT: Final = "limit"
_LIMIT_DIGITS: Final = 18
_TOO_MANY: Final = 1 << 63
AFTER: Final = "after"
PAGING: Final = (LIMIT, AFTER)


@contextmanager
def one_instant(cursor: duckdb.DuckDBPyConnection) -> Generator[None, None, None]:
    """Every statement of the block sees the store as it is when the first one runs."""
    cursor.begin()
    try:
        yield
    finally:
        cursor.rollback()


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows asked for, how many there are without limit and after, and the next page's token."""

    table: Any
    total: int
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A condition with its values, and the views to ask."""

    where: str
    values: list[Any]
    views: Mapping[str, str]
    few: bool = False
    """Whether it names trajectories, whose rows are never many."""

    def filled(self, sql: str, within: str = "") -> tuple[str, list[Any]]:
        """A query's SQL with its condition, and the values in their order."""
        page = f" AND {within}" if within else ""
        text = sql.format(where=self.where, page=page, **self.views)
        return text, self.values * sql.count("{where}")


@dataclass(frozen=True, slots=True)
class Query:
    """A question with a name. `sql` holds {where}; `compute` answers instead of SQL."""

    name: str
    meaning: str
    filters: tuple[str, ...]
    sql: str = ""
    order: str = ""
    needs: tuple[str, ...] = ()
    """At least one of these filters must be given."""
    extra: Mapping[str, str] | None = None
    """Filters that are not plain equality: their SQL condition, `?` for each value."""
    of_spans: bool = False
    """Its rows begin and end as spans do: when trajectories are named, the sums know between which
    times to look, and a scan of all spans becomes one of a few thousand. Its `sql` and `counted`
    name views by {of}, {stated} or {everything}: the lighter ones where no start marker is asked
    for."""
    counted: str = ""
    """Of a long list: SQL with {where} for as many rows and their order key, but cheap. It says how
    many there are and where the page ends; only that much of the wide rows is read then."""
    compute: Callable[[duckdb.DuckDBPyConnection, Filters], Answer] | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """What it returns."""
        return FRAMES[self.name]

    @property
    def is_plain(self) -> bool:
        """Whether it is a view's rows as they are."""
        return re.fullmatch(r"SELECT \* FROM (\{of\})?\w+ \{where\}", self.sql) is not None

    def answer(self, cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Answer:
        """Run it; QueryRefused when the filters do not fit."""
        self._check(filters)
        limit, after = _limit(filters), _after(filters)
        if self.compute is not None:
            return _sliced(self.compute(cursor, filters), limit, after)
        long = bool(self.counted) and limit != 0 and _few(limit)
        page = self._long if long else self._short
        try:
            if not (long or self.of_spans or self._named(filters)):
                return page(cursor, Asked(*self.where(filters), _ALL), limit, after)
            with one_instant(cursor):
                return page(cursor, self._asked(cursor, filters), limit, after)
        except duckdb.BinderException as error:
            if after is None:
                raise
            # The values of another list's key.
            raise paging.foreign(after) from error

    def _named(self, filters: Filters) -> Sequence[str]:
        """The trajectories asked for by name, where the sums say when its rows began."""
        return filters.get("trajectory", ()) if self.of_spans or self.counted else ()

    def _asked(self, cursor: duckdb.DuckDBPyConnection, filters: Filters) -> Asked:
        """The condition, and on which views."""
        where, values = self.where(filters)
        named = self._named(filters)
        if named:
            between, opened = _ran(cursor, named)
            where += between
        else:
            # What became of a marker is no column of it, so a filter on the state looks at all.
            opened = (
                not self.of_spans or bool(filters.get("state")) or _opened(cursor, where, values)
            )
        return Asked(where, values, _ALL if opened else _ENDED, bool(named))

    def _short(
        self,
        cursor: duckdb.DuckDBPyConnection,
        asked: Asked,
        limit: int | None,
        after: str | None,
    ) -> Answer:
        """A page of a list whose rows cost little."""
        statement, values = asked.filled(self.sql)
        paged, bound = self._paged(statement, limit, after)
        table = _run(cursor, paged, [*values, *bound], few=asked.few or _few(limit))
        full = limit is not None and table.num_rows == limit
        total = table.num_rows
        if full or after is not None:
            count = cursor.execute(f"SELECT count(*) FROM ({statement})", values).fetchall()
            total = int(count[0][0])
        return _cut(table, len(self.columns), total, full=full)

    def _long(
        self,
        cursor: duckdb.DuckDBPyConnection,
        asked: Asked,
        limit: int | None,
        after: str | None,
    ) -> Answer:
        """A page of a long list, found by its order key first."""
        counted, values = asked.filled(self.counted)
        assert limit is not None
        found, bound = paging.found(self.order, counted, limit, after)
        total, keys = cursor.execute(found, [*bound, *values]).fetchall()[0]
        if not total:
            return Answer(table_of(self.name, []), 0)
        within = paging.within(self.order, keys[-1]) if keys and len(keys) == limit else ""
        statement, values = asked.filled(self.sql, within if "{page}" in self.sql else "")
        paged, bound = self._paged(statement, limit, after, within)
        table = _run(cursor, paged, [*values, *bound], few=True)
        return _cut(table, len(self.columns), total, full=table.num_rows == limit)

    def _paged(
        self, statement: str, limit: int | None, after: str | None, within: str = ""
    ) -> tuple[str, list[Any]]:
        """The columns of one page in order, with the order key if another page may follow."""
        # What does not fit its column (a sum of absurd counts) is not known, and no failure.
        casts = ", ".join(
            f'TRY_CAST("{c.name}" AS {_SQL[c.type]}) AS "{c.name}"' for c in self.columns
        )
        keyed = "" if limit is None else f", {paging.columns(self.order)}"
        where, values = ("", []) if after is None else paging.condition(self.order, after)
        # Around a plain view another `SELECT *` would cost 2 ms of planning.
        plain = statement.removeprefix("SELECT * FROM ") if self.is_plain else f"({statement})"
        text = f"SELECT {casts}{keyed} FROM {plain}"
        tests = [test for test in (where, within) if test]
        if tests:
            joint = " AND " if self.is_plain and " WHERE " in plain else " WHERE "
            text += joint + " AND ".join(tests)
        text += f" ORDER BY {self.order}" + ("" if limit is None else f" LIMIT {limit}")
        return text, values

    def _check(self, filters: Filters) -> None:
        unknown = sorted(filters.keys() - {*self.filters, *PAGING})
        if unknown:
            known = ", ".join((*self.filters, *PAGING))
            message = f"{self.name} has no filter {unknown[0]!r}; it takes {known}"
            raise QueryRefused(message)
        if self.needs and not any(filters.get(name) for name in self.needs):
            message = f"{self.name} needs one of the filters {', '.join(self.needs)}"
            raise QueryRefused(message)

    def where(self, filters: Filters) -> tuple[str, list[Any]]:
        """The condition that the filters make, and its values."""
        conditions: list[str] = []
        values: list[Any] = []
        for name, given in filters.items():
            if name in PAGING or not given:
                continue
            conditions.append(self._condition(name, len(given)))
            read = FILTERS[name].read if name in FILTERS else str
            values.extend(read(value) for value in given)
        return f"WHERE {' AND '.join(conditions)}" if conditions else "", values

    def _condition(self, name: str, count: int) -> str:
        own = (self.extra or {}).get(name)
        if own is None:
            return FILTERS[name].condition(count)
        if own.count("?") != count:
            message = f"filter {name!r} of {self.name} takes one value"
            raise QueryRefused(message)
        return own


def _ran(cursor: duckdb.DuckDBPyConnection, trajectories: Sequence[str]) -> tuple[str, bool]:
    """When those trajectories ran, as a condition, and whether anything of them is still open.

    Literals reach the zone maps of the scan.
    """
    names = ", ".join("?" * len(trajectories))
    keys = ", ".join(["hash(?::VARCHAR)"] * len(trajectories))
    rows = cursor.execute(_RAN.format(names=names, keys=keys), [*trajectories] * 3).fetchall()
    first_ns, last_ns, opened = rows[0]
    between = "" if first_ns is None else f" AND start_ns BETWEEN {first_ns} AND {last_ns}"
    return between, opened > 0


def _opened(cursor: duckdb.DuckDBPyConnection, where: str, values: list[Any]) -> bool:
    return bool(cursor.execute(f"SELECT 1 FROM markers {where} LIMIT 1", values).fetchall())


def _sliced(whole: Answer, limit: int | None, after: str | None) -> Answer:
    """A page of a computed answer, whose token is a row number."""
    if limit is None and after is None:
        return whole
    first = 0 if after is None else paging.row_of(after)
    table = whole.table.slice(first, limit)
    end = first + table.num_rows
    more = paging.token([end]) if end < whole.table.num_rows else None
    return Answer(table, whole.total, more)


def _cut(table: Any, width: int, total: int, *, full: bool) -> Answer:
    """Take the order key off, and make the next page's token of the last row's."""
    if not full or not table.num_rows:
        return Answer(table.select(range(width)), total)
    last = table.slice(table.num_rows - 1).to_pylist()[0]
    key = [value for name, value in last.items() if name not in table.column_names[:width]]
    return Answer(table.select(range(width)), total, paging.token(key))


def table_of(name: str, rows: Sequence[Sequence[Any]]) -> Any:
    """Rows as the Arrow table of that query's columns."""
    columns = FRAMES[name]
    schema = pa.schema([(c.name, _ARROW[c.type]) for c in columns])
    if not rows:
        return schema.empty_table()
    values = zip(*rows, strict=True)
    return pa.Table.from_arrays(
        [_array(v, f.type) for v, f in zip(values, schema, strict=True)], schema=schema
    )


def _array(values: Sequence[Any], kind: Any) -> Any:
    """A column; what does not fit it (a sum of absurd counts) is not known, as in SQL."""
    try:
        return pa.array(values, type=kind)
    except (OverflowError, pa.ArrowInvalid):
        if kind != pa.int64():
            raise
    fit = [v if v is None or -_TOO_MANY <= v < _TOO_MANY else None for v in values]
    return pa.array([v if v is None else int(v) for v in fit], type=kind)


def _run(cursor: duckdb.DuckDBPyConnection, statement: str, values: list[Any], *, few: bool) -> Any:
    # A relation binds its statement twice, 5 ms for a view of 84 columns; without one the rows are
    # copied once more, which DuckDB warns of and a page of them does not feel.
    if few:
        return cursor.execute(statement, values).to_arrow_table()
    return cursor.sql(statement, params=values).to_arrow_table()


def _few(limit: int | None) -> bool:
    return limit is not None and limit <= paging.MOST_FOUND


def _limit(filters: Filters) -> int | None:
    given = filters.get(LIMIT)
    if not given:
        return None
    if len(given) == 1 and given[0].isdecimal() and len(given[0]) <= _LIMIT_DIGITS:
        return int(given[0])
    message = f"limit is {given[0][:40]!r}, expected a whole number of {_LIMIT_DIGITS} digits"
    raise QueryRefused(message)


def _after(filters: Filters) -> str | None:
    given = filters.get(AFTER)
    return given[-1] if given else None
