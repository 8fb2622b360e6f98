"""Mobile users offload tasks to a swarm of UAVs with edge servers (Liu et al., IEEE TWC 2023)."""
