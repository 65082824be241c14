"""A watched job: one line per change in the terminal, one JSON document per window."""

import time
from typing import Any

from rich.text import Text

from stallwise.elastic.watching import Verdict
from stallwise.report.text import show_number, show_percent


def line(verdict: Verdict) -> Text:
    """12:30:05  2 workers  131 samples/s, predicted 140 (6.1 % short)  ok."""
    window = verdict.window
    clock = time.strftime("%H:%M:%S", time.localtime(window.at_s))
    workers = f"{window.workers} {'worker' if window.workers == 1 else 'workers'}"
    if verdict.predicted_per_s is None:
        return Text(f"{clock}  {workers}  {show_number(window.per_s)}/s  learning", style="dim")
    gap = f"{show_percent(abs(verdict.shortfall))} {'short' if verdict.shortfall > 0 else 'above'}"
    measured = f"{show_number(window.per_s)}/s, predicted {show_number(verdict.predicted_per_s)} ({gap})"
    if verdict.advice is None:
        return Text(f"{clock}  {workers}  {measured}  {'looking for what binds' if verdict.alarm else 'ok'}")
    advice = verdict.advice
    said = f"{advice.bottleneck}: {advice.what}. Do: {advice.do}; up to × {advice.gain:.2f}"
    return Text(f"{clock}  {workers}  {measured}  {said}", style="yellow")


def document(verdict: Verdict) -> dict[str, Any]:
    """For `--json`: one line each."""
    window, advice = verdict.window, verdict.advice
    return {
        "at_s": window.at_s,
        "workers": window.workers,
        "measured_per_s": window.per_s,
        "predicted_per_s": verdict.predicted_per_s,
        "shortfall": verdict.shortfall,
        "alarm": verdict.alarm,
        "bottleneck": advice.bottleneck if advice else None,
        "what": advice.what if advice else None,
        "do": advice.do if advice else None,
        "gain": advice.gain if advice else None,
    }
