"""Seconds of compute on a GPU that was not measured, and the memory that a job needs there."""
