"""Virtual machines on hosts: laws, and cases by hand."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.overcommit._shares import RULES
from stallwise.overcommit.comparison import overcommit
from stallwise.overcommit.resources import Counts, Hosts, ResourceAmounts, UseSeries, VirtualMachines, equal_hosts
from stallwise.overcommit.simulator import WAYS, host_machines, requested_use_s
from validation.vm_deflation import Holder, HostLoad, best_host, rooms

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


@st.composite
def crowds(draw: st.DrawFn) -> VirtualMachines:
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 50),
                st.integers(1, 60),
                st.integers(1, 8000),
                st.integers(0, 16_384),
                st.sampled_from([0, 0, 500, 1000, 2000]),
                st.sampled_from([None, None, 0.2, 0.4, 0.8]),
            ),
            min_size=1,
            max_size=25,
        )
    )
    return machines([(float(a), float(a + d), ResourceAmounts(c, m, 0, 0, g), p) for a, d, c, m, g, p in rows])


@given(crowds(), st.sampled_from(WAYS), st.integers(1, 4))
@settings(max_examples=40)
def test_hosts_are_never_given_twice_and_machines_are_placed_by_the_rules(
    crowd: VirtualMachines, way: str, hosts: int
) -> None:
    """Replays arrivals and ends in plain Python with `placement.best_host` and compares who went where."""
    stay = host_machines(crowd, HOST.first(hosts), way)
    assert (stay.refused & stay.preempted).sum() == 0
    assert (stay.preempted <= crowd.low).all()
    assert way == "preempt" or not stay.preempted.any()
    times = sorted({*crowd.arrival_s.tolist(), *stay.left_s.tolist()})
    for now, _ in pairwise([*times, times[-1] + 1]):
        here = (crowd.arrival_s <= now) & (stay.left_s > now) & ~stay.refused
        for host in range(hosts):
            on = here & (stay.host == host)
            firm = crowd.size[on & ~crowd.low].sum(axis=0)
            assert (firm <= HOST.total[0]).all()
            least = [_least(crowd, int(row), way) for row in np.flatnonzero(on & crowd.low)]
            assert (firm + np.sum(least, axis=0, dtype=np.int64) <= HOST.total[0]).all()
    if way in RULES:
        _replayed(crowd, stay.host, way, hosts)


def _least(crowd: VirtualMachines, row: int, way: str) -> Counts:
    loss = _loss(crowd, row, way) if way in RULES else ResourceAmounts()
    return np.asarray(crowd.size[row] - np.array(loss))


def _loss(crowd: VirtualMachines, row: int, way: str) -> ResourceAmounts:
    if not crowd.low[row]:
        return ResourceAmounts()
    priority = float(crowd.priority[row])
    return ResourceAmounts(*(rooms([Holder(size=int(size), priority=priority)], way)[0] for size in crowd.size[row]))  # type: ignore[arg-type]


def _replayed(crowd: VirtualMachines, chosen: Counts, way: str, hosts: int) -> None:
    placed: list[tuple[int, int]] = []
    for row in range(len(crowd)):
        now = crowd.arrival_s[row]
        there = [(one, host) for one, host in placed if crowd.end_s[one] > now]
        state = []
        for number in range(hosts):
            on = [one for one, host in there if host == number]
            firm = crowd.size[[one for one in on if not crowd.low[one]]].sum(axis=0)
            soft = crowd.size[[one for one in on if crowd.low[one]]].sum(axis=0)
            room = np.array([_loss(crowd, one, way) for one in on], dtype=np.int64).reshape(-1, 5).sum(axis=0)
            state.append(
                HostLoad(
                    total=ResourceAmounts(*HOST.total[0].tolist()),
                    firm=ResourceAmounts(*firm.tolist()),
                    soft=ResourceAmounts(*soft.tolist()),
                    room=ResourceAmounts(*room.tolist()),
                )
            )
        found = best_host(ResourceAmounts(*crowd.size[row].tolist()), state, _loss(crowd, row, way))
        assert chosen[row] == (-1 if found is None else found)
        if found is not None:
            placed.append((row, found))


FULL = ResourceAmounts(cpu_milli=8000)


def test_two_machines_share_a_host_by_hand() -> None:
    """Each asks for the whole host from 0 to 100 and 50 to 150: from 50 to 100 both have half."""
    crowd = machines([(0, 100, FULL, 0.5), (50, 150, FULL, 0.5)])
    stay = host_machines(crowd, HOST, "proportional")
    assert stay.lost_s.tolist() == [25, 25]
    assert stay.used_s.tolist() == [100, 100]
    assert stay.figures.loss == pytest.approx(0.25)
    assert stay.figures.failure == 0


def test_preemption_by_hand() -> None:
    """A machine on demand pushes out the one of low priority; another of low priority is refused."""
    crowd = machines([(0, 100, FULL, 0.5), (50, 150, FULL, None), (60, 160, FULL, 0.5)])
    figures = host_machines(crowd, HOST, "preempt").figures
    assert figures.failure == pytest.approx(2 / 3)
    assert (figures.preempted_low, figures.refused_low, figures.refused_on_demand) == (0.5, 0.5, 0)
    assert figures.unserved == pytest.approx(0.75)
    deflated = host_machines(crowd, HOST, "proportional").figures
    # From 50 on those of low priority have nothing; the last has the host from 150 to 160.
    assert deflated.failure == 0
    assert deflated.unserved == pytest.approx(1 - 60 / 200)


def test_use_below_what_is_left_costs_nothing_and_peaks_are_cut() -> None:
    """Use alternates between 0.4 and 0.8 in slots of 10 s; half of the size is left from 0 to 40 s."""
    use = UseSeries(part=np.array([[0.4, 0.8]]), slot_s=10.0)
    crowd = machines([(0, 40, FULL, 0.5), (0, 40, FULL, 0.5)], use)
    stay = host_machines(crowd, HOST, "proportional")
    assert stay.used_s.tolist() == pytest.approx([24, 24])
    assert stay.lost_s.tolist() == pytest.approx([6, 6])
    assert requested_use_s(crowd).tolist() == pytest.approx([24, 24])


def test_three_prices_by_hand() -> None:
    """One on demand and one of low priority with half a host each, then as much again of low priority."""
    half = ResourceAmounts(cpu_milli=4000)
    crowd = machines([(0, 100, half, None), (0, 100, half, 0.4), (0, 100, half, 0.8)])
    stay = host_machines(crowd, equal_hosts(FULL), "proportional")
    revenue = stay.figures.revenue
    assert revenue.on_demand == pytest.approx(50)
    assert revenue.static == pytest.approx(0.2 * 100)
    assert revenue.priority == pytest.approx(0.4 * 50 + 0.8 * 50)
    assert revenue.allocation == pytest.approx(50)


def test_what_cannot_be_simulated_is_refused() -> None:
    crowd = machines([(0, 10, ResourceAmounts(cpu_milli=9000), None)])
    with pytest.raises(InputError, match="larger than every host"):
        overcommit(crowd, HOST, ("refuse",), (0.0,))
    assert host_machines(crowd, HOST, "refuse").refused.all()
    with pytest.raises(InputError, match="way to make room"):
        host_machines(crowd, HOST, "squeeze")
    with pytest.raises(InputError, match="in bytes"):
        host_machines(crowd, Hosts(total=HOST.total * 10**9), "refuse")
    with pytest.raises(InputError, match="no machine"):
        host_machines(crowd.take(np.array([], dtype=np.int64)), HOST, "refuse")
