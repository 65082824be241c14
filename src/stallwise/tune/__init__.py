"""Trying settings on a real job: propose from its profile, measure in turns, keep what helps.

knobs.py       the settings, and what a launched job is told about them
_facts.py      what the profile says about the job and its loader
proposals.py   settings worth a trial, with predicted gains
_advice.py     changes of the code, with predicted gains; never tried
trials.py      launches, times per arm and round, which settings are kept
search.py      the whole tuning: `tune` returns a `TuneResult`
_hooks.py      inside the job: applies and switches settings; needs torch
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.tune.search import TuneResult, tune
    from stallwise.tune.trials import TrialRunner

__all__ = ["TrialRunner", "TuneResult", "tune"]

__getattr__ = loader(__name__, {"TrialRunner": "trials", "TuneResult": "search", "tune": "search"})
