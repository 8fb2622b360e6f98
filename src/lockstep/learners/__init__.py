"""Learners: PPO, which is MAPPO with more roles, and the Randomized baseline."""
