"""Shrinking a running training job instead of killing it: control groups, the job's own help, and the way back."""
