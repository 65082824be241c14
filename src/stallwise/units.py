"""Units: the constants, and quantities as people write them.

Inside the package everything is in base units (seconds, bytes, bytes/s, flop/s, dollars/hour) and the unit is
in the name. A bit rate is decimal (1 Gb/s = 1e9 bit/s), a memory size given in GiB is binary.
"""

KIB = 2**10
MIB = 2**20
GIB = 2**30
KB = 10**3
MB = 10**6
GB = 10**9
TB = 10**12
TERA = 10**12

BITS_PER_BYTE = 8
SECONDS_PER_HOUR = 3600


def gbit_per_s(rate: float) -> float:
    """Gb/s to bytes/s."""
    return rate * 1e9 / BITS_PER_BYTE
