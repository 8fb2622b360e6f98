"""A city that notes down every turn: what was on offer, what was chosen, and what it cost."""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from torch import Tensor

from lockstep.core.actions import Action
from lockstep.core.world import Step
from lockstep.worlds.city_growth import turn
from lockstep.worlds.city_growth.candidates import CandidateSet
from lockstep.worlds.city_growth.solvers.ranked import net_value, pool_score
from lockstep.worlds.city_growth.solvers.search import stratified
from lockstep.worlds.city_growth.solvers.sequences import pools
from lockstep.worlds.city_growth.world import CityGrowth, Frame

Row: TypeAlias = dict[str, str | int | float]


@dataclass(kw_only=True)
class Notes:
    """Rows of one episode, as they came."""

    start: dict[str, int]
    """Each agent's balance before the first month."""
    final: dict[str, int]
    """Each agent's balance after the last month."""
    asked: dict[str, Tensor] = field(default_factory=dict)
    """Picks `[1, k]` of this month by role."""
    pool: list[Row] = field(default_factory=list)
    sequences: list[Row] = field(default_factory=list)
    actions: list[Row] = field(default_factory=list)


class RecordedCity(CityGrowth):
    """A city of one lane; `turns` tells what happened since the last reset, in plain rows."""

    notes: Notes
    final_frame: Frame | None
    """The city at the end of the episode, since that also begins the next."""

    def reset(self, keys: Tensor) -> None:
        """Starts afresh and forgets what was noted."""
        super().reset(keys)
        start = balances(self)
        self.notes = Notes(start=start, final=start)
        self.final_frame = None

    def act(self, role: str, action: Action) -> None:
        """Records the picks; when the phase builds, notes each of its turns."""
        self.notes.asked[role] = action["build"][:, 0]
        phase = next(phase for phase in self.spec.phases if role in phase)
        acts = dict(zip(self.config.agent_names, self.acts()[0].tolist(), strict=True))
        # Nothing is built between the first look of a phase and its last act, so candidates listed
        # now are those that the agents were offered.
        building = [name for name in phase if acts[name] and phase[-1] == role]
        offers = [offer_to(self, name, self.notes.asked[name]) for name in building]
        free, balance = self.world_state.owner[0] < 0, balances(self)
        super().act(role, action)
        for offer in offers:
            self.notes.pool += pool_rows(self, offer, free)
            self.notes.sequences += sequence_rows(self, offer)
            self.notes.actions += action_rows(self, offer, free, balance)

    def advance(self) -> Step:
        """Closes the month; at the end of the episode keeps what the next one wipes out."""
        months = int(self.world_state.month[0]) + 1
        may_end = months == self.config.horizon or self.config.bankruptcy == "terminate"
        built = self.frame(0) if may_end else None
        step = super().advance()
        self.notes.asked.clear()
        if built is not None and bool(step.terminated[0] | step.truncated[0]):
            names = self.config.agent_names
            self.notes.final = {
                name: round(float(step.metrics[f"final_balance_{name}"][0]) / months)
                for name in names
            }
            balance = np.array([self.notes.final[name] for name in names], dtype=np.float64)
            self.final_frame = replace(built, month=months, balance=balance)
        return step

    def turns(self) -> dict[str, list[Row]]:
        """`pool`, `sequences` and `actions` of every turn; actions end with a total by agent."""
        totals = [_total(self.notes, name) for name in self.config.agent_names]
        return {
            "pool": list(self.notes.pool),
            "sequences": list(self.notes.sequences),
            "actions": [*self.notes.actions, *totals],
        }


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What one agent could choose from in its turn, and what it asked for."""

    role: str
    candidates: CandidateSet
    score: Tensor  # [1, C]
    npv: Tensor  # [1, C]
    picks: Tensor  # [1, k], the expansion included

    def slots(self, row: int) -> list[int]:
        """The slots of a candidate."""
        return [slot for slot in self.candidates.slots[0, row].tolist() if slot >= 0]


def offer_to(world: CityGrowth, role: str, picks: Tensor) -> Offer:
    """What `role` is offered as the city stands; `picks` are `[1, k]`."""
    candidates = world.candidates(role)
    if world.config.expansion != "none":
        ground, city = world.tables.ground, world.world_state.map
        picks = turn.expand(picks, candidates, city, ground, world.config)
    return Offer(
        role=role,
        candidates=candidates,
        score=pool_score(world, role, candidates),
        npv=net_value(candidates),
        picks=picks,
    )


def balances(world: CityGrowth) -> dict[str, int]:
    """Each agent's balance in lane 0, that of its ledger."""
    balance = world.world_state.balance[0].tolist()
    ledgers = zip(world.config.agent_names, world.config.ledgers, strict=True)
    return {name: round(balance[ledger]) for name, ledger in ledgers}


