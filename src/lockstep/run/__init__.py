"""The loop around worlds and learners: run folders, checkpoints, metrics, evaluation."""
