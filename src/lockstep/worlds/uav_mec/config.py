"""Every number and switch of the UAV edge-computing world, with its two scenarios and a demo."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

SETTABLE = (
    "bandwidth_mhz",
    "relay_bandwidth_mhz",
    "mu_power_w",
    "uav_power_w",
    "f_max_loc_ghz",
    "f_max_edge_ghz",
    "task_min_mbit",
    "task_max_mbit",
    "cycles_min",
    "cycles_max",
    "deviation",
    "energy_weight",
    "latency_factor",
    "boundary_factor",
    "collision_factor",
    "v_max_mps",
    "a_max_mps2",
    "drag_ratio",
    "mu_speed_mps",
)
"""Fields that may differ from lane to lane and change between rollouts (`world.set`)."""


@dataclass(frozen=True, kw_only=True)
class UavMecConfig:
    """One scenario; the defaults are the profile `paper` (docs/worlds/uav_mec.md gives sources)."""

    name: ClassVar[str] = "uav-mec"
    settable: ClassVar[tuple[str, ...]] = SETTABLE

    n_users: int = 60
    """Mobile users (MUs) on the ground, K."""
    n_uavs: int = 10
    """UAVs, each with an edge server, M."""
    width_m: float = 1000.0
    """Extent of the service area in x, in metres."""
    height_m: float = 1000.0
    """Extent of the service area in y, in metres."""
    altitude_m: float = 200.0
    """Fixed flight altitude of every UAV, in metres."""
    station_m: tuple[float, float, float] = (-500.0, 0.0, 10.0)
    """Position (x, y, z) of the base station, in metres; it lies outside the area."""
    n_slots: int = 60
    """Slots in one period; the episode ends after them."""
    slot_s: float = 1.0
    """Length of a slot and deadline of every task, in seconds."""

    bandwidth_mhz: float = 50.0
    """Uplink bandwidth B, in MHz: of the whole network or of each UAV (`bandwidth_pool`)."""
    bandwidth_pool: Literal["network", "uav"] = "network"
    """Whether B is one pool for all links (the paper's constraint 16) or each UAV has its own."""
    relay_bandwidth_mhz: float = 5.0
    """Bandwidth of a UAV's link to the base station, in MHz."""
    share_relay_bandwidth: bool = True
    """Whether the relayed users of a UAV divide that link, instead of each having all of it."""
    gain_1m_db: float = -30.0
    """Channel gain at one metre, in dB."""
    los_a: float = 15.0
    """First constant of the line-of-sight curve, in degrees of elevation."""
    los_b: float = 0.5
    """Second constant of the line-of-sight curve, per degree."""
    path_loss_exponent: float = 2.2
    """Path-loss exponent between users and UAVs; the relay link has exponent 2."""
    nlos_attenuation: float = 0.2
    """Factor on the gain of a link without line of sight."""
    noise_dbm_hz: float = -127.0
    """Noise density, in dBm/Hz."""
    mu_power_w: float = 0.2
    """Transmit power of a user, in W."""
    uav_power_w: float = 0.5
    """Transmit power of a UAV towards the base station, in W."""

    task_min_mbit: float = 0.5
    """Smallest task, in Mbit."""
    task_max_mbit: float = 1.5
    """Largest task, in Mbit; observations are scaled by it."""
    cycles_min: float = 500.0
    """Fewest CPU cycles a bit needs."""
    cycles_max: float = 1500.0
    """Most CPU cycles a bit needs; observations are scaled by it."""
    f_max_loc_ghz: float = 1.0
    """Fastest clock of a user's chip, in GHz."""
    f_max_edge_ghz: float = 10.0
    """Clock that a UAV's server divides among its direct users, in GHz."""
    kappa: float = 1e-27
    """Effective capacitance of all chips, in J s^2 per cycle^3."""

    deviation: float = 0.05
    """Relative error x of the digital twin: on frequencies, and on seen positions (of the area)."""
    deviation_on_positions: bool = True
    """Whether the deviation also disturbs the positions that are observed."""
    wo_dt_noise: bool = False
    """Whether each observed entry gets its own error of U(-.5, .5): no twin, as the repository."""

    uav_control: Literal["accel", "target_velocity"] = "accel"
    """What a UAV's motion numbers mean: an acceleration, or the velocity it should reach."""
    limit: Literal["norm", "axis"] = "norm"
    """Whether v_max and a_max bound the length of the vector or each axis."""
    v_max_mps: float = 30.0
    """Largest UAV speed, in m/s."""
    a_max_mps2: float = 5.0
    """Largest UAV acceleration, in m/s^2."""
    start_margin: float = 0.1
    """Share of the area left free at each side when UAVs are placed at the start."""
    blade_power_w: float = 39.04
    """Blade profile power in hover P_0, in W."""
    induced_power_w: float = 79.07
    """Induced power in hover P_i, in W."""
    tip_speed_mps: float = 120.0
    """Speed of the rotor tip U_tip, in m/s."""
    induced_speed_mps: float = 3.6
    """Mean rotor induced speed in hover v_0, in m/s."""
    rotor_area_m2: float = 0.5030
    """Rotor disc area, in square metres."""
    drag_ratio: float = 0.6
    """Fuselage drag ratio d_0."""
    rotor_solidity: float = 0.05
    """Rotor solidity s."""
    air_density_kgpm3: float = 1.225
    """Air density, in kg/m^3."""

    mu_speed_mps: float = 5.5
    """Mean speed of a user, in m/s."""
    mu_speed_std_mps: float = 1.7
    """Stationary standard deviation of a user's speed, in m/s."""
    mu_speed_max_mps: float = 10.0
    """Largest speed of a user, in m/s."""
    mu_speed_memory: float = 0.8
    """Gauss-Markov memory of the speed."""
    mu_heading_std_rad: float = 1.6
    """Stationary standard deviation of a user's heading, in radians."""
    mu_heading_memory: float = 0.8
    """Gauss-Markov memory of the heading."""
    mean_heading: Literal["own", "zero"] = "own"
    """Whether each user has a mean heading of its own or all drift to +x."""

    assoc_head: Literal["beta_argmax", "categorical", "categorical_rule"] = "beta_argmax"
    """How a user picks: scores and arg-max, 2M+1 labels, or M+2 labels and `relay_rule`."""
    relay_rule: Literal["nearest", "best_snr", "min_load"] = "nearest"
    """Which UAV relays for label M+1 of `categorical_rule`."""
    share_rule: Literal["plain", "softmax"] = "plain"
    """How scores become shares: score / sum, or softmax."""
    share_floor: float = 0.05
    """Smallest score of an associated user under `plain`."""
    share_temperature: float = 1.0
    """Factor on scores under `softmax`; 0 or less means equal shares."""

    uav_obs_mask_mode: Literal["none", "prev_assoc", "current_assoc"] = "current_assoc"
    """What UAVs see of users: all, last slot's own, or (two phases) this slot's own requests."""
    relative_coordinates: bool = False
    """Whether an observer sees others relative to itself (profile Z); its own place is absolute."""
    entity_rows: bool = True
    """Whether users also get one row per UAV, so that a scorer shared over UAVs can pick."""

    energy_weight: float = 0.001
    """Weight of UAV energy against user energy, varpi."""
    latency_factor: float = 0.1
    """Penalty per slot length of lateness, mu_t."""
    latency_penalty_for: Literal["all", "offloaders"] = "all"
    """Who pays for lateness; the paper's formula spares fully local users."""
    boundary_factor: float = 0.1
    """Penalty for leaving the area, mu_o."""
    boundary_unit: Literal["m", "W"] = "m"
    """Whether overshoot counts in metres or in area widths."""
    collision_factor: float = 0.1
    """Penalty for UAVs closer than `min_separation_m`, mu_c."""
    min_separation_m: float = 50.0
    """Distance UAVs should keep, in metres."""
    distance_threshold_m: float = 300.0
    """Free distance between a UAV and the centre of its users, in metres."""
    distance_bonus: bool = False
    """Whether being nearer than that is rewarded (as printed) or merely free."""
    divide_uav_energy: bool = False
    """Whether the users of a UAV divide its energy among them in their reward."""
    uav_pays_own_energy: bool = True
    """Whether a UAV's own weighted energy is part of its reward."""
    uav_aggregation: Literal["mean", "sum"] = "mean"
    """How a UAV's reward collects the costs of its users."""
    forwarding_energy: bool = False
    """Whether relaying costs the UAV transmit energy."""
    load_counts_relayed: bool = False
    """Whether the observed previous load includes relayed tasks."""
    cap_transmit_energy: bool = False
    """Whether a user's transmit energy is capped at one slot of transmission."""
    reward_scale: float = 1.0
    """Factor on both rewards; metrics report them unscaled."""
    violation_rule: Literal["deviation", "strict"] = "deviation"
    """Late means above slot_s (1 + deviation) + violation_tolerance_s, or strictly above slot_s."""
    violation_tolerance_s: float = 0.01
    """Slack of `deviation`, in seconds: rounding, and 1 / (1 - x) being above 1 + x."""

    at_horizon: Literal["reset", "continue"] = "reset"
    """Whether the last slot ends the episode or the counter merely wraps."""
    timeout_bootstrap: bool = False
    """Whether the end counts as `truncated` (the value goes on) instead of `terminated`."""
    gamma_mu: float = 0.8
    """Discount of the users."""
    gamma_uav: float = 0.95
    """Discount of the UAVs."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            _require(getattr(self, name) >= 1, name, "must be at least 1", getattr(self, name))
        for name in _POSITIVE:
            value = getattr(self, name)
            _require(value > 0 and math.isfinite(value), name, "must be positive", value)
        for name in _UNIT:
            value = getattr(self, name)
            _require(0 <= value <= 1, name, "must lie in 0..1", value)
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            _require(value >= 0 and math.isfinite(value), name, "must not be negative", value)
        for low, high in (("task_min_mbit", "task_max_mbit"), ("cycles_min", "cycles_max")):
            got = f"{getattr(self, low)} and {getattr(self, high)}"
            _require(getattr(self, low) <= getattr(self, high), low, f"must not exceed {high}", got)
        _require(self.start_margin < 0.5, "start_margin", "must be below 0.5", self.start_margin)
        if self.timeout_bootstrap and self.at_horizon == "continue":
            raise ValueError(
                "timeout_bootstrap must be false when at_horizon is 'continue', got true: "
                "nothing times out; set at_horizon='reset'"
            )
        if self.wo_dt_noise and self.relative_coordinates:
            raise ValueError(
                "wo_dt_noise must be false with relative_coordinates, got true: its clipping to "
                "[0, 1] would cut negative offsets; set relative_coordinates=false"
            )

    @property
    def two_phase(self) -> bool:
        """Whether UAVs act after seeing this slot's requests."""
        return self.uav_obs_mask_mode == "current_assoc"

    @property
    def gain_1m(self) -> float:
        """Channel gain at one metre, linear (beta_0)."""
        return float(10.0 ** (self.gain_1m_db / 10.0))

    @property
    def noise_w_hz(self) -> float:
        """Noise density in W/Hz (N_0)."""
        return float(10.0 ** (self.noise_dbm_hz / 10.0) * 1e-3)

    @property
    def extent_m(self) -> float:
        """The longer side of the area, in metres: the scale of distances."""
        return max(self.width_m, self.height_m)


_AT_LEAST_ONE = ("n_users", "n_uavs", "n_slots")
_POSITIVE = (
    *("width_m", "height_m", "altitude_m", "slot_s", "bandwidth_mhz", "relay_bandwidth_mhz"),
    *("mu_power_w", "uav_power_w", "task_min_mbit", "cycles_min", "f_max_loc_ghz"),
    *("f_max_edge_ghz", "kappa", "v_max_mps", "a_max_mps2", "tip_speed_mps", "induced_speed_mps"),
    *("path_loss_exponent", "min_separation_m", "mu_speed_max_mps", "reward_scale"),
)
_UNIT = (
    *("nlos_attenuation", "deviation", "mu_speed_memory", "mu_heading_memory"),
    *("share_floor", "gamma_mu", "gamma_uav", "start_margin"),
)
_NOT_NEGATIVE = (
    *("blade_power_w", "induced_power_w", "rotor_area_m2", "drag_ratio", "rotor_solidity"),
    *("air_density_kgpm3", "mu_speed_mps", "mu_speed_std_mps", "mu_heading_std_rad"),
    *("energy_weight", "latency_factor", "boundary_factor", "collision_factor"),
    *("distance_threshold_m", "violation_tolerance_s"),
)


def _require(holds: bool, name: str, rule: str, got: object) -> None:
    if not holds:
        raise ValueError(f"{name} {rule}, got {got}")


PAPER = UavMecConfig()
"""The paper as far as it can be read and reproduced (spec section 6 REC, 11.6, 11.8)."""

REFERENCE = UavMecConfig(
    bandwidth_pool="uav",
    share_relay_bandwidth=False,
    task_max_mbit=2.0,
    deviation=0.0,
    deviation_on_positions=False,
    uav_control="target_velocity",
    drag_ratio=0.012,
    mu_speed_mps=2.0,
    mu_speed_std_mps=1.0,
    mu_speed_memory=0.5,
    mu_heading_std_rad=0.5,
    mu_heading_memory=0.5,
    mean_heading="zero",
    assoc_head="categorical_rule",
    share_rule="softmax",
    uav_obs_mask_mode="none",
    entity_rows=False,
    divide_uav_energy=True,
    uav_pays_own_energy=False,
    forwarding_energy=True,
    load_counts_relayed=True,
    reward_scale=10.0,
    violation_rule="strict",
)
"""The reference repository at its newest commit, for parity and speed comparison."""

LEARNER_SETTINGS = {
    "reference": {
        "actor": "mlp",
        "entropy_per": "sum",
        "value_clip": 0.2,
        "reward_norm": "running",
    },
}
"""What a scenario asks of its learner: the reference implementation learns in its own way."""

SCENARIOS: dict[str, UavMecConfig] = {
    "paper": PAPER,
    "reference": REFERENCE,
    "demo": replace(PAPER, n_users=20, n_uavs=4),
}
