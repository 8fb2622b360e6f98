"""Values read from the figures of the UAV paper, each typed once; they are readings, not data.

The figures are vector graphics, so marks were read from their drawing operators, to about .0005 of
the axis unit. The paper shows no error bars and names no number of seeds. (Liu, Li, Xie, Dai, Fei:
Energy Efficient Computation Offloading in Aerial Edge Networks With Multi-Agent Cooperation, IEEE
TWC 2023, arXiv 2302.09021.)
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

STUDY = "uav-paper"
"""The study whose figures are the paper's."""

AB, B, AG = "AB-MAPPO", "B-MAPPO", "AG-MAPPO"
MADDPG, RANDOMIZED = "MADDPG", "Randomized"

FIRST, TAIL = "first", "last 20"
"""Landmarks of a curve: its first point, and the mean of its last 20 points."""

Marks: TypeAlias = Mapping[str, Mapping[float, float]]
"""Series to x to value."""
Landmarks: TypeAlias = Mapping[str, Mapping[str, float]]
"""Series to landmark to value; `6-10k` is the mean between 6,000 and 10,000 steps."""


def _marks(x: Sequence[float | int], rows: Mapping[str, Sequence[float]]) -> Marks:
    at = [float(value) for value in x]
    return {name: dict(zip(at, row, strict=True)) for name, row in rows.items()}


def _landmarks(names: str, rows: Mapping[str, Sequence[float]]) -> Landmarks:
    columns = (FIRST, *names.split(), TAIL)
    return {name: dict(zip(columns, row, strict=True)) for name, row in rows.items()}


Place: TypeAlias = tuple[str, str, str]
"""Figure, metric and panel."""

CURVES: Mapping[Place, Landmarks] = {
    ("fig3", "world/mu_reward", ""): _landmarks(
        "0-3k 6-10k 20-30k 40-50k 60-70k 70-80k",
        {
            AB: (-0.704, -0.502, -0.338, -0.251, -0.233, -0.239, -0.224, -0.219),
            B: (-0.690, -0.573, -0.358, -0.361, -0.302, -0.315, -0.300, -0.304),
            AG: (-0.708, -0.546, -0.409, -0.429, -0.381, -0.347, -0.347, -0.356),
            MADDPG: (-0.593, -0.586, -0.495, -0.507, -0.463, -0.526, -0.500, -0.504),
        },
    ),
    ("fig3", "world/uav_reward", ""): _landmarks(
        "0-3k 6-10k 20-30k 40-50k 60-70k 70-80k",
        {
            AB: (-0.465, -0.431, -0.334, -0.334, -0.305, -0.298, -0.300, -0.306),
            B: (-0.515, -0.478, -0.382, -0.376, -0.365, -0.316, -0.304, -0.298),
            AG: (-0.509, -0.500, -0.434, -0.402, -0.383, -0.369, -0.373, -0.374),
            MADDPG: (-0.526, -0.522, -0.500, -0.449, -0.394, -0.430, -0.435, -0.438),
        },
    ),
    ("fig4", "world/weighted_energy_mu_avg", ""): _landmarks(
        "0-3k 6-10k 20-30k 40-50k 70-80k",
        {
            AB: (0.555, 0.374, 0.252, 0.224, 0.214, 0.204, 0.201),
            B: (0.598, 0.404, 0.263, 0.257, 0.243, 0.228, 0.223),
            AG: (0.538, 0.430, 0.322, 0.303, 0.299, 0.271, 0.291),
            MADDPG: (0.620, 0.522, 0.390, 0.420, 0.391, 0.388, 0.392),
        },
    ),
    ("fig5", "world/jain_fairness", ""): _landmarks(
        "0-3k 3-6k 6-10k 15-20k 30-40k 50-60k 70-80k",
        {
            AB: (0.501, 0.413, 0.442, 0.503, 0.581, 0.634, 0.648, 0.666, 0.668),
            AG: (0.468, 0.387, 0.442, 0.489, 0.550, 0.585, 0.611, 0.643, 0.646),
        },
    ),
}

