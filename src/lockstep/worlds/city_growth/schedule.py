"""Whose month it is; no torch."""

from lockstep.worlds.city_growth.config import CityConfig


def acting(config: CityConfig) -> list[list[bool]]:
    """For each month and agent, whether it acts."""
    active = [
        [month >= agent.active_from for agent in config.agents] for month in range(config.horizon)
    ]
    if config.schedule == "month":
        return active
    if config.schedule == "turns":
        return _turns(active)
    return [
        [here and name in _phase(config, month) for name, here in zip(config.agent_names, row,
                                                                      strict=True)]
        for month, row in enumerate(active)
    ]  # fmt: skip


def _phase(config: CityConfig, month: int) -> tuple[str, ...]:
    return config.phases[month // config.period % len(config.phases)].agents


def _turns(active: list[list[bool]]) -> list[list[bool]]:
    """One a month, in order; an agent that is not active yet is passed over."""
    rows, turn = [], 0
    for here in active:
        n = len(here)
        order = [(turn + i) % n for i in range(n)]
        chosen = next((a for a in order if here[a]), None)
        rows.append([a == chosen for a in range(n)])
        turn = turn if chosen is None else chosen + 1
    return rows


def world_phases(config: CityConfig) -> tuple[tuple[str, ...], ...]:
    """The phases of a step: agents that act at once share one, others follow each other."""
    if config.schedule != "phases":
        return tuple((name,) for name in config.agent_names)
    phases: list[tuple[str, ...]] = []
    for phase in config.phases:
        if phase.concurrent:
            phases.append(phase.agents)
        else:
            phases += [(name,) for name in phase.agents]
    return tuple(phases)
