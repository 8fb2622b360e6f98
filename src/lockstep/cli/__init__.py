"""The command `lockstep`: a table of verbs, each imported when it is called."""

import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence

VERBS = {
    "demo": "train on a small scene, compare, and draw pictures: three minutes",
    "train": "train a learner in a world, one member for each seed",
    "resume": "continue a run from its newest checkpoint",
    "watch": "show runs as they go; mark those that are stalled or dead",
    "doctor": "say what is wrong with a run, or with somebody else's log",
    "evaluate": "measure a run on fixed episodes, beside heuristics",
    "compare": "play the same scenarios with several solvers, learned or not",
    "study": "plan, run and aggregate many trainings, and draw their figures",
    "render": "draw an episode of a run as a picture or an animation",
    "demo-fault": "show the failure that Lockstep rules out, beside the right replay",
    "worlds": "list the worlds with their roles, spaces and metrics",
    "bench": "measure a world, acting and learning: the speed ledger",
    "verify-resume": "kill a run at random instants and prove that it resumes exactly",
    "migrate": "bring older or foreign checkpoints up to date",
}

EXAMPLES = """\
examples:
  lockstep demo
  lockstep train uav-mec --scenario paper --seeds 5 --total-steps 80000
  lockstep evaluate runs/uav-mec-ab-mappo-1
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; the exit code is 0 if it worked, 1 if it failed, 2 for bad input."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if args else 2
    if args[0] in ("-V", "--version"):
        from lockstep import __version__

        print(f"lockstep {__version__}")
        return 0
    verb, rest = args[0], args[1:]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else "see lockstep --help"
        print(f"lockstep: there is no command '{verb}'; {hint}", file=sys.stderr)
        return 2
    return _call(verb, rest)


def usage() -> str:
    """The text of `lockstep --help`."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:{width}}  {summary}" for name, summary in VERBS.items())
    return (
        "usage: lockstep COMMAND [OPTIONS]\n\n"
        "Trains reinforcement-learning agents, one or a hundred at a time, on exactly what was "
        f"sampled.\n\ncommands:\n{verbs}\n\n{EXAMPLES}\n"
        "lockstep COMMAND --help lists the options of a command."
    )


def _call(verb: str, rest: list[str]) -> int:
    from lockstep.errors import BadInput, LockstepError

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    module = verb.replace("-", "_")
    try:
        code: int = importlib.import_module(f"lockstep.cli.{module}").main(rest)
    except BadInput as error:
        print(f"lockstep {verb}: {error}", file=sys.stderr)
        return 2
    except LockstepError as error:
        print(f"lockstep {verb}: {error}", file=sys.stderr)
        return 1
    except SystemExit as stop:  # the parser has shown help, or what is wrong with the flags
        return stop.code if isinstance(stop.code, int) else 1
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"lockstep {verb}: interrupted", file=sys.stderr)
        return 1
    return code
