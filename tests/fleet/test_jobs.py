"""The progress of an elastic job, from the event log of its session."""

import json
from dataclasses import replace
from pathlib import Path

from stallwise.fleet.jobs import ElasticJob
from tests.data.testbed.processes import free_ports
from tests.fleet.test_manager import PLAN


def test_what_a_superseded_round_notes_late_is_no_progress(tmp_path: Path) -> None:
    """Ten steps are made again; those that the earlier round makes after it was stopped are nobody's."""
    job = ElasticJob(replace(PLAN, samples=1000), ("train.py",), tmp_path, free_ports(1)[0], "secret")
    pace = {"world": 1, "samples_per_s": 20.0, "step_s": 0.5}
    events = [
        {"round": 0, "kind": "began", "step": 0, "world": 1},
        {"round": 0, "kind": "pace", "step": 50, "samples": 500, **pace},
        {"round": 1, "kind": "began", "step": 40, "world": 1, "samples": 400},
        {"round": 0, "kind": "pace", "step": 60, "samples": 600, **pace},
        {"round": 1, "kind": "pace", "step": 45, "samples": 450, **pace},
        {"round": 2, "kind": "began", "step": 45, "world": 1, "samples": 450},
        {"round": 0, "kind": "saved", "step": 50},
        {"round": 2, "kind": "pace", "step": 55, "samples": 550, **pace},
    ]
    lines = [json.dumps({"at": float(at), **event}) + "\n" for at, event in enumerate(events)]
    (tmp_path / "events.jsonl").write_text("".join(lines))
    progress = job.progress(100.0, [])
    assert progress.redone_s == 10 * 0.5
    assert progress.fraction == 0.55
