"""The same record with the Stash paper's denominators."""

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.text import Text

from stallwise.model.stash import Stall, Stalls, Times, stalls, times_of_parts
from stallwise.record.profile import Profile
from stallwise.report.card import WIDTH, labelled
from stallwise.report.parts import NOT_MEASURED, parts_of, setting, title
from stallwise.report.profile_json import plain
from stallwise.report.terminal import table
from stallwise.report.text import show_percent, show_seconds

_RUNS = {
    "t0": "one rank alone, data in host memory",
    "t1": "all ranks of one machine, data in host memory",
    "tn": "the same over all machines",
    "t3": "the job as it is, page cache warm",
    "t2": "page cache cold",
}
_SHOWN = {name: name for name in _RUNS} | {"tn": "tN"}
_NAMES = {"interconnect": "interconnect", "network": "network", "prep": "CPU (prep)", "fetch": "disk (fetch)"}


@dataclass(frozen=True, slots=True)
class _View:
    times: Times
    stalls: Stalls
    notes: tuple[str, ...]


def stash_document(profile: Profile) -> dict[str, Any]:
    """Keys: `run_id`, `times`, `stalls` (each `{s, percent, of, of_s}` or null) and `notes`."""
    view = _view(profile)
    return {
        "run_id": profile.run_id,
        "times": {f"{name}_s": plain(view.times.of(name)) for name in _RUNS},
        "stalls": {name: _record(getattr(view.stalls, name)) for name in _NAMES},
        "notes": list(view.notes),
    }


def draw_stash(profile: Profile) -> RenderableType:
    """The stalls, the times they come from, and what they are not."""
    view = _view(profile)
    percents = table(
        "stall", ("per cent", "right"), ("time", "right"), "formula", title="With the Stash paper's denominators"
    )
    absent = {part.name: part.words or NOT_MEASURED for part in parts_of(profile) if part.share is None}
    for name, shown in _NAMES.items():
        stall: Stall | None = getattr(view.stalls, name)
        if stall is None:
            percents.add_row(shown, "", "", Text(absent.get(name, NOT_MEASURED), style="dim"))
        else:
            formula = f"({_SHOWN[stall.more]} − {_SHOWN[stall.less]}) / {_SHOWN[stall.of]}"
            percents.add_row(shown, show_percent(stall.percent / 100), show_seconds(stall.s), formula)
    runs = table("run", ("step", "right"), "what it is")
    for name, meaning in _RUNS.items():
        time_s = view.times.of(name)
        runs.add_row(_SHOWN[name], Text(NOT_MEASURED, style="dim") if time_s is None else show_seconds(time_s), meaning)
    notes = labelled()
    for number, note in enumerate(view.notes):
        notes.add_row("" if number else "notes", Text(note, style="dim"))
    heading = Text.assemble((title(profile), "bold"), (f"  {setting(profile)} · {profile.state}", "dim"))
    partial = [Text(f"NOT WHOLE: {profile.partial_reason}", style="bold yellow")] if profile.partial_reason else []
    return Constrain(Group(heading, *partial, Text(), percents, Text(), runs, Text(), notes), WIDTH)


def _record(stall: Stall | None) -> dict[str, Any] | None:
    if stall is None:
        return None
    return {"s": stall.s, "percent": stall.percent, "of": stall.of, "of_s": stall.of_s}


def _view(profile: Profile) -> _View:
    seconds = {f"{name}_s": share.s for name, share in profile.split.stalls().items()}
    times = times_of_parts(
        compute_s=profile.split.compute.s,
        copy_s=seconds.get("copy_s"),
        interconnect_s=seconds.get("interconnect_s"),
        network_s=seconds.get("network_s"),
        prep_s=seconds.get("prep_s"),
        fetch_s=seconds.get("fetch_s"),
        cold_step_s=profile.cold_step_s,
        world_size=profile.world.world_size,
        nodes=profile.world.nnodes,
    )
    found = stalls(times)
    return _View(times, found, tuple(_notes(profile, found)))


def _notes(profile: Profile, found: Stalls) -> list[str]:
    notes = [
        "Each has another run as its whole: they are not parts of one step and do not add up.",
        "Stash launches the job once per run; here all times come from the phases of one launch.",
    ]
    if found.network is not None:
        notes.append("The network stall is relative to one machine's time and may exceed 100 %.")
    if found.fetch is not None and found.fetch.s < 0:
        notes.append(
            "The disk stall is negative because cold steps were no slower than warm ones; Stash has no floor here."
        )
    fetch = profile.split.fetch
    if fetch is not None and fetch.distinguishable:
        notes.append(
            f"With warm files the job still waits {show_seconds(fetch.s)} for storage; Stash counts that as CPU stall."
        )
    return notes
