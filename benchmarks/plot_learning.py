"""The tables and the figure of docs/benchmarks.md from the results of learning_uav_mec.py.

    python benchmarks/plot_learning.py

Prints the tables; a test compares them with the page. Means and standard deviations are over
members; a difference is paired by seed, with its standard error.
"""

import argparse
import json
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/learning_uav_mec.json"
FIGURE = ROOT / "docs/figures/learning_uav_mec.png"
ENERGY, STEPS_PER_UPDATE, SMOOTH = "weighted_energy_mu_avg", 300, 5
CHANCE = "Randomized"  # has no most likely decision
COLOURS = {
    "AB": "#1b6fb5",
    "B": "#2a9d5c",
    "AG clipped": "#d1495b",
    "AG sigmoid": "#7b4bb0",
    "G clipped": "#e08e2b",
}


def pm(values) -> str:
    """Mean and standard deviation over members; one member has no spread."""
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.4f}"


def mean(values) -> str:
    return f"{statistics.mean(values):.3f}"


def levels(rows) -> str:
    """One line for each learner: what its members reach."""
    heading = (
        "learner | seeds | weighted energy (J) | Jain | MU energy (J) | UAV energy (J) | "
        "late | relay | local | nearest | deterministic (J)"
    )
    lines = [f"| {heading} |", "|" + "---|" * len(heading.split("|"))]
    for row in rows:
        tail = row["tail"]
        cells = [
            row["learner"],
            str(len(row["seeds"])),
            pm(tail[ENERGY]),
            mean(tail["jain_fairness"]),
            mean(tail["mu_energy_avg"]),
            f"{statistics.mean(tail['uav_energy_avg']):.1f}",
            *(
                mean(tail[name])
                for name in ("delay_violation_rate", "relay_share", "local_share", "nearest_share")
            ),
            "" if row["learner"] == CHANCE else pm(row["deterministic"][ENERGY]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def paired(row, base, kind) -> str:
    """Difference by seed, its standard error, relative size, and in how many seeds AB is lower."""
    ours, theirs = row[kind][ENERGY], base[kind][ENERGY]
    gap = [a - b for a, b in zip(ours, theirs, strict=True)]
    error = statistics.stdev(gap) / len(gap) ** 0.5
    share = 100 * statistics.mean(gap) / statistics.mean(theirs)
    lower = sum(g > 0 for g in gap)
    return f"{statistics.mean(gap):+.4f} ± {error:.4f} ({share:+.1f} %, {lower}/{len(gap)})"


def differences(rows) -> str:
    """Each learner minus AB."""
    base = next((row for row in rows if row["learner"] == "AB"), None)
    lines = ["| minus AB | stochastic (J) | deterministic (J) |", "|---|---|---|"]
    for row in rows:
        if base is None or row is base or row["seeds"] != base["seeds"]:
            continue
        fixed = "" if row["learner"] == CHANCE else paired(row, base, "deterministic")
        cells = [row["learner"], paired(row, base, "tail"), fixed]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def profiles(data) -> dict[str, list]:
    """Learners by profile, in the order of the file."""
    found: dict[str, list] = {}
    for row in data["learners"]:
        found.setdefault(row["profile"], []).append(row)
    return found


def tables(data) -> dict[str, str]:
    """Profile to its two tables."""
    return {
        profile: f"{levels(rows)}\n\n{differences(rows)}"
        for profile, rows in profiles(data).items()
    }


def smooth(values) -> list[float]:
    """Mean over the last SMOOTH entries, or over as many as there are."""
    parts = [values[max(0, i - SMOOTH + 1) : i + 1] for i in range(len(values))]
    return [statistics.mean(part) for part in parts]


def draw(data, path) -> None:
    """Learning curves, one panel for each profile."""
    import matplotlib.pyplot as plt

    found = profiles(data)
    figure, panels = plt.subplots(
        1, len(found), figsize=(10, 3.9), sharey=True, layout="constrained", squeeze=False
    )
    for axes, (profile, rows) in zip(panels[0], found.items(), strict=True):
        for row in rows:
            if row["learner"] in COLOURS:
                curve = smooth(row["curve"][ENERGY])
                steps = [(i + 1) * STEPS_PER_UPDATE / 1000 for i in range(len(curve))]
                axes.plot(steps, curve, lw=1.6, color=COLOURS[row["learner"]], label=row["learner"])
            elif row["learner"] == CHANCE:
                level = statistics.mean(row["tail"][ENERGY])
                axes.axhline(level, color="#444444", lw=1.0, ls=(0, (4, 3)), label=CHANCE)
        axes.set_title(f"profile {profile}", fontsize=10)
        axes.set_xlabel("thousand environment steps of a member")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9, loc="center right")
    panels[0][0].set_ylabel("weighted energy (J)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    args = parser.parse_args()
    data = json.loads(args.results.read_text())
    for profile, text in tables(data).items():
        print(f"profile {profile}\n\n{text}\n")
    draw(data, args.figure)
    print(args.figure)


if __name__ == "__main__":
    main()
