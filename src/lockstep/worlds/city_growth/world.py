"""The city-growth world: L cities that grow month by month, side by side."""

import difflib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep.core.actions import Action, Observation
from lockstep.core.streams import Draw, Streams
from lockstep.core.world import CriticInput, Step
from lockstep.worlds.city_growth import land, month, observe, turn
from lockstep.worlds.city_growth.candidates import (
    CandidateSet,
    budget_of,
    enumerate_set,
    slot_price,
)
from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.map import City
from lockstep.worlds.city_growth.metrics import month_metrics
from lockstep.worlds.city_growth.schedule import acting
from lockstep.worlds.city_growth.spec import world_spec
from lockstep.worlds.city_growth.state import FREE, LEDGER, NEVER, TALLY, Numbers, State
from lockstep.worlds.city_growth.tables import POOLED, Tables, make_tables, unrecorded


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One lane at one moment, for pictures."""

    month: int
    city: City
    owner: npt.NDArray[np.int64]  # [N] agent, -1 free
    kind: npt.NDArray[np.int64]  # [N] type, -1 free
    price: npt.NDArray[np.float32]  # [N] land price at the slots
    field: npt.NDArray[np.float32]  # [height, width] land price everywhere, of this month alone
    balance: npt.NDArray[np.float64]  # [A] thousand GBP, of the agent's ledger
    income: npt.NDArray[np.float64]  # [A] a month


class CityGrowth:
    """Implements `core.world.World`; docs/worlds/city_growth.md has rules and numbers.

    A turn: `observe` enumerates the agent's candidates, `act` names some of them; when the last
    role of a phase has acted they are built, in the order of the phase. `advance` closes the month.
    """

    def __init__(
        self,
        config: CityConfig,
        *,
        lanes: int,
        device: torch.device | str = "cpu",
        compile: bool = False,  # noqa: ARG002 - not used: on the CPU a turn asks the host to skip work
        tables: Tables | None = None,
    ) -> None:
        self.config = config
        self.lanes = lanes
        self.device = torch.device(device)
        # On the CPU a look at a tensor is cheap and may save work; elsewhere nothing waits for one,
        # and nothing computed before a step is used in it, so that a graph can replay the step.
        self._asks = self.device.type == "cpu"
        self.tables = make_tables(config, self.device) if tables is None else tables
        self.spec = world_spec(config, self.tables)
        self.numbers = Numbers.of(config, lanes=lanes, device=self.device)
        self._metric_names = [metric.name for metric in self.spec.metrics]
        self._acting = torch.tensor(acting(config), device=self.device)  # [T, A]
        self._streams = Streams(torch.zeros(lanes, dtype=torch.int64, device=self.device))
        self._sets: dict[str, CandidateSet] = {}
        self._picks: dict[str, Tensor] = {}
        self._built: dict[int, turn.Built] = {}
        self._acts: Tensor | None = None
        self._busy: list[bool] | None = None
        self._seen: tuple[Tensor, Tensor] | None = None
        self._recorded = False
        self._blank: dict[int, CandidateSet] = {}
        self._waiting: dict[str, Observation] = {}
        self.world_state = self._first_month()

    def _first_month(self) -> State:
        """Every lane at the start of an episode, in the city its stream draws."""
        config, ground, L = self.config, self.tables.ground, self.lanes
        A, B, Y = len(config.agents), max(config.ledgers) + 1, config.n_types
        N, E = config.map.slot_count, ground.point_xy.shape[1]

        def full(value: float | int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.full((L, *shape), value, dtype=dtype, device=self.device)

        city = self._streams.draw("reset/map").integers(config.map.city_count)
        start = full(0.0, B, dtype=torch.float64)
        for agent, ledger in zip(config.agents, config.ledgers, strict=True):
            start[:, ledger] += agent.start_money
        # Money is kept in whole thousands from the start.
        start = torch.round(start * self.numbers.start_share.double().unsqueeze(-1))
        far = full(torch.inf, E)
        ledger_tally = full(0.0, B, len(LEDGER), dtype=torch.float64)
        ledger_tally[..., LEDGER.index("lowest")] = start
        return State(
            month=full(0, dtype=torch.int64),
            map=city,
            owner=full(FREE, N, dtype=torch.int64),
            kind=full(FREE, N, dtype=torch.int64),
            paid=full(0.0, N),
            near_px=full(torch.inf, A, N),
            near_px2=far,
            free_neighbours=ground.degree[city],
            field=land.refresh(ground.base[city, 0], far, None, config.land),
            balance=start,
            income=full(0.0, A, dtype=torch.float64),
            prestige=full(0.0, A, dtype=torch.float64),
            count=full(0, A, Y, dtype=torch.int64),
            last_built=full(NEVER, A, Y, dtype=torch.int64),
            tally=full(0.0, A, len(TALLY), dtype=torch.float64),
            ledger=ledger_tally,
        )

    def reset(self, keys: Tensor) -> None:
        """Starts every lane afresh, in month 0, from its stream key `[L]`."""
        self._streams.load_state_dict({"key": keys, "step": torch.zeros_like(keys)})
        self.world_state.copy_(self._first_month())
        self._forget()

    def _forget(self) -> None:
        """Drops what was asked or answered since the last step."""
        self._sets.clear()
        self._picks.clear()
        self._built.clear()
        self._acts = None
        self._busy = None
        self._seen = None

    def acts(self) -> Tensor:
        """Who acts this month `[L, A]`."""
        if self._acts is None or not self._asks:
            self._acts = self._acting.index_select(0, self.world_state.month)
        return self._acts

    def _anybody(self, agent: int) -> bool:
        """Whether the agent acts in any lane; True where asking costs."""
        if not self._asks:
            return True
        if self._busy is None:
            self._busy = self.acts().any(dim=0).tolist()
        return self._busy[agent]

    def observe(self, role: str) -> Observation:
        """What the agent of `role` sees now: vectors and its candidates.

        An agent whose month it is not has an empty set: it can only stop.
        """
        agent = self.config.agent_names.index(role)
        candidates = self._offered(role)
        if self.config.debt == "soft" and not self._anybody(agent):
            return self._idle(role, agent, candidates)
        return self._offer(agent, candidates)

    def _idle(self, role: str, agent: int, candidates: CandidateSet) -> Observation:
        """What an agent sees that acts in no lane: the same each time, but for its vectors."""
        if role not in self._waiting:
            self._waiting[role] = self._offer(agent, candidates)
        waiting = self._waiting[role]
        fresh = {"obs": self._vector(agent)}
        if self.config.raster:
            picture = observe.raster(self.world_state, agent, self.tables.ground, self.config)
            fresh["raster"] = picture.unsqueeze(1)
        return replace(waiting, features=dict(waiting.features) | fresh)

    def _offer(self, agent: int, candidates: CandidateSet) -> Observation:
        features = {
            "obs": self._vector(agent),
            "candidate/id": candidates.id.unsqueeze(1),
            "candidate/resource": candidates.slots.unsqueeze(1),
        }
        if candidates.budget is not None:
            features["candidate/cost"] = (candidates.cost * candidates.legal).unsqueeze(1)
            features["candidate/budget"] = candidates.budget.unsqueeze(1)
        if self.config.raster:
            picture = observe.raster(self.world_state, agent, self.tables.ground, self.config)
            features["raster"] = picture.unsqueeze(1)
        legal = torch.nn.functional.pad(candidates.legal, (1, 0), value=True)
        return Observation(
            features=features,
            acts=self.acts()[:, agent : agent + 1],
            entities={"candidate": candidates.features.unsqueeze(1)},
            legal={"build": legal.unsqueeze(1)},
        )

    def _vector(self, agent: int) -> Tensor:
        """What the agent sees beside its candidates `[L, 1, D]`."""
        return self._vectors()[0][:, agent : agent + 1, : -len(POOLED)]

    def _offered(self, role: str) -> CandidateSet:
        """The candidates of `role`, those that were enumerated last if nothing changed since.

        What was enumerated outside of a CUDA graph is no part of it and must not be used inside.
        """
        recorded = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if recorded != self._recorded:
            self._sets.clear()
            self._recorded = recorded
        return self._sets[role] if role in self._sets else self.candidates(role)

    def candidates(self, role: str) -> CandidateSet:
        """The candidates of `role` as the city stands; its picks count rows of this set."""
        agent = self.config.agent_names.index(role)
        if self._anybody(agent):
            acts = self.acts()[:, agent]
            found = enumerate_set(self.world_state, agent, acts, self.tables, self.config)
        else:
            found = self._nothing(agent)
        self._sets[role] = found
        return found

    def _nothing(self, agent: int) -> CandidateSet:
        """The empty set, without the work; equal to what would be enumerated."""
        if agent not in self._blank:
            nobody = torch.zeros(self.lanes, dtype=torch.bool, device=self.device)
            self._blank[agent] = enumerate_set(
                self.world_state, agent, nobody, self.tables, self.config
            )
        budget = budget_of(self.world_state, agent, self.config)
        return replace(self._blank[agent], budget=budget)

    def state(self, role: str) -> CriticInput:
        """The critic's input: every agent's vector, and `state` with all of them at once.

        Both end with the candidates of `role` as a few numbers, which are 0 in the vectors of the
        others: what they will choose from is not known yet.
        """
        agent = self.config.agent_names.index(role)
        rows, every = self._vectors()
        if self._anybody(agent):
            offered = self._offered(role)
            with unrecorded(self.device):
                pooled = offered.pooled()
            rows, every = rows.clone(), torch.cat((every, pooled), dim=-1)
            rows[:, agent, -len(POOLED) :] = pooled
        else:
            every = torch.nn.functional.pad(every, (0, len(POOLED)))
        seen = dict(zip(self.config.agent_names, rows.split(1, dim=1), strict=True))
        return seen | {"state": every}

    def _vectors(self) -> tuple[Tensor, Tensor]:
        """Every agent's vector `[L, A, D + P]`, the last P numbers 0, and the global one `[L, S]`.

        On the CPU they are worked out once between changes.
        """
        if self._seen is None or not self._asks:
            ground, acts = self.tables.ground, self.acts()
            with unrecorded(self.device):
                shared, own = observe.overview(self.world_state, acts, ground, self.config)
            L, A = own.shape[:2]
            blank = ground.blank_pool.expand(L, A, -1)
            rows = torch.cat((shared.unsqueeze(1).expand(L, A, -1), own, blank), dim=-1)
            self._seen = (rows, torch.cat((shared, own.flatten(1)), dim=-1))
        return self._seen

    def act(self, role: str, action: Action) -> None:
        """Records the picks of `role`; the last role of a phase makes the phase build."""
        self._picks[role] = action["build"][:, 0]  # [L, k]
        if role not in self._sets:
            self.candidates(role)  # nobody looked, so the picks mean the city as it stands
        phase = next(phase for phase in self.spec.phases if role in phase)
        if role != phase[-1]:
            return
        missing = [name for name in phase if name not in self._picks]
        if missing:
            raise ValueError(
                f"act('{role}') must come last in its phase ({', '.join(phase)}), "
                f"got no action of {', '.join(missing)}"
            )
        for name in phase:
            self._take_turn(name)
        self._sets.clear()  # what others were offered may be gone

    def _take_turn(self, role: str) -> None:
        agent = self.config.agent_names.index(role)
        candidates = self._sets[role]
        state, ground = self.world_state, self.tables.ground
        if not self._anybody(agent):
            return
        # What is said out of turn does not count, in any lane and however many there are.
        acts, self._seen = self.acts()[:, agent : agent + 1], None
        with unrecorded(self.device):
            picks = self._picks[role] * acts
            if self.config.expansion != "none":
                picks = turn.expand(picks, candidates, state.map, ground, self.config)
            built = turn.build(state, agent, picks, candidates, ground, self.config)
            self._count(agent, acts.squeeze(-1), candidates, built)
        self._built[agent] = built

    def _count(self, agent: int, acts: Tensor, candidates: CandidateSet, built: turn.Built) -> None:
        """Adds a turn to the tally of its episode, in the lanes where the agent `acts` `[L]`."""
        acts = acts.long()
        count, idle = candidates.count * acts, acts * (built.picks[:, 0] == 0)
        turns = torch.stack((acts, count, candidates.dropped, idle), dim=-1)
        lost = built.picks[:, 1:] - built.picks[:, :-1]  # conflicts, refused
        gained = torch.cat((turns, lost), dim=-1)
        tally = self.world_state.tally.select(1, agent)  # [L, len(TALLY)]
        tally.narrow(1, 0, gained.shape[1]).add_(gained)
        most = tally.select(1, TALLY.index("most"))
        torch.maximum(most, count.double(), out=most)

    def advance(self) -> Step:
        """Closes the month, renews the land price, and restarts the lanes that ended."""
        missing = [role.name for role in self.spec.roles if role.name not in self._picks]
        if missing:
            raise ValueError(f"advance() must follow act() of every role, got none of {missing}")
        config, state, ground = self.config, self.world_state, self.tables.ground
        with unrecorded(self.device):
            closed = month.close(state, self._built, self.numbers, ground, config)
            terms = torch.stack(list(closed.terms.values()), dim=-1)  # [L, A, n], thousand GBP
            state.tally.select(-1, TALLY.index("return")).add_(terms.sum(dim=-1))
            scaled = terms / config.reward.scale
        reward = scaled.sum(dim=-1).float()  # [L, A]
        over = not self._asks or bool(closed.ended.any())
        metrics = month_metrics(
            state, scaled, closed.ended, self._metric_names, ground, config, over=over
        )
        self._streams.tick()
        with unrecorded(self.device):
            self._renew_prices()
        if over:
            state.copy_(state.replaced_where(closed.ended, self._first_month()))
        self._forget()
        return Step(
            reward={name: reward[:, a : a + 1] for a, name in enumerate(config.agent_names)},
            terminated=closed.ended.clone(),
            truncated=torch.zeros_like(closed.ended),
            elapsed=torch.ones(self.lanes, device=self.device),
            metrics=metrics,
            final={},
        )

    def _renew_prices(self) -> None:
        """Turns the page of the calendar, and with it the land price."""
        state, ground = self.world_state, self.tables.ground
        state.month.add_(1)
        now = state.month.clamp(max=self.config.horizon - 1)  # ended lanes are about to restart
        tabled = ground.base[state.map, now]
        state.field.copy_(land.refresh(tabled, state.near_px2, state.field, self.config.land))

    def set(self, name: str, value: Tensor) -> None:
        """Changes a scenario number to `value` `[L]`; `start_share` counts from the next start."""
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
        self._forget()

    def frame(self, lane: int) -> Frame:
        """The city of one lane, with the land price on every pixel as of this month alone."""
        one = State(**{name: x[lane : lane + 1] for name, x in self.world_state.tensors().items()})
        now = {name: x[0].cpu().numpy().copy() for name, x in one.tensors().items()}
        city = self.tables.cities[int(now["map"])]
        return Frame(
            month=int(now["month"]),
            city=city,
            owner=now["owner"],
            kind=now["kind"],
            price=slot_price(one, self.tables.ground, self.config)[0].cpu().numpy().copy(),
            field=land.picture(city, now["owner"] >= 0, int(now["month"]), self.config),
            balance=now["balance"][list(self.config.ledgers)],
            income=now["income"],
        )


def with_maps(config: CityConfig, *, map_seed: int, n_maps: int) -> CityConfig:
    """The same scenario on other generated cities, for tests on maps never trained on."""
    return replace(config, map=replace(config.map, map_seed=map_seed, n_maps=n_maps))
