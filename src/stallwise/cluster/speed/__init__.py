"""How fast a job runs on a placement.

| module    | contents                                                                         |
| --------- | -------------------------------------------------------------------------------- |
| base      | `Speed` (what every speed declares), `Shape` of a placement, the simplest speeds |
| _profiles | from layer profiles or the user's own runs, priced on the links of the cluster   |
| _tables   | from measured step times and throughputs: Pollux, Sia, Gavel                     |
"""

from stallwise.cluster.speed.base import FullSpeed, Shape, Speed

__all__ = ["FullSpeed", "Shape", "Speed"]
