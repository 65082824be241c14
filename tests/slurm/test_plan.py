"""Decisions, shapes, speeds and memory without a Slurm: generated facts in, plans out."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.cluster.live import PastWait
from stallwise.errors import InputError
from stallwise.slurm._placement import NodeLayout, layout_of
from stallwise.slurm._plan import Partition, SchedulePlan, decide
from stallwise.slurm.controller import policy_for_slurm
from stallwise.slurm.facts import ResourceNeed, SlurmNode
from stallwise.slurm.reconciliation import ScheduleTiming, put_off
from stallwise.slurm.state import JobRow
from tests.slurm.test_reconciliation import job, row

NODES = [f"n{i}" for i in range(8)]
TOPOLOGY = """SwitchName=a Level=0 LinkSpeed=1 Nodes=n[0-3]
SwitchName=b Level=0 LinkSpeed=1 Nodes=n[4-7]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[0-7] Switches=a,b
"""


def node(name: str, used: int = 0, **more: object) -> SlurmNode:
    plain = SlurmNode(name=name, gpus=4, used=used, states=frozenset({"IDLE"}), partitions=("gpu",), idle_cpus=8)
    return replace(plain, **more)  # type: ignore[arg-type]


def layout() -> NodeLayout:
    return layout_of([node(name) for name in NODES], TOPOLOGY, "gpu")


def partition(
    rows: list[JobRow], nodes: list[SlurmNode] | None = None, policy: str = "fifo-skip", **asked: object
) -> Partition:
    """`asked` are words of the waiting jobs."""
    nodes = nodes if nodes is not None else [node(name) for name in NODES]
    return Partition(
        layout=layout(),
        nodes={n.name: n for n in nodes},
        rows={r.key: r for r in rows},
        jobs={
            r.key: replace(job("held"), key=r.key, **asked)  # type: ignore[arg-type]
            if r.phase == "waiting"
            else replace(job("running"), key=r.key)
            for r in rows
        },
        policy=policy_for_slurm(policy),
        speeds={r.key: r.speeds for r in rows},
        now_s=1000.0,
    )


def waiting(key: str, gang: int, **more: object) -> JobRow:
    return replace(row("waiting"), key=key, gang=gang, **more)  # type: ignore[arg-type]


def running(key: str, placed: dict[str, int], **more: object) -> JobRow:
    plain = replace(row("running"), key=key, gang=sum(placed.values()), placed=placed, lease_s=math.inf)
    return replace(plain, **more)  # type: ignore[arg-type]


def placed(plan: SchedulePlan) -> dict[str, dict[str, int]]:
    return {start.key: dict(start.placed) for start in plan.start}


def test_the_tree_is_that_of_the_switches() -> None:
    tree = layout()
    assert tree.cluster.levels == ("machine", "rack")
    assert [tree.level(nodes) for nodes in (["n0"], ["n0", "n3"], ["n0", "n4"])] == [0, 1, 2]
    flat = layout_of([node(name) for name in NODES], "", "gpu")
    assert flat.level(NODES) == 1
    alone = layout_of([node(name) for name in [*NODES, "n8"]], TOPOLOGY, "gpu")
    assert alone.level(["n0", "n8"]) == 2, "a node under no switch is near nobody"
    with pytest.raises(InputError, match="Slurm lists no GPU on the nodes of partition 'cpu'"):
        layout_of([node("n0")], "", "cpu")


def test_what_others_use_and_what_is_broken_is_left_alone() -> None:
    nodes = [node("n0", used=4), node("n1", states=frozenset({"IDLE", "DRAIN"})), node("n2", idle_cpus=0)]
    nodes += [node(name) for name in NODES[3:]]
    plan = decide(partition([waiting("1", 4), waiting("2", 20), waiting("3", 4)], nodes))
    assert set(placed(plan)) == {"1", "3"}
    assert not {"n0", "n1", "n2"} & {name for nodes in placed(plan).values() for name in nodes}
    assert plan.lost_gpus == 12
    assert plan.why["2"].text == "needs 20 GPUs, 12 are free"


def test_gpus_of_a_job_on_its_way_are_not_given_twice() -> None:
    on_way = replace(running("1", {"n0": 4, "n1": 4}), phase="starting")
    plan = decide(partition([on_way, waiting("2", 24)]))
    assert not set(placed(plan)["2"]) & {"n0", "n1"}


@given(st.data())
def test_no_gpu_is_ever_promised_twice(data: st.DataObject) -> None:
    """Whatever runs, is used by others and waits: what is started fits beside it, on nodes that may be used."""
    used = {name: data.draw(st.integers(0, 4)) for name in NODES}
    ours = {name: data.draw(st.integers(0, count)) for name, count in used.items()}
    rows = [running(str(100 + i), {name: count}) for i, (name, count) in enumerate(ours.items()) if count]
    gangs = data.draw(st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=8))
    rows += [waiting(str(i), gang, speeds=(1.0, 0.9, 0.5)) for i, gang in enumerate(gangs)]
    name = data.draw(st.sampled_from(["fifo-skip", "las", "patient", "dally", "2d-las"]))
    plan = decide(partition(rows, [node(name, used=count) for name, count in used.items()], name))
    back = [r for r in rows if r.key in plan.stop]
    for host in NODES:
        given_now = sum(start.placed.get(host, 0) for start in plan.start)
        given_back = sum(r.placed.get(host, 0) for r in back)
        assert used[host] - given_back + given_now <= 4
    assert all(sum(start.placed.values()) == next(r.gang for r in rows if r.key == start.key) for start in plan.start)
    assert not back or name == "2d-las", "no lease has ended; only that one stops jobs at any time"


@given(st.data())
def test_nothing_is_promised_twice_to_jobs_with_words_of_their_own(data: st.DataObject) -> None:
    """Shapes that do not fit the policy's choice are put elsewhere: there too every GPU and CPU is given once."""
    used = {name: data.draw(st.integers(0, 4)) for name in NODES}
    nodes = [node(name, used=count, idle_cpus=data.draw(st.integers(1, 8)), cpus=8) for name, count in used.items()]
    shapes = st.sampled_from(
        [
            {"per_node": 2, "gang": 4, "least_nodes": 2},
            {"per_node": 1, "gang": 3, "least_nodes": 3},
            {"gang": 4, "least_nodes": 3, "most_nodes": 4},
            {"gang": 2, "required": ("n3",)},
            {"gang": 6},
        ]
    )
    rows = [waiting(str(i), **shape) for i, shape in enumerate(data.draw(st.lists(shapes, max_size=8)))]  # type: ignore[arg-type]
    need = data.draw(st.sampled_from([ResourceNeed(), ResourceNeed(cpus_per_gpu=2), ResourceNeed(cpus_per_node=3)]))
    plan = decide(partition(rows, nodes, data.draw(st.sampled_from(["fifo-skip", "patient:lease=1"])), need=need))
    for host in nodes:
        there = [start.placed[host.name] for start in plan.start if host.name in start.placed]
        assert used[host.name] + sum(there) <= 4
        assert sum(need.cpus_with(gpus) for gpus in there) <= (host.idle_cpus or 0)
    for start in plan.start:
        row = next(row for row in rows if row.key == start.key)
        assert sum(start.placed.values()) == row.gang
        assert set(row.required) <= set(start.placed)
        assert row.least_nodes <= len(start.placed)


