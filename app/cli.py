"""How does `heddle` on a command line find its command, and how does it fail?

What a person got wrong is one sentence on stderr and exit code 2; a stack trace means a defect of
ours. Command modules import what they need only when they run: `heddle engine` starts in half a
second.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from heddle.app.errors import AppError, MissingExtra
from heddle.app.orphans import die_with_parent

if TYPE_CHECKING:
    import typer

COMMANDS: Final = (  # in the order of --help; the function is `run` of the module of that name
    "up",
    "demo",
    "replay",
    "collect",
    "control",
    "engine",
    "profile",
    "dash",
    "switch",
    "plan",
    "fleet",
    "predictor",
    "train",
    "evaluate",
    "promote",
    "rollback",
    "diagnose",
    "report",
    "sql",
    "import",
    "export",
    "seal",
    "delete",
    "bench",
    "doctor",
)

SENTENCES: Final = {
    "heddle.collector.errors": "CollectorError",
    "heddle.controller.errors": "ControllerError",
    "heddle.controller.core.types": "CoreError",
    "heddle.models.errors": "ModelsError",
    "heddle.controller.emulator.errors": "EngineError",
    "heddle.controller.emulator.workload": "WorkloadError",
    "heddle.models.latency": "LatencyError",
}
"""The exception tree of each room: one sentence for a person."""

EXTRAS: Final = {"streamlit": "dash", "plotly": "dash", "torch": "train", "ray": "ray"}

HELP: Final = "See where GPU time goes in agentic-RL rollout, and steer a live SGLang fleet."


def build(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """The command tree, or those branches of it."""
    import typer

    app = typer.Typer(
        name="heddle",
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_version)
    for name in commands:
        module = importlib.import_module(f"heddle.app.commands.{name}")
        app.command(name, **getattr(module, "TYPER", {}))(module.run)
    return app


def _version() -> None:
    """See where GPU time goes in agentic-RL rollout, and steer a live SGLang fleet."""


def main() -> None:
    """The console script."""
    die_with_parent()
    try:
        # The one that is asked for alone: each of a fleet's engines saves 0.1 CPU seconds.
        build([word for word in sys.argv[1:2] if word in COMMANDS] or COMMANDS)()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        if top in ("heddle", ""):
            raise
        _end(MissingExtra(top, EXTRAS.get(top, "serve")))
    except Exception as error:
        if not _is_sentence(error):
            raise
        _end(error)


def _is_sentence(error: Exception) -> bool:
    """Whether the text was written for a person: one of the rooms' own exceptions."""
    if isinstance(error, AppError):
        return True
    ours = {(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    return any(tree in ours for tree in SENTENCES.items())


def _end(error: Exception) -> None:
    print(f"heddle: {error}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
