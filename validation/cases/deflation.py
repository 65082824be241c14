"""VM deflation (Fuerst et al., HPDC 2020): its algebra, placement, feasibility, and its simulation. Rows V22 to V26.

The paper's 10,000 machines, their categories and its simulator are not public. Arrivals are Azure's last days, use
comes from 100 other machines of Azure, low priority is drawn by lot: only the shape of figures 20 to 22 can be asked
for. Values read off these figures stand beside ours as not comparable, so that nobody takes the shape for
agreement.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

from stallwise.overcommit._shares import RULES, Rule
from stallwise.overcommit.comparison import OvercommitComparison, OvercommitRow, overcommit
from stallwise.overcommit.resources import ResourceAmounts, equal_hosts
from stallwise.overcommit.traces import complete_machines, read_machines, read_use, sample_machines
from validation.harness import Case, data_file, spot_case
from validation.vm_deflation import (
    DeflationLevel,
    Holder,
    HostLoad,
    Pool,
    best_host,
    deflation_levels,
    fitness,
    reclaim_shares,
)

_SOURCE = "Fuerst, Ali-Eldin, Shenoy & Sharma, HPDC 2020"
_ARRIVALS, _CPU = "transient/azure_v1_vm_arrivals/v1.test.txt", "transient/azure_v1_cpu_100vms"
_MACHINES = 10_000
_OVER = (0.35, 0.5, 0.6, 0.7, 0.8)
_REVENUE = (0.0, 0.111, 0.25, 0.429, 0.667)
_LEVELS = tuple(sorted({*_OVER, *_REVENUE}))
"""All that are simulated."""
_SHRUNK = tuple(over for over in _LEVELS if over > 0)
"""At 0 nobody is shrunk: that is how N0 is found."""
_FEW = "the paper has two million machines, the public sample a hundred"
_UNLIKE = "the paper's sample of machines is not public; only the shape can be asked for"


_case = partial(spot_case, _SOURCE)


_HOLDERS = tuple(Holder(size=size, least=size // 4, priority=priority) for size, priority in
                 ((10_000, 0.2), (20_000, 0.4), (30_000, 0.8), (5_000, 0.8), (20_000, 0.2)))  # fmt: skip


def _amounts(rule: Rule) -> range:
    return range(0, Pool(holders=_HOLDERS, rule=rule).most + 1, 997)


def _share_of_hand(which: int) -> float:
    hand = [Holder(size=size) for size in (10_000, 20_000, 30_000)]
    return reclaim_shares(hand, 15_000, "proportional")[which] / 1000


def _worst_sum() -> float:
    return float(max(abs(sum(reclaim_shares(_HOLDERS, r, rule)) - r) for rule in RULES for r in _amounts(rule)))


def _not_restored() -> float:
    """Pools that taking R and giving R back does not restore, for every R and from every state before."""
    bad = 0
    for rule in RULES:
        pool = Pool(holders=_HOLDERS, rule=rule, taken=1234)
        bad += sum(pool.reclaim(r).give_back(r).held != pool.held for r in _amounts(rule) if r <= pool.most - 1234)
    return float(bad)


def _below_minimum() -> float:
    return float(
        sum(
            held < holder.least
            for rule in RULES
            for r in _amounts(rule)
            for held, holder in zip(Pool(holders=_HOLDERS, rule=rule, taken=r).held, _HOLDERS, strict=True)
        )
    )


def _against_priority() -> float:
    """Amounts at which of two equal holders the one of higher priority gives more."""
    pair = (Holder(size=20_000, priority=0.2), Holder(size=20_000, priority=0.4), Holder(size=9_000, priority=0.3))
    rules: tuple[Rule, ...] = ("priority", "priority-minimum", "deterministic")
    bad = 0
    for rule in rules:
        for r in range(0, Pool(holders=pair, rule=rule).most + 1, 997):
            low, high, _ = reclaim_shares(pair, r, rule)
            bad += high > low if rule != "priority-minimum" else high * 16 > low * 12  # of what each may lose
    return float(bad)


def _algebra() -> list[Case]:
    whole = "Whole units; the equations, clamped and shared out again, remainders to the largest."
    hand = "M = 10, 20, 30 and R = 15, in thousandths."
    return [
        *(
            _case("V22", f"proportional, M = {10 * (i + 1)} of 10, 20, 30, R = 15", hand, 2.5 * (i + 1), "", 0.0,
                  lambda _, i=i: _share_of_hand(i))
            for i in range(3)
        ),
        _case("V22", "farthest sum from R, all rules", whole, 0.0, "units", 0.0, lambda _: _worst_sum()),
        _case("V22", "holders below their minimum", whole, 0.0, "", 0.0, lambda _: _below_minimum()),
        _case("V22", "higher priority gives more", whole, 0.0, "", 0.0, lambda _: _against_priority()),
        _case("V22", "R, then -R: pools not restored", whole, 0.0, "", 0.0, lambda _: _not_restored()),
        _case("V23", "fitness of a demand parallel to what a host offers", "Cosine.", 1.0, "", 1e-12,
              lambda _: fitness((2000, 4096, 0, 0, 0), (6000, 12288, 0, 0, 0))),
        _case("V23", "of two hosts that fit alike, the less overcommitted is taken", "Its place.", 1.0, "", 0.0,
              lambda _: float(_preferred())),
    ]  # fmt: skip


def _preferred() -> int:
    total, ask = ResourceAmounts(cpu_milli=48_000, memory_mib=131_072), ResourceAmounts(cpu_milli=2000, memory_mib=4096)
    busy = HostLoad(
        total=total, soft=ResourceAmounts(cpu_milli=96_000, memory_mib=262_144), room=ResourceAmounts(72_000, 196_608)
    )
    calm = HostLoad(
        total=total, soft=ResourceAmounts(cpu_milli=60_000, memory_mib=163_840), room=ResourceAmounts(48_000, 131_072)
    )
    found = best_host(ask, [busy, calm])
    return -1 if found is None else found


@cache
def _feasible(folder: Path) -> tuple[DeflationLevel, ...]:
    peak = read_use(data_file(folder, f"{_CPU}/cpu_max_pct.csv.gz"))
    mean = read_use(data_file(folder, f"{_CPU}/cpu_avg_pct.csv.gz"))
    return deflation_levels(peak, mean, (0.1, 0.2, 0.3, 0.4, 0.5))


def _feasibility() -> list[Case]:
    figures: list[tuple[str, str, tuple[float, ...], float, Callable[[DeflationLevel], float], str]] = [
        ("peaks above what is left, median machine", _FEW, (0.0, 0.01, 0.05, 0.10, 0.15), 0.005,
         lambda level: level.above_median, "of the time"),
        ("peaks above what is left, mean", "", (0.032, 0.049, 0.072, 0.091, 0.126), 0.0005,
         lambda level: level.above_mean, "of the time"),
        ("use above what is left", "", (0.15, 0.51, 1.18, 2.71, 5.14), 0.005,
         lambda level: 100 * (level.loss or 0.0), "%"),
    ]  # fmt: skip
    return [
        _case(
            "V24",
            f"100 machines deflated by {10 * (i + 1)} %: {name}",
            "5-minute slots of Azure's 100 machines. Medians: as the paper's figure for 2 million machines shows them.",
            value,
            unit,
            tolerance,
            lambda folder, i=i, figure=figure: figure(_feasible(folder)[i]),
            unlike or None,
        )
        for name, unlike, values, tolerance, figure, unit in figures
        for i, value in enumerate(values)
    ]


@cache
def _simulated(folder: Path) -> OvercommitComparison:
    machines = sample_machines(read_machines(data_file(folder, _ARRIVALS)), _MACHINES, seed=0)
    use = read_use(data_file(folder, f"{_CPU}/cpu_avg_pct.csv.gz"))
    hosts = equal_hosts(ResourceAmounts(cpu_milli=48_000, memory_mib=131_072))
    ways = ("proportional", "priority", "deterministic", "preempt")
    return overcommit(complete_machines(machines, use, low=0.5, seed=0), hosts, ways, _LEVELS)


def _row(folder: Path, way: str, over: float) -> OvercommitRow:
    return min(_simulated(folder).of(way), key=lambda row: abs(row.overcommitment - over))


def _fewer_failures(folder: Path) -> float:
    pairs = [(_row(folder, "proportional", over), _row(folder, "preempt", over)) for over in _OVER]
    return float(sum(ours.figures.failure < theirs.figures.failure for ours, theirs in pairs))


def _ordered(folder: Path) -> float:
    losses = [
        [_row(folder, way, over).figures.loss for way in ("proportional", "priority", "deterministic")]
        for over in _SHRUNK
    ]
    return float(sum(a > b > c for a, b, c in losses))


def _increase(folder: Path, how: str, over: float) -> float:
    return 100 * _row(folder, "proportional", over).increase(how)


def _grows(folder: Path) -> float:
    return float(sum(a < b for a, b in pairwise(_increase(folder, "static", over) for over in _REVENUE)))


def _dearer(folder: Path) -> float:
    return float(sum(_increase(folder, "priority", at) > _increase(folder, "static", at) for at in _REVENUE))


def _flat(folder: Path) -> float:
    """Most over least of the revenue by allocation."""
    values = [_increase(folder, "allocation", over) for over in _REVENUE]
    return max(values) / min(values)


_METHOD = "10,000 of Azure's arrivals, half of low priority, on hosts of 48 cores and 128 GiB; N0 / N - 1."
_RATIO = f"{_METHOD} While nobody fails, figure 22's ratio by static and by priority is that of the hosts, N0 / N."


def _shapes() -> list[Case]:
    return [
        _case("V25", "overcommitments of 35 to 80 % at which proportional fails less than preemption", _METHOD, 5.0,
              "of 5", 0.0, _fewer_failures),
        _case("V25", "most failures of proportional up to 60 %", _METHOD, 0.0, "", 0.01,
              lambda folder: max(_row(folder, "proportional", at).figures.failure for at in (0.35, 0.5, 0.6))),
        _case("V25", "levels above 0 at which proportional loses more than priority, priority than deterministic",
              _METHOD, float(len(_SHRUNK)), f"of {len(_SHRUNK)}", 0.0, _ordered),
        _case("V25", "proportional loses less than 5 % at 80 %", _METHOD, 1.0, "", 0.0,
              lambda folder: float(_row(folder, "proportional", 0.8).figures.loss < 0.05)),
        _case("V26", "static revenue grows with every step of overcommitment", _RATIO, 4.0, "of 4", 0.0, _grows),
        _case("V26", "priority brings more than static", _RATIO, 5.0, "of 5", 0.0, _dearer),
        _case("V26", "revenue by allocation, most over least: about flat", _RATIO, 43.4 / 41.0, "×", 0.1, _flat),
    ]  # fmt: skip


def _readings() -> list[Case]:
    """Values of the plots, read by eye."""
    failures = [("proportional", 70, 0.027), ("preempt", 50, 0.075), ("preempt", 70, 0.30), ("preempt", 80, 0.66)]
    losses = [("proportional", 50, 0.65), ("proportional", 60, 1.6), ("proportional", 70, 2.65),
              ("proportional", 80, 4.5), ("priority", 80, 0.55), ("deterministic", 80, 0.30)]  # fmt: skip
    return [
        *(
            _case("V25", f"figure 20: failures, {way}, {over} %", _METHOD, value, "", 0.01,
                  lambda folder, way=way, over=over: _row(folder, way, over / 100).figures.failure, _UNLIKE)
            for way, over, value in failures
        ),
        *(
            _case("V25", f"figure 21: throughput loss, {way}, {over} %", _METHOD, value, "%", 0.1,
                  lambda folder, way=way, over=over: 100 * _row(folder, way, over / 100).figures.loss, _UNLIKE)
            for way, over, value in losses
        ),
        *(
            _case("V26", f"figure 22: revenue at 66.7 % over that at 0, {how}", _RATIO, value, "×", 0.05,
                  lambda folder, how=how: _increase(folder, how, 0.667) / _increase(folder, how, 0.0))
            for how, value in (("static", 20.1 / 12.1), ("priority", 30.7 / 18.4))
        ),
    ]  # fmt: skip


CASES = (*_algebra(), *_feasibility(), *_shapes(), *_readings())
