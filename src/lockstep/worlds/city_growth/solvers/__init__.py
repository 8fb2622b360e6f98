"""Solvers without learning: each is a frozen bag of settings that maps (world, role) to picks."""
