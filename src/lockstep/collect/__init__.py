"""World and learner in, rollout out."""
