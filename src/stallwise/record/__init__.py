"""Measuring: what a machine has, what a job does, and what a run says."""
