"""One machine record held against another: how many times as long a machine takes as the one a job was measured on.

    compute   geometric mean over the standard networks that both trained in the same precision, of G here / G there
    decode    samples/s that one core prepares with all at work, here / there
    disk      bytes/s read cold, here / there

A run knows its own machine only; what was measured of both says more about going from one to the other than lists do.
"""

import math
from dataclasses import dataclass

from stallwise.hardware.machine import MachineRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """Times there over times here; None where one of the two was not measured."""

    compute: float | None = None
    compute_low: float = 1.0
    compute_high: float = 1.0
    """The networks' own ratios around their mean, as factors."""
    networks: tuple[str, ...] = ()
    decode: float | None = None
    disk: float | None = None

    @property
    def said(self) -> str:
        """What is used, in words; empty where nothing is."""
        parts = []
        if self.compute is not None:
            parts.append(f"compute {self.compute:.3g} × as long ({', '.join(self.networks)})")
        if self.decode is not None:
            parts.append(f"preparing a sample {self.decode:.3g} × as long")
        if self.disk is not None:
            parts.append(f"reading from disk {self.disk:.3g} × as long")
        return ", ".join(parts)


def against(there: MachineRecord, here: MachineRecord, precision: str | None = None) -> Against:
    """`there` over `here`; `precision` is the job's, and networks trained in another say nothing of it."""
    rates = {one.name: one for one in here.networks}
    logs = {
        one.name: math.log(rates[one.name].samples_per_s / one.samples_per_s)
        for one in there.networks
        if one.name in rates
        and one.precision == rates[one.name].precision
        and precision in (None, one.precision)
        and one.samples_per_s > 0
    }
    middle = math.fsum(logs.values()) / len(logs) if logs else 0.0
    return Against(
        compute=math.exp(middle) if logs else None,
        compute_low=math.exp(min(logs.values()) - middle) if logs else 1.0,
        compute_high=math.exp(max(logs.values()) - middle) if logs else 1.0,
        networks=tuple(f"{name} in {rates[name].precision}" for name in logs),
        decode=_decode(there, here),
        disk=_ratio(here.disk_read_bytes_per_s, there.disk_read_bytes_per_s),
    )


def _decode(there: MachineRecord, here: MachineRecord) -> float | None:
    if there.decode is None or here.decode is None or there.decode.pixels != here.decode.pixels:
        return None
    return _ratio(here.decode.per_core_samples_per_s, there.decode.per_core_samples_per_s)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None
