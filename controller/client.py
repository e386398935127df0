"""How do dashboards, commands and trainers talk to a controller from Python?

Synchronous, one connection pool, one method a route; every failure is one sentence.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

import httpx

from heddle.controller import wire, wire_fleet
from heddle.controller import wire_moves as moving
from heddle.controller import wire_predictor as told
from heddle.controller.errors import ControllerError


class ControllerRefused(ControllerError):
    """The controller answered with an error; `status` is the HTTP status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ControllerUnreachable(ControllerError):
    """Nobody answers at that address."""

    status = 503


OPTIONS: Final = "--data DIR, or --token-file FILE"
"""How a command is told where the token is."""


class ControllerClient:
    """Talks to the control plane, by default http://127.0.0.1:8600."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 120.0) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s)

    def health(self) -> wire.Health:
        """Whether steps can be taken."""
        return wire.Health.model_validate(self._get("/healthz"))

    def healthy(self) -> bool:
        """Whether the controller answers."""
        try:
            return self.health().ok
        except ControllerError:
            return False

    def wait_healthy(self, timeout_s: float = 30.0) -> None:
        """Return once it answers; ControllerUnreachable when that takes longer."""
        deadline = time.monotonic() + timeout_s
        while not self.healthy():
            if time.monotonic() > deadline:
                message = f"the controller at {self.url} did not answer within {timeout_s:g} s"
                raise ControllerUnreachable(message)
            time.sleep(0.05)

    def begin_rollout(self, asked: wire.RolloutBegin) -> wire.RolloutReply:
        """Returns when the fleet serves; the window starts then."""
        return wire.RolloutReply.model_validate(self._post("/rollouts", asked.model_dump()))

    def end_rollout(self, run: str, rollout: str) -> wire.RolloutEnded:
        """Close the window."""
        return wire.RolloutEnded.model_validate(
            self._post(f"/rollouts/{rollout}/end", {"run": run})
        )

    def runs(self) -> list[wire.RunState]:
        """Every run that is known there now."""
        return [wire.RunState.model_validate(r) for r in self._get("/runs")]

    def rollouts(self) -> list[wire.RolloutState]:
        """Every rollout begun there."""
        return [wire.RolloutState.model_validate(r) for r in self._get("/rollouts")]

    def finish_trajectory(
        self,
        run: str,
        trajectory: str,
        *,
        reward: float | None = None,
        outcome: str | None = None,
        truncated: bool | None = None,
    ) -> bool:
        """Say that a trajectory is over; whether the controller knew it."""
        said = {"run": run, "reward": reward, "outcome": outcome, "truncated": truncated}
        return bool(self._post(f"/trajectories/{_part(trajectory)}/finish", said)["known"])

    def tell_tool(self, trajectory: str, asked: wire.ToolCall) -> bool:
        """Say that a tool of a trajectory starts or has ended; whether the controller knew it."""
        said = asked.model_dump(exclude_none=True)
        return bool(self._post(f"/trajectories/{_part(trajectory)}/tool", said)["known"])

    def acquire(self, asked: wire.Acquire) -> wire.Acquired:
        """Where a step goes; not granted: it is held, ask again for the same step."""
        said = asked.model_dump(exclude_none=True)
        return wire.Acquired.model_validate(self._post("/acquire", said))

    def release(self, asked: wire.Release) -> bool:
        """How an acquired step went; whether it was known."""
        said = asked.model_dump(exclude_none=True)
        return wire.Released.model_validate(self._post("/release", said)).known

    def trajectories(self, run: str | None = None) -> list[wire.TrajectoryState]:
        """The live ones."""
        found = self._get("/trajectories", run=run)
        return [wire.TrajectoryState.model_validate(t) for t in found]

    def switches(self, run: str = "") -> wire.SwitchState:
        """What is in force, and what there is."""
        return wire.SwitchState.model_validate(self._get("/switches", run=run))

    def switch(
        self,
        *,
        run: str | None = None,
        preset: str | None = None,
        who: str,
        why: str = "",
        **choices: str,
    ) -> wire.SwitchState:
        """Change a preset or single choices, as switch(order="fcfs", who="me")."""
        said: dict[str, Any] = {"run": run, "preset": preset, "who": who, "why": why, **choices}
        return wire.SwitchState.model_validate(self._post("/switches", said))

    def audit(self, limit: int = 200) -> list[wire.AuditEntry]:
        """Who changed what, newest first."""
        found = self._get("/switches/audit", limit=limit)
        return [wire.AuditEntry.model_validate(e) for e in found]

    def workers(self) -> list[wire.WorkerState]:
        """Every worker."""
        return [wire.WorkerState.model_validate(w) for w in self._get("/workers")]

    def add_worker(self, url: str, degree: int | None = None) -> wire.WorkerState:
        """Register an engine."""
        said = {"url": url, "degree": degree}
        return wire.WorkerState.model_validate(self._post("/workers", said))

    def remove_worker(self, worker_id: str) -> None:
        """It takes no more steps."""
        self._call("DELETE", f"/workers/{_part(worker_id)}")

    def drain(self, worker_id: str, *, who: str = "unknown", why: str = "") -> wire.WorkerState:
        """It takes no new steps; its trajectories are moved while their tools run."""
        said = self._post(f"/workers/{_part(worker_id)}/drain", {"who": who, "why": why})
        return wire.WorkerState.model_validate(said)

    def resume(self, worker_id: str, *, who: str = "unknown", why: str = "") -> wire.WorkerState:
        """It takes steps again."""
        said = self._post(f"/workers/{_part(worker_id)}/resume", {"who": who, "why": why})
        return wire.WorkerState.model_validate(said)

    def fleet(self) -> wire_fleet.FleetState:
        """Workers and their engines, changes of the layout, costs, levers."""
        return wire_fleet.FleetState.model_validate(self._get("/fleet"))

    def plan_fleet(self, asked: wire_fleet.FleetPlanIn) -> wire_fleet.FleetPlanState:
        """What a change of the layout would be; nothing happens."""
        said = self._post("/fleet/plan", asked.model_dump())
        return wire_fleet.FleetPlanState.model_validate(said)

    def apply_fleet(self, asked: wire_fleet.FleetApplyIn) -> wire_fleet.ReallocationState:
        """Change the layout; without `wait` it goes on after the answer."""
        said = self._post("/fleet/apply", asked.model_dump())
        return wire_fleet.ReallocationState.model_validate(said)

    def declare_weights(self, asked: wire_fleet.WeightsIn) -> wire_fleet.WeightsState:
        """Who brings weights to engines that join, from now on."""
        said = self._post("/fleet/weights", asked.model_dump())
        return wire_fleet.WeightsState.model_validate(said)

    def decisions(self, limit: int = 100) -> list[wire.Decision]:
        """The newest releases and moves."""
        return list(self._get("/decisions", limit=limit))

    def moves(self, limit: int = 50) -> moving.Moves:
        """The newest moves, and what moves of each run brought."""
        return moving.Moves.model_validate(self._get("/moves", limit=limit))

    def move(self, asked: moving.MoveIn) -> moving.MoveState:
        """Begin a move now."""
        said = asked.model_dump(exclude_none=True)
        return moving.MoveState.model_validate(self._post("/moves", said))

    def plan(self) -> wire.PlanState:
        """What each open rollout got."""
        return wire.PlanState.model_validate(self._get("/plan"))

    def predictor(self) -> told.PredictorState:
        """Who predicts, and which versions there are."""
        return told.PredictorState.model_validate(self._get("/predictor"))

    def predictor_card(self, version: str) -> told.PredictorCard:
        """Card, gate's table and training of one version."""
        return told.PredictorCard.model_validate(self._get(f"/predictor/{version}"))

    def predictor_audit(self, limit: int = 200) -> list[told.PredictorDeed]:
        """Who saved, promoted, forced or took back what, newest first."""
        found = self._get("/predictor/audit", limit=limit)
        return [told.PredictorDeed.model_validate(deed) for deed in found]

    def promote(
        self, version: str, *, who: str = "unknown", why: str = "", force: bool = False
    ) -> told.PredictorState:
        """Put a version live; `force` overrides the gate's refusal."""
        said = {"version": version, "who": who, "why": why, "force": force}
        found = self._post("/predictor/promote", said)
        return told.PredictorState.model_validate(found)

    def rollback(self, *, who: str = "unknown", why: str = "") -> told.PredictorState:
        """Back to the one before."""
        said = {"who": who, "why": why}
        return told.PredictorState.model_validate(self._post("/predictor/rollback", said))

    def begin_job(self, asked: told.JobAsked) -> told.PredictorJob:
        """Train or evaluate there; returns at once."""
        said = asked.model_dump(exclude_none=True)
        return told.PredictorJob.model_validate(self._post("/predictor/jobs", said))

    def jobs(self) -> list[told.PredictorJob]:
        """Every job since it started, newest first."""
        return [told.PredictorJob.model_validate(j) for j in self._get("/predictor/jobs")]

    def job(self, job_id: str) -> told.PredictorJob:
        """How far it is, and how it ended."""
        return told.PredictorJob.model_validate(self._get(f"/predictor/jobs/{job_id}"))

    def cancel_job(self, job_id: str) -> told.PredictorJob:
        """End it."""
        found = self._post(f"/predictor/jobs/{job_id}/cancel", {})
        return told.PredictorJob.model_validate(found)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> ControllerClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _get(self, path: str, **params: Any) -> Any:
        return self._call("GET", path, params={k: v for k, v in params.items() if v is not None})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("POST", path, json=body)

    def _call(self, method: str, path: str, **how: Any) -> Any:
        try:
            reply = self._http.request(method, f"/heddle/v1{path}", **how)
            body: Any = reply.json()
        except httpx.TimeoutException as error:
            message = f"the controller at {self.url} did not answer {path} in time"
            raise ControllerUnreachable(message) from error
        except httpx.HTTPError as error:
            remedy = "start one (heddle up), or name the one that runs: --controller URL"
            message = f"no controller answers at {self.url} ({error}); {remedy}"
            raise ControllerUnreachable(message) from error
        except ValueError as error:
            message = f"what answers at {self.url} is no Heddle controller: {path} is not JSON"
            raise ControllerError(message) from error
        if reply.is_error:
            said = body.get("error") if isinstance(body, dict) else None
            if reply.status_code == 401:
                said = f"{said}; it is in the file token of the stack's data folder: {OPTIONS}"
            raise ControllerRefused(reply.status_code, said or f"status {reply.status_code}")
        return body


def _part(name: str) -> str:
    """One part of a path, whatever the name holds: ids of tasks have slashes."""
    return quote(name, safe="")