def standing(world: CityGrowth, offer: Offer, free: Tensor) -> list[int]:
    """The picked rows that were in fact built, in order; `free` are the slots before the phase."""
    agent = world.config.agent_names.index(offer.role)
    new = (world.world_state.owner[0] == agent) & free
    built, taken = list[int](), set[int]()
    for pick in offer.picks[0].tolist():
        if pick == 0:
            break
        slots = offer.slots(pick - 1)
        if slots and bool(new[slots].all()) and not taken.intersection(slots):
            built.append(pick - 1)
            taken.update(slots)
    return built


def pool_rows(world: CityGrowth, offer: Offer, free: Tensor) -> list[Row]:
    """All candidates of a turn; `chosen` is 0 or the order in which they were built."""
    built = standing(world, offer, free)
    return [
        {
            "month": int(world.world_state.month[0]),
            "agent": offer.role,
            "chosen": built.index(row) + 1 if row in built else 0,
            **_described(world, offer, row),
        }
        for row in offer.candidates.legal[0].nonzero().flatten().tolist()
    ]


def sequence_rows(world: CityGrowth, offer: Offer) -> list[Row]:
    """The ten best sequences of each length, by score."""
    found, rows = offer.candidates, list[Row]()
    pool = pools(found, offer.score)[0]
    for length, plans in enumerate(stratified(pool, world.config.picks), start=1):
        for rank, plan in enumerate(plans, start=1):
            picked = list(plan.rows)
            names = [
                f"{_type(world, offer, row)}@{'+'.join(map(str, offer.slots(row)))}"
                for row in picked
            ]
            rows.append(
                {
                    "month": int(world.world_state.month[0]),
                    "agent": offer.role,
                    "length": length,
                    "rank": rank,
                    "candidates": " ".join(names),
                    "cost": round(float(found.cost[0, picked].sum())),
                    "income": round(float(found.income[0, picked].sum())),
                    "score": round(plan.total, 6),
                }
            )
    return rows


def action_rows(
    world: CityGrowth, offer: Offer, free: Tensor, balance: dict[str, int]
) -> list[Row]:
    """What was built in a turn; `balance` by agent is brought up to date with what it cost."""
    ledgers = dict(zip(world.config.agent_names, world.config.ledgers, strict=True))
    sharing = [name for name, ledger in ledgers.items() if ledger == ledgers[offer.role]]
    rows = []
    for order, row in enumerate(standing(world, offer, free), start=1):
        line: Row = {
            "month": int(world.world_state.month[0]),
            "agent": offer.role,
            "order": order,
            **_described(world, offer, row),
            "balance_before": balance[offer.role],
        }
        left = balance[offer.role] - int(line["cost"])
        balance.update(dict.fromkeys(sharing, left))
        rows.append(line | {"balance_after": left})
    return rows


def _type(world: CityGrowth, offer: Offer, row: int) -> str:
    agent = world.config.agents[world.config.agent_names.index(offer.role)]
    return agent.types[int(offer.candidates.type[0, row])].name


def _described(world: CityGrowth, offer: Offer, row: int) -> Row:
    found, slots = offer.candidates, offer.slots(row)
    city = world.tables.cities[int(world.world_state.map[0])]
    x, y = city.slot_xy[slots].mean(axis=0).tolist()
    return {
        "type": _type(world, offer, row),
        "slots": "+".join(map(str, slots)),
        "x": round(x, 3),
        "y": round(y, 3),
        "angle": round(float(city.angle_deg[slots[0]]), 3),
        "level": int(city.level[slots].min()),
        "cost": round(float(found.cost[0, row])),
        "income": round(float(found.income[0, row])),
        "prestige": round(float(found.prestige[0, row]), 3),
        "score": round(float(offer.score[0, row]), 6),
        "npv": round(float(offer.npv[0, row])),
    }


def _total(notes: Notes, name: str) -> Row:
    """The sums of an agent's actions, from its first balance to its last."""
    mine = [row for row in notes.actions if row["agent"] == name]

    def total(column: str) -> float:
        return round(sum(float(row[column]) for row in mine), 6)

    counted: Row = {"month": "total", "agent": name, "order": len(mine)}
    blank: Row = dict.fromkeys(("type", "slots", "x", "y", "angle", "level"), "")
    return {
        **counted,
        **blank,
        "cost": round(total("cost")),
        "income": round(total("income")),
        "prestige": total("prestige"),
        "score": total("score"),
        "npv": round(total("npv")),
        "balance_before": notes.start[name],
        "balance_after": notes.final[name],
    }
