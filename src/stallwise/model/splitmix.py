"""Splitmix64 (Steele, Lea & Flood, OOPSLA 2014): the random numbers of all compiled simulators.

Plain Python over NumPy's 64-bit integers: whoever draws compiles it with its own numba options.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np


def splitmix64(state):
    """Return the next state (64 bits) and a number in [0, 1) with 53 random bits."""
    state = np.uint64(state + np.uint64(0x9E3779B97F4A7C15))
    z = state
    z = np.uint64((z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9))
    z = np.uint64((z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB))
    z = np.uint64(z ^ (z >> np.uint64(31)))
    return state, (z >> np.uint64(11)) * (1.0 / 9007199254740992.0)