def test_a_lease_ends_for_one_who_deserves_more_and_goes_on_otherwise() -> None:
    whole = dict.fromkeys(NODES, 4)
    nodes = [node(name, used=4) for name in NODES]
    old = running("1", whole, lease_s=999.0, ran_s=500.0)
    assert decide(partition([old], nodes, "las")).renew == ("1",)
    plan = decide(partition([old, waiting("2", 32)], nodes, "las"))
    assert plan.stop == ("1",)
    assert placed(plan) == {"2": whole}
    patient = running("1", whole, lease_s=1001.0, ran_s=500.0)
    assert not decide(partition([patient, waiting("2", 32)], nodes, "las")).stop


def test_nobody_is_moved_to_an_equal_place() -> None:
    """Three machines are free that a fuller first choice would prefer; the job stays where it is."""
    old = running("1", {"n7": 2}, lease_s=999.0)
    nodes = [node(name, used=2 if name in ("n0", "n7") else 0) for name in NODES]
    plan = decide(partition([old, waiting("2", 1)], nodes, "patient"))
    assert plan.renew == ("1",)
    assert not plan.stop


def test_why_tells_when_patience_ends_and_then_it_does() -> None:
    nodes = [node(name, used=1 if name in ("n0", "n4") else 0) for name in NODES]
    gang = waiting("1", 16, asked_s=1000.0, speeds=(1.0, 1.0, 0.5))
    here = partition([gang], nodes, "patient:lease=100,factor=2")
    plan = decide(here)
    assert not plan.start
    assert plan.why["1"].until_s == pytest.approx(1200.0)
    assert plan.next_s <= 1200.0, "nor does the controller sleep over it"
    assert "holds out for one rack" in plan.why["1"].text
    assert not decide(replace(here, now_s=1199.0)).start
    assert decide(replace(here, now_s=1200.5)).start[0].level == 2


