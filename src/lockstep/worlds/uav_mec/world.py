"""The UAV edge-computing world: L lanes of K users and M UAVs that step together."""

import difflib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep.core.actions import Action, Observation
from lockstep.core.programs import compiled
from lockstep.core.streams import Draw, Streams
from lockstep.core.world import CriticInput, Step
from lockstep.worlds.uav_mec import observe, slot
from lockstep.worlds.uav_mec.allocation import decode_command, decode_request
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.spec import world_spec
from lockstep.worlds.uav_mec.state import Draws, Numbers, Request, SlotRecord, State, Twin


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One lane at one moment, for pictures."""

    slot: int
    mu_xy_m: npt.NDArray[np.float32]  # [K, 2]
    uav_xy_m: npt.NDArray[np.float32]  # [M, 2]
    association: npt.NDArray[np.int64]  # [K] of the last slot: 0 local, m for UAV m
    relay: npt.NDArray[np.bool_]  # [K]
    rho: npt.NDArray[np.float32]  # [K]


class UavMec:
    """Implements `core.world.World`; docs/worlds/uav_mec.md has the equations.

    Observations and critic inputs are pure functions of the state, computed when asked for:
    whatever the world returns is a fresh tensor that later steps do not touch.
    """

    def __init__(
        self,
        config: UavMecConfig,
        *,
        lanes: int,
        device: torch.device | str = "cpu",
        compile: bool = False,
    ) -> None:
        self.config = config
        self.spec = world_spec(config)
        self.lanes = lanes
        self.device = torch.device(device)
        self.numbers = Numbers.of(config, lanes=lanes, device=self.device)
        self.last: SlotRecord | None = None
        self._streams = Streams(torch.zeros(lanes, dtype=torch.int64, device=self.device))
        self._request: Request | None = None
        self._actions: dict[str, Action] = {}
        self._everyone = {
            role.name: torch.ones(lanes, role.agents, dtype=torch.bool, device=self.device)
            for role in self.spec.roles
        }

        def program(function: Any) -> Any:
            return partial(compiled(function) if compile else function, config=config)

        self._decode = program(decode_request)
        self._advance = program(_advance)
        self._see_as_users = program(observe.see_as_users)
        self._see_as_uavs = program(observe.see_as_uavs)
        self._see_as_critic = program(observe.see_as_critic)
        self.world_state = self._first_slot()
        self._twin = self._seen_twin()

    def _first_slot(self) -> State:
        draws = Draws.at(self._streams)
        arrival = slot.arrivals(draws, numbers=self.numbers, config=self.config)
        first = slot.begin(draws.start, arrival, numbers=self.numbers, config=self.config)
        return State(**{name: x.clone() for name, x in first.tensors().items()})

    def _seen_twin(self) -> Twin:
        return observe.twin_of(self.world_state, numbers=self.numbers, config=self.config)

    def reset(self, keys: Tensor) -> None:
        """Starts every lane afresh, at slot 0, from its stream key `[L]`."""
        self._streams.load_state_dict({"key": keys, "step": torch.zeros_like(keys)})
        self.world_state.copy_(self._first_slot())
        self._twin.copy_(self._seen_twin())
        self._actions.clear()
        self._request = None
        self.last = None

    def observe(self, role: str) -> Observation:
        """What the agents of `role` see now; in two phases, UAVs see what users just asked for."""
        if role == "mu":
            vector, rows = self._see_as_users(self._twin, self._streams)
            entities = {"uav": rows} if self.config.entity_rows else {}
            return Observation(
                features={"obs": vector}, acts=self._everyone[role], entities=entities
            )
        if self.config.two_phase and self._request is None:
            raise ValueError(
                "observe('uav') must follow act('mu') in this slot, got no users' action: "
                "UAVs see the requests of the slot (uav_obs_mask_mode='current_assoc')"
            )
        choice, rho = self.world_state.last_choice, self.world_state.last_rho
        if self.config.two_phase and self._request is not None:
            choice, rho = self._request.choice, self._request.rho
        vector = self._see_as_uavs(self._twin, choice, rho, self._streams)
        return Observation(features={"obs": vector}, acts=self._everyone[role])

    def act(self, role: str, action: Action) -> None:
        """Records the decisions of `role`; users' decisions become requests at once."""
        self._actions[role] = action
        if role == "mu":
            self._request = self._decode(action, self.world_state)

    def advance(self) -> Step:
        """Plays the slot and starts a new period in the lanes that ended theirs."""
        if self._request is None or "uav" not in self._actions:
            missing = "mu" if self._request is None else "uav"
            raise ValueError(f"advance() must follow act() of every role, got none of {missing!r}")
        self._streams.tick()
        outcome, final = self._advance(
            self.world_state,
            self._twin,
            self._request,
            self._actions["uav"],
            self._streams,
            numbers=self.numbers,
        )
        self.last = outcome.record
        self._actions.clear()
        self._request = None
        never = torch.zeros_like(outcome.ended)
        return Step(
            reward={"mu": outcome.mu_reward, "uav": outcome.uav_reward},
            terminated=never if self.spec.truncates else outcome.ended,
            truncated=outcome.ended if self.spec.truncates else never,
            elapsed=torch.ones(self.lanes, device=self.device),
            metrics=outcome.metrics,
            final=final,
        )

    def state(self, role: str) -> CriticInput:  # noqa: ARG002 (the same for both roles)
        """The critic's input: all rows before this slot's decisions, and the true state vector."""
        seen: CriticInput = self._see_as_critic(
            self._twin, self.world_state, self._streams, numbers=self.numbers
        )
        return seen

    def set(self, name: str, value: Tensor) -> None:
        """Changes a scenario number, in the config's unit, to `value` `[L]`."""
        if name not in self.spec.settable:
            near = difflib.get_close_matches(name, self.spec.settable, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"use one of {self.spec.settable}"
            raise ValueError(f"name must be a settable scenario number, got {name!r}; {hint}")
        if value.shape != (self.lanes,):
            raise ValueError(
                f"value of {name} must have one number per lane, shape ({self.lanes},), "
                f"got {tuple(value.shape)}"
            )
        getattr(self.numbers, name).copy_(value)
        self._twin.copy_(self._seen_twin())

    def place_uavs(self, xy_m: Tensor) -> None:
        """Puts the UAVs at `[L, M, 2]`, at rest: for oracles and tests, never for agents."""
        self.world_state.uav_xy_m.copy_(xy_m)
        self.world_state.uav_velocity_mps.zero_()
        self._twin.copy_(self._seen_twin())

    def draw(self, purpose: str) -> Draw:
        """Random numbers of the lanes at the current step, for heuristics."""
        return self._streams.draw(purpose)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the world's future, between two steps."""
        return {
            "state": {name: x.clone() for name, x in self.world_state.tensors().items()},
            "numbers": {name: x.clone() for name, x in self.numbers.tensors().items()},
            "streams": self._streams.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a saved future."""
        self.world_state.copy_(State(**state["state"]))
        self.numbers.copy_(Numbers(**state["numbers"]))
        self._streams.load_state_dict(state["streams"])
        self._twin.copy_(self._seen_twin())
        self._actions.clear()
        self._request = None
        self.last = None

    def frame(self, lane: int) -> Frame:
        """Where everything is in one lane, and who used which UAV in the last slot."""
        now = {name: x[lane].cpu().numpy().copy() for name, x in self.world_state.tensors().items()}
        relay = np.zeros(self.config.n_users, dtype=np.bool_)
        if self.last is not None:
            relay = self.last.relay[lane].cpu().numpy().copy() & (now["last_choice"] > 0)
        return Frame(
            slot=int(now["slot"]),
            mu_xy_m=now["mu_xy_m"],
            uav_xy_m=now["uav_xy_m"],
            association=now["last_choice"],
            relay=relay,
            rho=now["last_rho"],
        )


def _advance(
    state: State,
    twin: Twin,
    request: Request,
    uav_action: Action,
    streams: Streams,
    *,
    numbers: Numbers,
    config: UavMecConfig,
) -> tuple[slot.Outcome, CriticInput]:
    """One slot, written into `state` and `twin`.

    The final critic input is there only where the end bootstraps.
    """
    command = decode_command(uav_action)
    outcome, before_reset, after = slot.play(
        state, request, command, Draws.at(streams), numbers=numbers, config=config
    )
    final: CriticInput = {}
    if config.timeout_bootstrap:
        before = observe.twin_of(before_reset, numbers=numbers, config=config)
        final = observe.see_as_critic(before, before_reset, streams, numbers=numbers, config=config)
    state.copy_(after)
    twin.copy_(observe.twin_of(state, numbers=numbers, config=config))
    return outcome, final
