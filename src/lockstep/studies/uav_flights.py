"""The study `uav-flights`: what flies in figure 13 of the UAV paper, trained; no torch.

Two scenes are trained with AB-MAPPO: a small one (W=500, K=12, M=3, 50 slots) and the paper's own
(W=1000, K=60, M=10). The reference implementation draws figure 13 without any training, so these
two runs are not among the 555 of `uav-paper`.
"""

from lockstep.studies.study import Figure, Study, sweep
from lockstep.studies.uav_paper import LEARNERS, SMOKE_STEPS, trained

SMALL, LARGE = "W=500", "W=1000"
"""The two scenes, by the width of their area."""


def study(smoke: bool = False, *, steps: int = 80_000, seeds: tuple[int, ...] = (42,)) -> Study:
    """Two trainings and one figure."""
    steps = min(steps, SMOKE_STEPS) if smoke else steps
    ours = next(iter(LEARNERS.values()))
    small = trained(
        ours, steps=steps, n_users=12, n_uavs=3, width_m=500.0, height_m=500.0, n_slots=50
    )
    scenes = {SMALL: small, LARGE: trained(ours, steps=steps)}
    flights = Figure(
        name="fig13",
        title="Flights of the UAVs",
        kind="flights",
        x_label="x (m)",
        y_label="y (m)",
        metrics=(),
        points=sweep("fig13", scenes, seeds=seeds),
    )
    return Study(name="uav-flights", smoke=smoke, figures=(flights,))
