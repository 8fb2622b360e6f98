"""The shared vocabulary: worlds, decisions, rollouts, streams and estimators."""
