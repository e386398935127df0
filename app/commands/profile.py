"""`heddle profile`: time a live engine and fit the laws the planner believes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.app.commands import options

if TYPE_CHECKING:
    from heddle.models.profiling import Fit

TYPER = options.help_with(
    "heddle profile http://127.0.0.1:30000",
    "heddle profile http://127.0.0.1:30000 --quick --json",
)


def run(
    url: Annotated[
        str,
        typer.Argument(help="Address of an engine that nobody uses now.", callback=options.address),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name to save it under; else the model's.")
    ] = None,
    data: options.Data = None,
    quick: Annotated[bool, typer.Option("--quick", help="A coarse grid, each point once.")] = False,
    batch: Annotated[
        int | None, typer.Option(help="The largest batch to time; else what fits.", min=2)
    ] = None,
    force_busy: Annotated[
        bool, typer.Option("--force-busy", help="Time it beside the requests it has.")
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload/--no-reload", help="Time a reload of its weights.")
    ] = True,
    json: options.Json = False,
) -> None:
    """Measure a live engine and save its profile.

    Decode over batch x context and prefill over new x prefix, KV room, load and wake times, and
    what comes back from its HiCache storage. Prints how well the fitted laws predict what they were
    not fitted to. Use the saved file as --system.
    """
    from heddle.app import checks, profile, show
    from heddle.app.settings import load
    from heddle.models import profiling

    folder = load({"data": data}).data / "profiles"
    checks.data(folder)
    with show.steps("profile", "points") as told:
        timings = asyncio.run(
            _timed(url, told, quick=quick, most=batch, force_busy=force_busy, reload=reload)
        )
    decode = profiling.decode_fit(timings.decode)
    prefill = profiling.prefill_fit(timings.prefill)
    path, document = profile.save(folder, name, timings, decode, prefill)
    if json:
        show.as_json({"path": str(path), "hash": profiling.digest(document), **document})
    else:
        _tell(path, document, timings.subject.storage, decode, prefill)


async def _timed(url: str, told: Any, **how: Any) -> Any:
    from heddle.app import profile
    from heddle.controller.fleet.sglang import SglangEngine, open_session

    async with open_session() as session:
        return await profile.measure(SglangEngine(url, session), told=told, **how)


def _tell(path: Path, document: dict[str, Any], storage: str, decode: Fit, prefill: Fit) -> None:
    from heddle.app import show

    (model,) = document["models"].values()
    ((degree, row),) = model["degrees"].items()
    show.table(
        ["law", "ms", "error", "held out", "worst"],
        [
            ["decode", _terms(row["decode_ms"]), *_errors(decode)],
            ["prefill", _terms(row["prefill_ms"]), *_errors(prefill)],
        ],
    )
    show.OUT.print(f"KV room {row['kv_capacity_tokens']:,} tokens at degree {degree}")
    for what, seconds in row["times_s"].items():
        show.OUT.print(f"{what.removesuffix('_s')} {seconds:.2f} s")
    if fetch := row.get("fetch"):
        show.OUT.print(f"fetch {fetch['ms_per_token']:.4g} ms a token from its storage {storage!r}")
    elif storage:
        show.OUT.print(f"its storage {storage!r} brought nothing back: no fetch was timed")
    show.OUT.print(f"saved as {path}; use it with --system {path}", markup=False, soft_wrap=True)


def _terms(terms: dict[str, float]) -> str:
    return " ".join(f"{name} {value:.4g}" for name, value in terms.items())


def _errors(fit: Fit) -> list[str]:
    return [f"{fit.mean:.1%}", f"{fit.held_mean:.1%}", f"{fit.held_worst:.1%}"]