def test_past_waits_make_dally_more_patient() -> None:
    nodes = [node(name, used=1 if name in ("n0", "n4") else 0) for name in NODES]
    here = partition([waiting("1", 16, asked_s=1000.0)], nodes, "dally:lease=100")
    assert decide(here).why["1"].until_s == pytest.approx(2200.0), "twelve leases by default"
    waits = [PastWait(gang=16, level="rack", time_s=900.0 + i, wait_s=1800.0) for i in range(3)]
    longer = decide(replace(here, waits=waits))
    assert longer.why["1"].until_s == pytest.approx(2800.0), "eighteen, as others of its size had to wait"
    assert not decide(replace(here, waits=waits, now_s=2799.0)).start
    assert decide(replace(here, waits=waits, now_s=2801.0)).start, "and the policy does what was told"
    other = [replace(wait, gang=8) for wait in waits]
    assert decide(replace(here, waits=other)).why["1"].until_s == pytest.approx(2200.0)


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        ({"per_node": 2, "least_nodes": 2}, [2, 2]),
        ({"least_nodes": 4, "most_nodes": 4}, [1, 1, 1, 1]),
        ({"required": ("n6",)}, [4]),
        ({"required": ("n6", "n7"), "most_nodes": 4}, [3, 1]),
        ({"required": ("n5",), "least_nodes": 3, "most_nodes": 4}, [2, 1, 1]),
        ({"required": ("n6",), "per_node": 2, "least_nodes": 2}, [2, 2]),
        ({"per_node": 1, "least_nodes": 1, "most_nodes": 8}, [1, 1, 1, 1]),
    ],
)
def test_shapes_that_a_job_insists_on(asked: dict[str, object], counts: list[int]) -> None:
    found = placed(decide(partition([waiting("1", 4, **asked)])))["1"]
    assert list(found.values()) == counts
    assert layout().level(found) <= 1, "in one rack"
    assert set(found) >= set(asked.get("required", ()))  # type: ignore[call-overload]


def test_nodes_named_in_a_list_are_the_least_a_job_has_and_others_join_them() -> None:
    """`--nodelist=n6 --gpus=8 --nodes=1-4`: n6 must be among them, and cannot hold the gang alone."""
    found = placed(decide(partition([waiting("1", 8, required=("n6",), most_nodes=4)])))["1"]
    assert found["n6"] == 4
    assert sum(found.values()) == 8
    assert layout().level(found) == 1
    busy = [node(name, used=4 if name == "n6" else 0) for name in NODES]
    plan = decide(partition([waiting("1", 8, required=("n6",), most_nodes=4)], busy))
    assert plan.misfit == ("1",), "it waits for that node"
    apart = placed(decide(partition([waiting("1", 8, required=("n0", "n7"), most_nodes=2)])))["1"]
    assert apart == {"n0": 4, "n7": 4}, "its own words spread it over two racks"


def test_gpus_of_a_task_are_on_one_node() -> None:
    nodes = [node(name, used=1) for name in NODES]  # three free on each
    found = placed(decide(partition([waiting("1", 6)], nodes, unit=2)))["1"]
    assert set(found.values()) == {2}
    assert len(found) == 3


NEEDS_SIX = ResourceNeed(cpus=6, cpus_per_node=6)


def test_gpus_on_a_node_without_the_cpus_are_no_place_for_a_job_that_needs_them() -> None:
    """Slurm would let it wait there for ever: pinned to GPUs that are free beside CPUs that are not."""
    nodes = [node(name, used=1, idle_cpus=8 if name == "n5" else 4) for name in NODES]
    assert set(placed(decide(partition([waiting("1", 2)], nodes, need=NEEDS_SIX)))["1"]) == {"n5"}
    assert placed(decide(partition([waiting("1", 2)], nodes)))["1"], "others do not mind"
    none = [node(name, used=1, idle_cpus=4) for name in NODES]
    plan = decide(partition([waiting("1", 2)], none, need=NEEDS_SIX))
    assert plan.misfit == ("1",)
    assert not plan.start
    assert "CPUs" in plan.why["1"].text
    held = put_off(waiting("1", 2), 1000.0, ScheduleTiming())
    assert "CPUs" in decide(partition([held], none, need=NEEDS_SIX)).why["1"].text
    per_gpu = placed(decide(partition([waiting("1", 4)], need=ResourceNeed(cpus_per_gpu=4))))["1"]
    assert list(per_gpu.values()) == [2, 2], "eight CPUs are enough for two GPUs"
    in_all = placed(decide(partition([waiting("1", 2, most_nodes=4)], need=ResourceNeed(cpus=12))))["1"]
    assert len(in_all) == 2, "so many CPUs are on two nodes only"


def test_cpus_are_not_promised_twice() -> None:
    rows = [waiting(str(i), 1) for i in range(20)]
    plan = decide(partition(rows, [node(name) for name in NODES], need=NEEDS_SIX))
    assert len(plan.start) == 8, "one on each node, though GPUs are left"
    assert len({name for start in plan.start for name in start.placed}) == 8
    on_way = replace(running("9", {"n0": 1}), phase="starting")
    here = partition([on_way, waiting("1", 1, required=("n0",))], need=NEEDS_SIX)
    here = replace(here, jobs={**here.jobs, "9": replace(here.jobs["9"], need=NEEDS_SIX)})
    assert decide(here).misfit == ("1",), "what is about to start there has them"


