"""Which ports, folders, fleet and addresses does a command use?

One typed tree: heddle.toml < environment (HEDDLE_DATA, HEDDLE_FLEET__GPUS ...) < flags. A value
that does not fit its type is one sentence naming the setting. Imported only by commands that need
it: `heddle engine` starts without.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from heddle.app import checks
from heddle.app.errors import fail

TOML = "heddle.toml"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


Address = Annotated[str, AfterValidator(checks.address)]
Port = Annotated[int, Field(ge=0, le=65535)]


class PortSettings(_Part):
    """Where each service listens; 0 is any free port."""

    otlp_grpc: Port = 4317
    """Where the collector takes spans over gRPC."""
    otlp_http: Port = 4318
    """Where it takes them over HTTP."""
    queries: Port = 4319
    """Where it answers queries."""
    controller: Port = 8600
    """Of agents, engines that register, and commands that change something."""
    dashboard: Port = 8501
    """Of the pages."""
    engines: Annotated[int, Field(ge=1, le=65535)] = 30000
    """Of the first emulated engine; the others follow."""


class FleetSettings(_Part):
    """The engines: URLs of a running fleet, or the emulated one that Heddle launches."""

    workers: tuple[Address, ...] = ()
    """URLs of running engines; then none is launched."""
    registers: bool = False
    """Engines come by themselves, as those of verl and slime do: none is launched."""
    gpus: Annotated[int, Field(ge=1, le=checks.MOST_GPUS)] = 8
    """Of a fleet that Heddle launches."""
    model: str = "Qwen3-14B"
    """What engines serve, for the speed expected of them."""
    system: str = "h100_sxm"
    """GPUs that speed is of, or a file that `heddle profile` saved."""
    speed: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Emulated seconds per second."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of what emulated engines draw."""
    launcher: Literal["local", "ray"] = "local"
    """Where engines that Heddle launches run."""
    ray_address: str | None = None
    """Of a running Ray cluster; else one is started here."""
    engine: str = ""
    """Command of one engine with {port}, {host}, {degree}, {worker_id}, {gpus}; else emulated."""

    @property
    def launches(self) -> bool:
        """Whether Heddle starts the engines itself."""
        return not self.workers and not self.registers

    degree_flags: dict[int, str] = Field(default_factory=dict[int, str])
    """What engines of a degree are started with beside the command."""
    engine_env: dict[int, dict[str, str]] = Field(default_factory=dict[int, dict[str, str]])
    """Environment of engines by degree; 0: of all."""
    ready_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Wall seconds an engine may take to serve; a large model needs many minutes."""
    wedged_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Wall seconds without progress after which an engine that still answers is given up."""
    host_memory_gb: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Of each node for weights of sleeping engines; 0: engines are stopped, not put to sleep."""
    engine_spans: bool = False
    """Whether emulated engines send spans of their own, below the controller's."""


class CollectSettings(_Part):
    """The collector's own: tokens, TLS, what is kept and for how long."""

    ingest_token: str | None = Field(default=None, repr=False)
    """Of senders of spans."""
    query_token: str | None = Field(default=None, repr=False)
    """Of readers."""
    sql_token: str | None = Field(default=None, repr=False)
    """Of `heddle sql`."""
    admin_token: str | None = Field(default=None, repr=False)
    """Of sealing and deleting; without one, loopback alone may."""
    ingest_token_file: Path | None = None
    """Of senders of spans, in a file."""
    query_token_file: Path | None = None
    """Of readers, in a file."""
    sql_token_file: Path | None = None
    """Of `heddle sql`, in a file."""
    admin_token_file: Path | None = None
    """Of sealing and deleting, in a file."""
    tls_certificate: Path | None = None
    """PEM; holds on all three ports."""
    tls_key: Path | None = None
    """PEM."""
    sender_bytes_per_s: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """The most that one peer address may send."""
    capture: Literal["drop", "hash", "keep"] = "drop"
    """What is kept of messages, prompts, tool arguments and results."""
    sealed: str | None = None
    """Where sealed rollouts go; a folder or any fsspec URL."""
    seal_after_s: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = 3_600.0
    """Seconds after the last span of a finished rollout."""
    keep_days: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """What was received longer ago is removed."""
    keep_gb: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """Above it the oldest sealed rollouts are removed."""
    silent_s: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)] = 3_600.0
    """A trajectory without an end is abandoned when nothing of it came for that long."""
    memory_limit: str = "1GB"
    """Of DuckDB."""
    decoders: Annotated[int, Field(ge=0, le=16)] = 1
    """Processes that decode large requests; 0 decodes in threads."""
    sql_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0
    """After which a SELECT is ended."""
    sql_rows: Annotated[int, Field(gt=0)] = 1_000_000
    """At which its answer is cut."""