TURNS: Mapping[str, Sequence[str]] = {
    "fig3": (FIRST, TAIL),
    "fig4": (FIRST, TAIL),
    "fig5": (FIRST, "0-3k", TAIL),
}
"""Landmarks between which a curve has a trend: from the first to the last, in figure 5 by a dip."""

TIES = {("fig3", "world/uav_reward", "", frozenset({AB, B}))}
"""Series that the paper's own text calls level at the end, though their readings differ."""

_WEIGHT = (0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009)
_TASK_MBIT = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0)

MARKS: Mapping[Place, Marks] = {
    ("fig6", "world/weighted_energy_mu_total", ""): _marks(
        (50, 60, 70, 80, 90, 100),
        {
            AB: (6.00, 7.93, 10.51, 13.03, 15.07, 16.73),
            B: (6.17, 8.98, 11.06, 13.77, 16.59, 18.26),
            AG: (7.56, 9.68, 12.91, 14.67, 17.96, 21.07),
            MADDPG: (9.34, 11.56, 13.69, 17.22, 22.08, 24.83),
            RANDOMIZED: (18.44, 19.99, 22.59, 26.05, 29.51, 33.80),
        },
    ),
    ("fig7", "world/weighted_energy_mu_avg", ""): _marks(
        (4, 6, 8, 10, 12, 14),
        {
            AB: (0.3646, 0.3333, 0.2989, 0.2722, 0.2410, 0.2132),
            B: (0.3792, 0.3432, 0.3087, 0.2801, 0.2563, 0.2197),
            AG: (0.4049, 0.3547, 0.3350, 0.3088, 0.2875, 0.2524),
            MADDPG: (0.4403, 0.4132, 0.3818, 0.3660, 0.3306, 0.3057),
            RANDOMIZED: (0.6449, 0.5625, 0.5114, 0.4828, 0.4644, 0.4527),
        },
    ),
    ("fig8", "world/weighted_energy_mu_avg", ""): _marks(
        (30, 40, 50, 60, 70),
        {
            AB: (0.2911, 0.2704, 0.2505, 0.2315, 0.2191),
            B: (0.3135, 0.2818, 0.2623, 0.2435, 0.2353),
            AG: (0.3868, 0.3464, 0.3109, 0.2876, 0.2709),
            MADDPG: (0.4781, 0.4353, 0.3817, 0.3581, 0.3376),
            RANDOMIZED: (0.5615, 0.5123, 0.4757, 0.4576, 0.4428),
        },
    ),
    ("fig9", "world/mu_energy_avg", ""): _marks(
        _WEIGHT,
        {AB: (0.0993, 0.1086, 0.1320, 0.1645, 0.1781, 0.1903, 0.2283, 0.2698, 0.4089, 0.5681)},
    ),
    ("fig9", "world/uav_energy_avg", ""): _marks(
        _WEIGHT,
        {AB: (152.8, 147.2, 145.2, 143.8, 139.8, 130.9, 128.3, 127.2, 125.4, 124.8)},
    ),
    ("fig10", "world/weighted_energy_mu_avg", "MU CPU"): _marks(
        (0.5, 1.0, 1.5, 2.0, 2.5),
        {
            "K=60": (0.2748, 0.2505, 0.2469, 0.2457, 0.2466),
            "K=80": (0.3277, 0.3020, 0.2801, 0.2805, 0.2789),
            "K=100": (0.3483, 0.3228, 0.3085, 0.2984, 0.2983),
        },
    ),
    ("fig10", "world/weighted_energy_mu_avg", "UAV CPU"): _marks(
        (2, 5, 8, 11, 14),
        {
            "K=60": (0.3046, 0.2505, 0.2488, 0.2472, 0.2479),
            "K=80": (0.3471, 0.2708, 0.2587, 0.2579, 0.2566),
            "K=100": (0.3613, 0.3165, 0.2948, 0.2934, 0.2939),
        },
    ),
    ("fig11", "world/weighted_energy_mu_avg", ""): _marks(
        (0.0, 0.05, 0.10, 0.15, 0.20, 0.25),
        {
            "K=50": (0.2114, 0.2205, 0.2251, 0.2287, 0.2313, 0.2328),
            "K=60": (0.2458, 0.2505, 0.2587, 0.2618, 0.2698, 0.2768),
            "K=70": (0.2658, 0.2752, 0.2846, 0.2876, 0.2895, 0.2973),
            "K=80": (0.2980, 0.3004, 0.3038, 0.3167, 0.3222, 0.3340),
        },
    ),
    ("fig12", "world/weighted_energy_mu_avg", ""): _marks(
        _TASK_MBIT,
        {
            "B=30MHz with DT": (
                *(0.2711, 0.2829, 0.2911, 0.3159, 0.3372),
                *(0.3558, 0.3793, 0.4005, 0.4344),
            ),
            "B=50MHz with DT": (
                *(0.2323, 0.2432, 0.2505, 0.2664, 0.2794),
                *(0.2947, 0.3115, 0.3333, 0.3629),
            ),
            "B=70MHz with DT": (
                *(0.1954, 0.1982, 0.2091, 0.2205, 0.2279),
                *(0.2463, 0.2680, 0.2853, 0.3109),
            ),
            "B=30MHz w/o DT": (
                *(0.3218, 0.3256, 0.3446, 0.3709, 0.3884),
                *(0.4113, 0.4376, 0.4727, 0.5046),
            ),
            "B=50MHz w/o DT": (
                *(0.2713, 0.2800, 0.2958, 0.3159, 0.3290),
                *(0.3517, 0.3697, 0.3950, 0.4350),
            ),
            "B=70MHz w/o DT": (
                *(0.2280, 0.2320, 0.2419, 0.2539, 0.2713),
                *(0.2838, 0.3171, 0.3346, 0.3700),
            ),
        },
    ),
}

