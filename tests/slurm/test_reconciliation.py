"""Every cell of the table in `slurm/reconciliation.py`, and what goes with it."""

from dataclasses import replace

import pytest

from stallwise.slurm import reconciliation
from stallwise.slurm.facts import PinMark, SlurmJob, mark_in, mark_text
from stallwise.slurm.reconciliation import Reconciliation, ScheduleTiming, reconcile
from stallwise.slurm.state import JobRow

NOW = 1000.0
TIMING = ScheduleTiming(start_s=20, stop_s=20, retry_s=10)
STATES = ("held", "free", "running", "ending", "over", "gone")


def job(state: str, **more: object) -> SlurmJob:
    words = {"held": "PENDING", "free": "PENDING", "running": "RUNNING", "ending": "COMPLETING", "over": "COMPLETED"}
    plain = SlurmJob(
        key="7", name="", user="", partition="gpu", state=words[state], held=state == "held", reason="JobHeldUser",
        gang=8, per_node=0, least_nodes=1, most_nodes=8, submit_s=900.0, eligible_s=0.0,
        start_s=990.0 if state in ("running", "ending", "over") else 0.0, end_s=995.0 if state == "over" else 0.0,
        restarts=0, exit_code=0, limit_s=None, depends=False, required=(), excluded=(), features="", special=False,
        comment="", held_gpus={"n1": 4, "n2": 4} if state == "running" else {},
    )  # fmt: skip
    return replace(plain, **more)  # type: ignore[arg-type]


def row(phase: str, **more: object) -> JobRow:
    placed = {} if phase in ("waiting", "done", "left") else {"n1": 4, "n2": 4}
    began = 950.0 if phase in ("running", "warned", "stopping") else 0.0
    plain = JobRow(
        key="7", submit_s=900.0, phase=phase, since_s=985.0, gang=8, most_nodes=8, asked_s=900.0, placed=placed
    )  # type: ignore[arg-type]
    return replace(plain, granted_s=began, **more)  # type: ignore[arg-type]


def seen(known: JobRow | None, state: str, **more: object) -> Reconciliation:
    rows = {} if known is None else {"7": known}
    jobs = [] if state == "gone" else [job(state, **more)]
    return reconcile(rows, jobs, "gpu", NOW, TIMING)


def table() -> list[tuple[str, str, str]]:
    """The cells of the docstring: (row, what Slurm says, the row after)."""
    lines = [line for line in (reconciliation.__doc__ or "").splitlines() if line.startswith("|")][1:]
    cells = []
    for line in lines:
        name, *after = [cell.strip() for cell in line.strip("|").split("|")]
        for state, text in zip(STATES, after, strict=True):
            cells.append((name, state, text))
    return cells


@pytest.mark.parametrize(("before", "state", "text"), table())
def test_the_table_is_what_happens(before: str, state: str, text: str) -> None:
    known = None if before == "none" else row(before)
    view = seen(known, state, exit_code=1 if before in ("warned", "returning") and "returning" in text else 0)
    if text == "not ours":
        assert not view.rows
        return
    assert not text.endswith("(lost)") or view.events == (("7", "lost"),)
    words = text.replace(",", " ").replace("(", " ").split()
    phase = "waiting" if words[0] == "new" else words[0]
    assert view.rows["7"].phase == phase
    # Whoever must not start where it is pinned is held, and nobody else.
    assert view.hold == (("7",) if phase == "holding" and state == "free" else ())


def test_a_job_that_slurm_has_forgotten_is_done() -> None:
    for phase in ("waiting", "starting", "running", "stopping", "ending"):
        assert seen(row(phase), "gone").rows["7"].phase == "done"


def test_times_are_booked_once_at_the_speed_of_the_place() -> None:
    known = row("running", ran_s=5.0, done_s=4.0)
    view = reconcile({"7": known}, [job("held", restarts=1)], "gpu", NOW, TIMING, lambda row: 0.5)
    after = view.rows["7"]
    assert (after.ran_s, after.done_s, after.asked_s, after.stops) == (55.0, 29.0, NOW, 1)
    again = reconcile({"7": after}, [job("held", restarts=1)], "gpu", NOW + 5, TIMING, lambda row: 0.5)
    assert again.rows["7"] == after
    assert not again.changed