class Settings(BaseSettings):
    """Everything a command may ask for."""

    model_config = SettingsConfigDict(
        env_prefix="HEDDLE_", env_nested_delimiter="__", extra="forbid", toml_file=TOML
    )

    data: Path = Path(".heddle")
    """Folder of database, logs and token."""
    host: str = "127.0.0.1"
    """Address to listen on; beyond loopback the collector wants its tokens first."""
    allow_host: tuple[str, ...] = ()
    """Names by which clients may call the controller; addresses and loopback are always known."""
    collector: Address | None = None
    """Of a running collector, where it answers queries; else the port of this tree."""
    controller: Address | None = None
    """Of a running controller; else the port of this tree."""
    otlp: Address | None = None
    """Of a running collector, where it takes spans."""
    token: str | None = None
    """The control token itself."""
    token_file: Path | None = None
    """File that holds it; else `token` in the data folder."""
    retrain_every: Annotated[int, Field(ge=0)] = 0
    """Rollouts after which the controller trains a predictor again by itself; 0: never."""
    ports: PortSettings = PortSettings()
    fleet: FleetSettings = FleetSettings()
    collect: CollectSettings = CollectSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        toml = TomlConfigSettingsSource(settings_cls, os.environ.get("HEDDLE_CONFIG", TOML))
        return init_settings, env_settings, toml

    @property
    def query_url(self) -> str:
        """Where to ask the collector."""
        return self.collector or self._at(self.ports.queries, self._collector_scheme)

    @property
    def otlp_url(self) -> str:
        """Where to send spans."""
        return self.otlp or self._at(self.ports.otlp_http, self._collector_scheme)

    @property
    def controller_url(self) -> str:
        """Where data plane and control plane answer."""
        return self.controller or self._at(self.ports.controller)

    @property
    def dashboard_url(self) -> str:
        """Where a browser looks."""
        return self._at(self.ports.dashboard)

    @property
    def _collector_scheme(self) -> str:
        return "https" if self.collect.tls_certificate else "http"

    def _at(self, port: int, scheme: str = "http") -> str:
        return f"{scheme}://{self.host}:{port}"

    @property
    def token_path(self) -> Path:
        return self.token_file or self.data / "token"


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted flags to a tree; a flag that was not given (None) says nothing."""
    tree: dict[str, Any] = {}
    for dotted, value in flags.items():
        if value is None:
            continue
        *parents, leaf = dotted.split(".")
        here = tree
        for parent in parents:
            here = here.setdefault(parent, {})
        here[leaf] = value
    return tree


def load(flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings in force; `flags` are dotted names, as {"fleet.gpus": 4}, None meaning unset."""
    try:
        return Settings(**_nested(flags or {}))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        message = str(first.get("ctx", {}).get("error", first["msg"].rstrip(".").lower()))
        fail(f"setting {name} = {first.get('input')!r} is not usable: {message}")
    except ValueError as error:
        fail(f"the settings cannot be read: {error}")


def token(settings: Settings) -> str:
    """The control token to send: as given, else the one in the token file; none is the empty one.

    Nothing is made: a token that no controller knows opens nothing.
    """
    if settings.token:
        return settings.token
    path = settings.token_path
    if settings.token_file is None and not path.exists():
        return ""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        fail(f"there is no token file {path}; the controller keeps it in its data folder")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"the token file {path} cannot be read: {error}")


def token_in_file(settings: Settings) -> str:
    """What a service's token file holds; created readable by its owner alone when it is missing."""
    path = settings.token_path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return token(settings.model_copy(update={"token": None}))
    except OSError as error:
        fail(f"the token file {path} cannot be made: {error.strerror}; see --data, --token-file")
    with os.fdopen(handle, "w") as file:
        fresh = secrets.token_urlsafe(32)
        file.write(fresh + "\n")
    return fresh
