"""Chaos lived beside its plan: the terminal's view and the JSON document."""

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.elastic.chaos import Costs, Outcome, mean_error
from stallwise.report.card import WIDTH, labelled
from stallwise.report.terminal import table
from stallwise.report.text import show_percent, show_seconds


def draw(costs: Costs, outcomes: Sequence[Outcome]) -> RenderableType:
    """Costs measured here, one row per run, and how far the plan was off."""
    trial = outcomes[0].trial
    rows = labelled()
    rows.add_row("job", Text(_job(outcomes)))
    rows.add_row(
        "here",
        Text(
            f"a step takes {show_seconds(costs.step_s)}; a host trains {show_seconds(costs.start_s + costs.join_s)} "
            f"after its start; all pause {show_seconds(costs.join_s)} for one that joins, "
            f"{show_seconds(costs.notice_s)} for one that goes with notice, {show_seconds(costs.loss_s)} for one killed"
        ),
    )
    heading = Text(f"chaos: {'with notice' if trial.notice else 'killed without notice'}", style="bold")
    return Constrain(
        Group(heading, Rule(style="dim"), rows, Text(), _runs(outcomes), Text(), _summary(outcomes)), WIDTH
    )


def _job(outcomes: Sequence[Outcome]) -> str:
    trial = outcomes[0].trial
    return (
        f"{trial.samples:,} samples on up to {trial.machines} machines, {show_seconds(trial.work_s)} without a loss; "
        f"a checkpoint every {show_seconds(trial.interval_s)}"
    )


def _runs(outcomes: Sequence[Outcome]) -> Table:
    shown = table(
        "run", ("losses", "right"), ("lived", "right"), ("planned", "right"), ("error", "right"),
        ("done again", "right"), ("recovery", "right"), ("cost", "right"), ("planned", "right"),
    )  # fmt: skip
    for number, one in enumerate(outcomes, 1):
        recovery = show_seconds(statistics.fmean(one.lived.recoveries_s)) if one.lived.recoveries_s else "none"
        shown.add_row(
            str(number),
            str(one.lived.losses),
            show_seconds(one.lived.finish_s),
            show_seconds(one.planned_s),
            f"{one.error:+.1%}",
            show_seconds(one.lived.redone_s) if one.lived.redone_s else "none",
            recovery,
            f"${one.cost_usd:.4f}",
            f"${one.planned_usd:.4f}",
        )
    return shown


def _summary(outcomes: Sequence[Outcome]) -> Table:
    rows = labelled()
    rows.add_row(
        "plan", Text(f"mean error of the finish {show_percent(mean_error(outcomes))} over {len(outcomes)} runs")
    )
    pauses = [pause for one in outcomes for pause in one.lived.recoveries_s]
    if pauses:
        longest = max(pauses)
        rows.add_row(
            "recovery", Text(f"{show_seconds(statistics.fmean(pauses))} on average, {show_seconds(longest)} at most")
        )
    return rows


def document(costs: Costs, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything, in seconds and dollars."""
    return {
        "costs": {name: getattr(costs, name) for name in Costs.__slots__},
        "mean_error": mean_error(outcomes),
        "runs": [
            {
                "notice": one.trial.notice,
                "machines": one.trial.machines,
                "losses": one.lived.losses,
                "rounds": one.lived.rounds,
                "step_s": one.lived.step_s,
                "finish_s": one.lived.finish_s,
                "planned_s": one.planned_s,
                "error": one.error,
                "redone_s": one.lived.redone_s,
                "planned_redone_s": one.planned_redone_s,
                "recoveries_s": list(one.lived.recoveries_s),
                "cost_usd": one.cost_usd,
                "planned_usd": one.planned_usd,
                "trace": [
                    [float(a), int(c)] for a, c in zip(one.trial.trace.at_s, one.trial.trace.counts, strict=True)
                ],
            }
            for one in outcomes
        ],
    }
