"""The stalls of a step as the Stash paper defines them: other runs, other denominators, no parts of one whole.

Stash (Sharma et al., ICDCS 2023) launches a job several times and takes differences:

    t0  one rank alone, synthetic data
    t1  all ranks of one machine, synthetic data
    tN  as many ranks over several machines, synthetic data
    t3  real data, page cache warm
    t2  real data, page cache cold

    interconnect  t1 - t0  of t1, floored at 0
    CPU (prep)    t3 - t1  of t3, floored at 0
    disk (fetch)  t2 - t3  of t2
    network       tN - t1  of t1, so that it may exceed 100 %

Each denominator is another run, so the percentages do not add up to anything. The paper's intended formulas are
used here; the released code computes something else (see `validation/cases/stash.py`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of a step in each of Stash's runs. None: not measured, or no such run for this job."""

    ranks_per_machine: int
    t0_s: float | None = None
    t1_s: float | None = None
    tn_s: float | None = None
    t2_s: float | None = None
    t3_s: float | None = None

    @property
    def machine(self) -> str:
        """The run on one machine, against which the network is held: t1, or t0 where a machine has a single rank."""
        return "t0" if self.ranks_per_machine == 1 else "t1"

    @property
    def synthetic(self) -> str:
        """The run with synthetic data on all ranks there are, against which real data is held."""
        return "tn" if self.tn_s is not None else self.machine

    def of(self, name: str) -> float | None:
        """The time called `name`: t0, t1, tn, t2 or t3."""
        return {"t0": self.t0_s, "t1": self.t1_s, "tn": self.tn_s, "t2": self.t2_s, "t3": self.t3_s}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """One difference `more - less`, and the run that it is a percentage of."""

    more: str
    less: str
    of: str
    s: float
    of_s: float

    @property
    def percent(self) -> float:
        """Of its own denominator."""
        return 100 * self.s / self.of_s if self.of_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Stash's four stalls. None: not measured, or absent in this job."""

    interconnect: Stall | None
    network: Stall | None
    prep: Stall | None
    fetch: Stall | None


def stalls(times: Times) -> Stalls:
    """The paper's formulas over `times`, floored where the paper floors."""
    machine, synthetic = times.machine, times.synthetic
    return Stalls(
        interconnect=_stall(times, "t1", "t0", of="t1", floor=True),
        network=_stall(times, "tn", machine, of=machine),
        prep=_stall(times, "t3", synthetic, of="t3", floor=True),
        fetch=_stall(times, "t2", "t3", of="t2"),
    )


def _stall(times: Times, more: str, less: str, *, of: str, floor: bool = False) -> Stall | None:
    more_s, less_s, of_s = times.of(more), times.of(less), times.of(of)
    if more_s is None or less_s is None or of_s is None:
        return None
    s = more_s - less_s
    return Stall(more=more, less=less, of=of, s=max(0.0, s) if floor else s, of_s=of_s)


def times_of_parts(
    *,
    compute_s: float,
    copy_s: float | None,
    interconnect_s: float | None,
    network_s: float | None,
    prep_s: float | None,
    fetch_s: float | None,
    cold_step_s: float | None,
    world_size: int,
    nodes: int,
) -> Times:
    """Stash's runs put together from the parts of one step, which came out of one launch.

    Synthetic data lies in host memory and is copied to the device at every step, so the copy belongs to t0 and to
    all that follow: t0 = compute + copy, t1 = t0 + interconnect, tN = t1 + network. The step as it is counts as warm:
    t3 = the synthetic time + prep + fetch. So whatever the job still waits for storage with warm files is in Stash's
    CPU stall, as it was there wherever the data did not fit into memory. t2 is the cold step.
    """
    ranks = world_size // nodes
    alone_s = compute_s + (copy_s or 0.0)
    inside_s = alone_s + (interconnect_s or 0.0)
    synthetic_s = inside_s + (network_s or 0.0)
    parted = world_size == 1 or interconnect_s is not None or network_s is not None
    # Over several nodes, an exchange that was measured only as a whole says nothing of one machine's.
    machine_known = ranks > 1 and (nodes == 1 or interconnect_s is not None)
    data_s = None if prep_s is None else prep_s + (fetch_s or 0.0)
    return Times(
        ranks_per_machine=ranks,
        t0_s=alone_s if parted else None,
        t1_s=inside_s if machine_known else None,
        tn_s=synthetic_s if nodes > 1 else None,
        t2_s=cold_step_s if data_s is not None else None,
        t3_s=synthetic_s + data_s if data_s is not None else None,
    )