def test_a_start_between_two_looks_counts() -> None:
    after = seen(row("starting"), "over").rows["7"]
    assert (after.starts, after.first_s, after.ran_s) == (1, 990.0, 5.0)


def test_a_start_that_comes_to_nothing_is_held_back_for_longer_each_time() -> None:
    late = row("starting", since_s=NOW - 21)
    after = seen(late, "free").rows["7"]
    assert (after.phase, after.tries, after.not_before_s) == ("holding", 1, NOW + 10)
    assert seen(replace(late, tries=2), "free").rows["7"].not_before_s == NOW + 40
    assert seen(replace(late, tries=9), "free").rows["7"].not_before_s == NOW + TIMING.most_retry_s


def test_a_start_waits_for_those_who_are_leaving_its_nodes() -> None:
    late, leaving = row("starting", since_s=NOW - 60), replace(row("ending"), key="8")
    jobs = [job("free"), job("ending", key="8")]
    view = reconcile({"7": late, "8": leaving}, jobs, "gpu", NOW, TIMING)
    assert view.rows["7"].phase == "starting"


def test_a_requeue_that_never_began_is_asked_for_again() -> None:
    assert seen(row("stopping", since_s=NOW - 5), "running").rows["7"].phase == "stopping"
    assert seen(row("stopping", since_s=NOW - 21), "running").rows["7"].phase == "running"


def test_an_older_state_of_slurmctld_is_given_time_to_end_what_runs() -> None:
    back = seen(row("running"), "held", restarts=0).rows["7"]
    assert back.not_before_s == NOW + TIMING.retry_s
    assert seen(row("running"), "held", restarts=1).rows["7"].not_before_s == 0.0


def test_whose_jobs_are_ours() -> None:
    assert not seen(None, "held", reason="JobHeldAdmin").rows
    assert not seen(None, "held", partition="other").rows
    assert seen(None, "held").rows["7"].gang == 8


def test_what_a_user_changes_on_a_waiting_job_counts() -> None:
    comment = 'stallwise:{"speeds":[1,0.5],"model":"m"}'
    after = seen(row("waiting"), "held", gang=4, comment=comment).rows["7"]
    assert (after.gang, after.speeds, after.model) == (4, (1.0, 0.5), "m")
    for broken in ('stallwise:{"speeds":[2]}', "stallwise:{", 'stallwise:{"speeds":"x"}', "no such thing"):
        assert seen(row("waiting"), "held", comment=broken).rows["7"].speeds == ()


def test_nodes_that_a_user_asks_for_anew_count_and_a_pin_is_not_the_users_word() -> None:
    ours = ("n1", "n2")
    mark = PinMark.of(1, 8, (), ours)
    pinned: dict[str, object] = {"mark": mark, "required": ours, "least_nodes": 2, "most_nodes": 2}

    def nodes_of(**more: object) -> tuple[int, int, tuple[str, ...]]:
        after = seen(row("waiting"), "held", **more).rows["7"]
        return after.least_nodes, after.most_nodes, after.required

    assert nodes_of(**pinned) == (1, 8, ())
    assert nodes_of(required=("n3",)) == (1, 8, ("n3",)), "never pinned: all is the user's"
    assert nodes_of(**pinned | {"required": ("n3", "n4")}) == (1, 8, ("n3", "n4"))
    assert nodes_of(**pinned | {"least_nodes": 4, "most_nodes": 6}) == (4, 6, ())
    ran: dict[str, object] = pinned | {"restarts": 1, "least_nodes": 3, "most_nodes": 0}
    assert nodes_of(**ran) == (1, 8, ()), "three it had when it last ran"
    assert nodes_of(**ran | {"mark": None, "required": ()}) == (1, 8, ())
    assert nodes_of(**pinned | {"mark": None, "markable": False}) == (1, 8, ()), "an administrator's comment is there"


