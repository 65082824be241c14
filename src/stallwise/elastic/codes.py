"""What agents and ranks say to each other: exit codes, and names in the environment."""

import enum

COORDINATOR = "STALLWISE_COORDINATOR"
ROUND = "STALLWISE_ROUND"
GRACE = "STALLWISE_GRACE_S"
METADATA = "STALLWISE_METADATA"
HEARD = "STALLWISE_HEARD"
AGENT = "STALLWISE_AGENT"
CAUSE = "STALLWISE_CAUSE"


DAMAGED = 3
"""The bucket's client, where an object is there but not what was written."""


class Left(enum.IntEnum):
    """How a rank ended, where it is not 0 (done) or a crash."""

    AGAIN = 75  # saved; the fleet changes, start me again
    LEAVING = 76  # saved; this machine was told that it goes away
    PEER_LOST = 77  # another rank is gone


MILD = frozenset(int(code) for code in Left)
"""Ends that are no crash of the rank itself."""
