"""Shared clusters: jobs, topology, job speed by placement, policies, and the simulator that runs them."""
