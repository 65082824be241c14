"""Trying settings on a real job: propose from its profile, measure in turns, keep what helps."""
