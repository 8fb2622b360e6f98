"""Lockstep beside other PyTorch libraries: one task, an equality gate, then the clock."""
