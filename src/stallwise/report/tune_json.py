"""A tuning as a JSON document; docs/tune.md explains each key."""

from typing import Any

from stallwise.report.profile_json import plain
from stallwise.report.tune import patch
from stallwise.tune.judge import Attempt
from stallwise.tune.propose import Proposal
from stallwise.tune.result import Tuning
from stallwise.tune.trial import Tried


def document(found: Tuning) -> dict[str, Any]:
    """Plain values; None for what is not known."""
    profile = found.profile
    return {
        "script": profile.script,
        "run": str(profile.run),
        "binds": profile.verdict.binds,
        "step_s": plain(profile.step_s),
        "samples_per_s": plain(profile.samples_per_s),
        "loader": plain(found.loader),
        "proposals": [_proposal(one) for one in found.proposals],
        "attempts": [_attempt(one) for one in found.attempts],
        "kept": found.kept.given(),
        "before": _tried(found.before),
        "after": _tried(found.after),
        "gain": plain(found.gain),
        "predicted_gain": plain(found.predicted_gain),
        "patch": list(patch(found)),
        "advice": [plain(one) for one in found.advice],
        "dry_run": found.dry_run,
        "interrupted": found.interrupted,
        "notes": list(found.notes),
        "seconds": found.seconds,
    }


def _proposal(one: Proposal) -> dict[str, Any]:
    return {
        "settings": one.knobs.given(),
        "gain": plain(one.gain),
        "low": plain(one.low),
        "high": plain(one.high),
        "because": one.because,
    }


def _attempt(one: Attempt) -> dict[str, Any]:
    return {
        "settings": one.proposal.knobs.given(),
        "predicted_gain": plain(one.proposal.gain),
        "gain": plain(one.gain),
        "gains": plain(one.gains),
        "before": _tried(one.before),
        "after": _tried(one.after),
        "kept": one.kept,
    }


def _tried(one: Tried | None) -> dict[str, Any] | None:
    return None if one is None else {"step_s": one.step_s, "rounds_s": list(one.rounds)}
