"""`stallwise fleet …` and `stallwise ledger`, with a real elastic job on the local back end."""

import json
from collections import Counter
from pathlib import Path

import pytest

from stallwise.errors import InputError
from stallwise.fleet.plan import FleetPlan, read_plan
from stallwise.fleet.state import FleetState
from tests.conftest import ROOT, Cli
from tests.fleet import job
from tests.fleet.killed import running
from tests.program import run_program
from tests.sentences import coded

JOB = ROOT / "tests/fleet/job.py"


def test_a_real_job_loses_a_machine_and_is_done(tmp_path: Path, cli: Cli) -> None:
    """Two machines; one is taken away with notice and comes back. Whatever the speed, every sample counts once."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (tmp_path / "counts.csv").write_text("0,2\n14000,1\n18000,2\n99000000,2\n")
    ledger = ("--ledger", str(tmp_path / "ledger.sqlite"))
    words = ("--machines", "2", "--price", "3", "--spot-price", "1", "--samples", str(3 * job.SAMPLES))
    trace = ("--interval", "2s", "--grace", "3s", "--trace", "counts.csv", "--folder", "fleet", *ledger)
    script = (str(JOB), "--epochs", "3", "--notes", str(notes), "--pause", "0.1")
    done = run_program(("fleet", "run", *words, *trace, "--json", *script), tmp_path, timeout_s=280)
    assert done.returncode == 0, done.stderr
    receipt = coded(done.stdout)
    assert (receipt["outcome"], receipt["fraction"]) == ("done", 1.0)
    assert receipt["lived"]["machines"] >= 2
    hours = sum(one["lived_s"] for one in receipt["machines"]) / 3600
    assert receipt["lived"]["usd"] == pytest.approx(hours, rel=1e-6)
    state = FleetState.open(tmp_path / "fleet")
    assert not running(state.token)
    state.close()
    assert _counted(notes) == {(epoch, number): 1 for epoch in range(3) for number in range(job.SAMPLES)}

    shown = cli("fleet", "status", "fleet").stdout
    assert "receipt" in shown
    assert "done" in shown
    events = coded(cli("fleet", "logs", "fleet", "--json").stdout)["rows"]
    kinds = [event["kind"] for event in events]
    assert (kinds[0], kinds[-1]) == ("began", "closed")
    hosts = [one["name"] for one in receipt["machines"]]
    assert any("done after" in cli("fleet", "logs", "fleet", name).stdout for name in hosts)
    again = cli("fleet", "run", "--machines", "2", "--folder", "fleet", str(JOB), code=2)
    assert "has ended" in again.stderr
    assert coded(cli("fleet", "down", "fleet", "--json", *ledger).stdout)["outcome"] == "done"
    book = coded(cli("ledger", *ledger, "--lifetimes", "lives.csv", "--json").stdout)
    assert [one["name"] for one in book["receipts"]] == ["job"]
    fitted = coded(cli("spot", "fit", "lives.csv", "--json").stdout)
    assert fitted["machines"] == receipt["lived"]["machines"]


def _counted(notes: Path) -> Counter[tuple[int, int]]:
    """How often each sample is part of the steps that count: of a step that was made twice, the later one."""
    rows: dict[int, dict[str, list[int]]] = {}
    order = sorted(notes.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in order:
        for line in path.read_text().splitlines():
            step, *rest = map(int, line.split())
            rows.setdefault(step, {})[path.name] = rest
    counted: Counter[tuple[int, int]] = Counter()
    for ranks in rows.values():
        for epoch, *numbers in ranks.values():
            counted.update((epoch, number) for number in numbers)
    return counted


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fleet", "run", str(JOB)), "--machines"),
        (("fleet", "run", "--machines", "2", "gone.py"), "There is no script gone.py"),
        (("fleet", "run", "--machines", "0", str(JOB)), "Option: --machines."),
        (("fleet", "run", "--machines", "2", "--budget", "-3", str(JOB)), "Option: --budget."),
        (("fleet", "run", "--machines", "2", "--deadline", "3", str(JOB)), "Option: --deadline."),
        (("fleet", "run", "--plan", "gone.json", str(JOB)), "gone.json cannot be read"),
        (("fleet", "status", "gone"), "There is no fleet in gone"),
        (("fleet", "down", "gone"), "There is no fleet in gone"),
        (("fleet", "rehearse", "--machines", "2"), "--work"),
        (("fleet", "rehearse", "--machines", "2", "--work", "1h", "--times", "0"), "--times"),
    ],
)
def test_what_cannot_be_done_is_refused(ask: Cli, words: tuple[str, ...], sentence: str) -> None:
    done = ask(*words, code=2)
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_document_of_recommend_is_a_plan(ask: Cli, tmp_path: Path) -> None:
    run = str(ROOT / "examples/runs/images")
    done = ask("recommend", run, "--epochs", "200", "--spot-only", "--mean-life", "12h", "--deadline", "2h", "--json")
    path = tmp_path / "plan.json"
    path.write_text(done.stdout)
    pick, plan = json.loads(done.stdout)["pick"], read_plan(path, "images")
    assert (plan.machines, plan.ranks, plan.market) == (pick["machines"], pick["gpus_per_machine"], "spot")
    assert (plan.time_s, plan.usd, plan.deadline_s) == (pick["time_s"], pick["usd"], 7200.0)
    assert (plan.spot_usd_per_h, plan.interval_s) == (pick["usd_per_h"], pick["spot"]["checkpoint_every_s"])
    assert plan.work_s == pick["spot"]["work_s"] < pick["time_s"]
    rehearsed = ask("fleet", "rehearse", "--plan", "plan.json", "--json")
    result = json.loads(rehearsed.stdout)
    assert result["in_time"] == 1
    assert abs(result["cost_error"]) < 0.2
    for text, sentence in (("[]", "no recommendation"), ("{", "no JSON"), ('{"schema": 3}', "no recommendation")):
        path.write_text(text)
        with pytest.raises(InputError, match=sentence):
            read_plan(path, "images")


def test_rehearsals_of_a_trace_say_how_often_the_deadline_is_met(ask: Cli, tmp_path: Path) -> None:
    hours = [(2, 4), (5, 1), (9, 4), (26, 0), (30, 4), (60, 4)]
    (tmp_path / "counts.csv").write_text("0,4\n" + "".join(f"{at * 3600000},{count}\n" for at, count in hours))
    fleet = ("--machines", "4", "--work", "6h", "--spot-price", "1", "--price", "3", "--trace", "counts.csv")
    words = ("fleet", "rehearse", *fleet, "--times", "2", "--deadline")
    met = json.loads(ask(*words, "30h", "--json").stdout)
    assert met["in_time"] == 2
    assert [one["lived"]["losses"] for one in met["receipts"]] == [3, 4]
    missed = ask(*words, "6h", code=1)
    assert "met 0 of 2 times" in missed.stdout


def test_a_name_of_a_fleet_is_one() -> None:
    with pytest.raises(InputError, match="small letters"):
        FleetPlan(name="../x", machines=1)