def test_a_pin_without_a_mark_is_not_taken_for_the_users_word() -> None:
    """Where the account may not write marks: killed between pin and release, the job is seen held and pinned."""
    pinned: dict[str, object] = {"required": ("n1", "n2"), "least_nodes": 2, "most_nodes": 2}
    after = seen(row("starting"), "held", **pinned).rows["7"]
    again = reconcile({"7": after}, [job("held", **pinned)], "gpu", NOW, TIMING).rows["7"]
    for found in (after, again):
        assert (found.phase, found.least_nodes, found.most_nodes, found.required) == ("waiting", 1, 8, ())


def test_a_job_without_a_row_is_taken_up_as_it_was_before_its_pin() -> None:
    """The state is lost; the mark in Slurm is not."""
    mark = PinMark.of(1, 8, ("n1",), ("n1", "n2"))
    pinned: dict[str, object] = {"mark": mark, "required": ("n2", "n1"), "least_nodes": 2, "most_nodes": 2}
    after = seen(None, "held", **pinned).rows["7"]
    assert (after.least_nodes, after.most_nodes, after.required, after.gang) == (1, 8, ("n1",), 8)
    rigid = {"per_node": 4, "in_all": False, "gang": 12, "least_nodes": 3, "most_nodes": 3, "required": ("n1",) * 3}
    whole = seen(None, "held", **rigid, mark=PinMark.of(2, 2, (), ("n1",) * 3)).rows["7"]
    assert (whole.gang, whole.least_nodes) == (8, 2)


def test_marks_survive_slurm_and_nothing_else_is_one() -> None:
    mark = PinMark.of(1, 0, ("n1",), ("n1", "n2"))
    assert mark_in(mark_text(mark)) == mark
    assert mark.pinned_to(("n2", "n1"))
    assert not mark.pinned_to(("n1",))
    long = mark_text(PinMark.of(1, 0, tuple(f"node{i}" for i in range(300)), ("n1",)))
    assert len(long) <= 1024
    for text in (long, "", "ours", "stallwise:[]", 'stallwise:{"least":"x"}'):
        assert mark_in(text) is None


def test_a_job_that_started_and_came_back_between_two_looks_counts_as_started() -> None:
    after = seen(row("starting"), "free", restarts=1).rows["7"]
    assert (after.phase, after.starts, after.stops) == ("holding", 1, 1)


def test_a_number_that_is_given_again_is_another_job() -> None:
    old = row("done", ran_s=50.0)
    after = seen(old, "held", submit_s=960.0).rows["7"]
    assert (after.ran_s, after.submit_s) == (0.0, 960.0)


def test_a_job_that_left_after_a_warning_is_done_or_comes_back_by_its_code() -> None:
    assert seen(row("warned"), "over", exit_code=0).rows["7"].phase == "done"
    for state, phase in (("FAILED", "returning"), ("CANCELLED", "done")):
        ended = replace(job("over", exit_code=15), state=state)
        assert reconcile({"7": row("warned")}, [ended], "gpu", NOW, TIMING).rows["7"].phase == phase


def test_a_running_job_whose_row_was_lost_is_taken_up_where_it_was_pinned() -> None:
    mark = PinMark.of(1, 8, (), ("n1", "n2"))
    marked = job("running", required=("n1", "n2"), mark=mark, restarts=1)
    view = reconcile({}, [marked], "gpu", NOW, TIMING, lease_s=60.0)
    after = view.rows["7"]
    assert view.events == (("7", "adopted"),)
    assert (after.phase, after.placed, after.granted_s, after.lease_s) == ("running", {"n1": 4, "n2": 4}, 990.0, 1060.0)
    assert (after.gang, after.least_nodes, after.most_nodes, after.required, after.restarts) == (8, 1, 8, (), 1)
    assert not reconcile({}, [replace(marked, required=("n3",))], "gpu", NOW, TIMING).rows, "pinned by hand since"
    assert reconcile({}, [marked], "gpu", NOW, TIMING).rows["7"].lease_s > NOW + 1e8, "leases without end"
