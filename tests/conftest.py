"""One torch thread and no deadlines: tests share two cores and the first torch call is slow."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("lockstep", deadline=None)
settings.load_profile("lockstep")
