"""Decisions and time, compiled: what a policy's seams mean over arrays of state, and the simulator's event loop.

`state` the arrays; `space` which GPUs; `ranking` who first; `waiting` how patient; `deciding` one pass over the queue;
`running` time from event to event. Numba loads with these modules, so nothing imports them before it is needed.
"""
