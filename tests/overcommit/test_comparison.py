"""Smaller fleets, partitions, and whether machines could be deflated at all."""

from dataclasses import replace

import numpy as np
import pytest

from stallwise.errors import InputError
from stallwise.overcommit.comparison import fewest_hosts, overcommit, partition, verdict
from stallwise.overcommit.resources import ResourceAmounts, UseSeries, VirtualMachines, equal_hosts
from stallwise.overcommit.simulator import host_machines, levels_of
from validation.vm_deflation import deflation_levels

HOST = equal_hosts(ResourceAmounts(cpu_milli=8000, memory_mib=16_384, gpu_milli=2000))


def machines(
    rows: list[tuple[float, float, ResourceAmounts, float | None]], use: UseSeries | None = None
) -> VirtualMachines:
    """(arrival, end, size, priority or None for on demand)."""
    rows = sorted(rows, key=lambda row: row[0])
    count = len(rows)
    made = VirtualMachines(
        source="by hand",
        format="plain",
        arrival_s=np.array([row[0] for row in rows]),
        end_s=np.array([row[1] for row in rows]),
        size=np.array([row[2] for row in rows], dtype=np.int64),
        least=np.zeros((count, 5), dtype=np.int64),
        low=np.array([row[3] is not None for row in rows]),
        priority=np.array([row[3] or 1.0 for row in rows]),
        series=np.full(count, -1, dtype=np.int64),
        offset=np.zeros(count, dtype=np.int64),
    )
    return made if use is None else replace(made, use=use, series=np.zeros(count, dtype=np.int64))


FULL = ResourceAmounts(cpu_milli=8000)


def test_overcommitment_is_as_defined() -> None:
    crowd = machines([(0.0, 1000.0, FULL, 0.5 if i % 2 else None) for i in range(12)])
    assert fewest_hosts(crowd, HOST) == 12
    found = overcommit(crowd, HOST, ("proportional", "preempt"), (0.0, 0.5, 1.0))
    assert [row.hosts for row in found.of("proportional")] == [12, 8, 6]
    assert [row.overcommitment for row in found.of("preempt")] == pytest.approx([0, 0.5, 1])
    assert found.of("proportional")[0].figures.loss == 0
    static = [row.increase("static") for row in found.of("proportional")]
    assert static == pytest.approx([0.2, 0.3, 0.4])
    assert all(row.figures.loss > 0.05 for row in found.of("proportional")[1:])
    assert verdict(found) is None, "too much is lost wherever the fleet is overcommitted"


def test_partitions_keep_levels_apart() -> None:
    rows = [(float(i), 1000.0, ResourceAmounts(cpu_milli=2000), (0.2, 0.8)[i % 2]) for i in range(40)]
    crowd = machines([*rows, (50.0, 1000.0, FULL, None)])
    hosts = HOST.first(8)
    pools = partition(crowd, hosts)
    assert np.bincount(pools).tolist() == [4, 4]
    stay = host_machines(crowd, hosts, "priority", pools=pools)
    level = levels_of(crowd)
    kept = ~stay.refused & crowd.low
    assert (pools[stay.host[kept]] == level[kept]).all()
    assert stay.host[~crowd.low][0] >= 0


def crowd_of(*asked: tuple[float, int, int]) -> VirtualMachines:
    """(priority, thousandths of a core, MiB), all at once."""
    return machines([(0.0, 100.0, ResourceAmounts(cpu_milli=cpu, memory_mib=mib), level) for level, cpu, mib in asked])


def test_every_level_has_a_host() -> None:
    crowd = crowd_of((0.2, 100, 1), (0.4, 4000, 1), (0.6, 4000, 1), (0.8, 1900, 1))
    assert np.bincount(partition(crowd, HOST.first(8))).tolist() == [1, 3, 3, 1]
    assert np.bincount(partition(crowd, HOST.first(4))).tolist() == [1, 1, 1, 1]
    with pytest.raises(InputError, match="4 levels of priority, and 3 hosts are too few"):
        partition(crowd, HOST.first(3))
    on_demand = machines([(0.0, 100.0, FULL, None)])
    assert partition(on_demand, HOST.first(2)).tolist() == [-1, -1]


def test_levels_weigh_by_what_they_take_most_of() -> None:
    """The first asks for few cores and three times the part of memory that the second asks of cores."""
    crowd = crowd_of((0.2, 10, 12_288), (0.8, 2000, 16))
    assert np.bincount(partition(crowd, HOST.first(8))).tolist() == [6, 2]


def test_feasibility_by_hand() -> None:
    use = UseSeries(part=np.array([[0.2, 0.6], [1.0, 1.0]]))
    level = deflation_levels(use, use, (0.5,))[0]
    assert (level.above_median, level.above_mean) == (0.75, 0.75)
    assert level.loss == pytest.approx((0.1 + 0.5 + 0.5) / 2.8)
    with pytest.raises(InputError):
        deflation_levels(use, None, (1.0,))