FLAT_FROM: Mapping[Place, float] = {
    ("fig10", "world/weighted_energy_mu_avg", "MU CPU"): 1.5,
    ("fig10", "world/weighted_energy_mu_avg", "UAV CPU"): 8.0,
}
"""Where a series has stopped falling: steps from there on are flat, not down."""

LABELS: Mapping[tuple[str, str], str] = {
    ("fig3", "world/mu_reward"): "average reward of a user",
    ("fig3", "world/uav_reward"): "average reward of a UAV",
    ("fig9", "world/mu_energy_avg"): "energy of a user (J)",
    ("fig9", "world/uav_energy_avg"): "energy of a UAV (J)",
}
"""Text of the y axis in figures that show two metrics."""

TAIL_AT = 77_000.0
"""Middle of the last 20 of 266 points, in steps."""


def has_readings(study: str, figure: str) -> bool:
    """Whether values of the paper are known for a figure of a study."""
    return study == STUDY and any(place[0] == figure for place in (*CURVES, *MARKS))


def readings(place: Place) -> Marks:
    """Series to x to value in one panel; landmarks of a curve stand in the middle of their window.

    Empty where nothing was read.
    """
    if place in CURVES:
        rows = CURVES[place].items()
        return {name: {middle(at): y for at, y in row.items()} for name, row in rows}
    return MARKS.get(place, {})


def window(landmark: str) -> tuple[float, float]:
    """Steps that a landmark such as `6-10k` is the mean over: above the first, up to the second."""
    low, _, high = landmark.removesuffix("k").partition("-")
    return 1000.0 * float(low), 1000.0 * float(high)


def middle(landmark: str) -> float:
    """Where a landmark stands on the axis of steps."""
    if landmark in (FIRST, TAIL):
        return 300.0 if landmark == FIRST else TAIL_AT
    return sum(window(landmark)) / 2.0