def test_memory_counts_where_slurm_gives_it_out() -> None:
    nodes = [node(name, used=1, memory_mb=1000.0, used_memory_mb=600.0) for name in NODES]
    free = node("n7", memory_mb=1000.0)
    here = partition([waiting("1", 2)], [*nodes[:-1], free], need=ResourceNeed(memory_mb=500.0))
    assert set(placed(decide(replace(here, counts_memory=True)))["1"]) == {"n7"}
    silent = partition([waiting("1", 2), waiting("2", 2)], [*nodes[:-1], free])
    plan = decide(replace(silent, counts_memory=True))
    assert placed(plan) == {"1": {"n7": 2}}, "who says nothing gets all of a node"
    assert plan.misfit == ("2",)
    assert len(decide(silent).start) == 2


def test_the_only_node_with_the_memory_is_not_kept_by_a_job_that_cannot_start_either() -> None:
    """The policy puts the small job elsewhere and the large one on the rack of that node; neither choice fits."""
    nodes = [node(name, memory_mb=2000.0, used_memory_mb=1000.0) for name in NODES[:-1]]
    both = [waiting("1", 1), waiting("2", 16)]
    here = partition(both, [*nodes, node("n7", memory_mb=2000.0)], need=ResourceNeed(memory_mb=1500.0))
    plan = decide(replace(here, counts_memory=True))
    assert placed(plan) == {"1": {"n7": 1}}
    assert plan.misfit == ("2",)


def test_who_wants_nodes_alone_gets_empty_ones() -> None:
    nodes = [node(name, cpus=8, idle_cpus=8 if name == "n3" else 7) for name in NODES]
    plan = decide(partition([waiting("1", 1), waiting("2", 1)], nodes, need=ResourceNeed(whole_nodes=True)))
    assert placed(plan) == {"1": {"n3": 1}}
    assert plan.misfit == ("2",)


@pytest.mark.parametrize(
    ("idle", "had", "taken_over"),
    [
        (7, ResourceNeed(), True),
        (6, ResourceNeed(), False),  # somebody else's job stays there
        (0, ResourceNeed(whole_nodes=True, cpus=8), True),  # alone itself, with more CPUs than it says
        (0, ResourceNeed(cpus=64), True),
    ],
)
def test_who_wants_nodes_alone_takes_over_when_a_lease_ends(idle: int, had: ResourceNeed, taken_over: bool) -> None:
    whole = dict.fromkeys(NODES, 4)
    nodes = [node(name, used=4, cpus=8, idle_cpus=idle) for name in NODES]
    old = running("1", whole, lease_s=999.0, ran_s=500.0)
    here = partition([old, waiting("2", 32)], nodes, "las", need=ResourceNeed(whole_nodes=True))
    plan = decide(replace(here, jobs={**here.jobs, "1": replace(here.jobs["1"], need=had)}))
    assert (plan.stop, placed(plan)) == ((("1",), {"2": whole}) if taken_over else ((), {}))


def test_who_wants_nodes_alone_does_not_join_one_that_stays() -> None:
    """Four GPUs of a node belong to two jobs, one of whose leases ends; CPUs are dealt out unevenly."""
    nodes = [node("n0", used=4, cpus=8, idle_cpus=4), *(node(name, used=4, cpus=8, idle_cpus=0) for name in NODES[1:])]
    ending, staying = running("1", {"n0": 2}, lease_s=999.0, ran_s=500.0), running("3", {"n0": 2})
    here = partition([ending, staying, waiting("2", 2)], nodes, "las", need=ResourceNeed(whole_nodes=True))
    here = replace(here, jobs={**here.jobs, "1": replace(here.jobs["1"], need=ResourceNeed(cpus=8))})
    assert not placed(decide(here))


def test_nobody_is_stopped_for_a_job_that_cannot_come() -> None:
    whole = dict.fromkeys(NODES, 4)
    nodes = [node(name, used=4, idle_cpus=2) for name in NODES]
    old = running("1", whole, lease_s=999.0, ran_s=500.0)
    plan = decide(partition([old, waiting("2", 32)], nodes, "las", need=ResourceNeed(cpus_per_node=8)))
    assert plan.misfit == ("2",)
    assert not plan.stop
    assert plan.renew == ("1",)


def test_a_shape_that_does_not_fit_anywhere_lets_others_go_first() -> None:
    nodes = [node(name, used=2) for name in NODES]
    plan = decide(partition([waiting("1", 16, per_node=4, least_nodes=4), waiting("2", 2)], nodes))
    assert plan.misfit == ("1",)
