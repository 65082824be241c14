"""A what-if as a JSON document; docs/whatif.md explains each key."""

from typing import Any

from stallwise.model.whatif import Answer
from stallwise.record.outlook import Outlook, UsedLink
from stallwise.report.profile_json import plain
from stallwise.report.whatif import parts_s


def document(found: Outlook) -> dict[str, Any]:
    """Plain values; None for what is not known."""
    return {
        "name": found.name,
        "source": found.source,
        "measured": None
        if found.measured is None
        else {
            "step_s": plain(found.measured.s),
            "low_s": plain(found.measured.low_s),
            "high_s": plain(found.measured.high_s),
            "samples_per_s": found.measured_samples_per_s,
        },
        "baseline": None if found.baseline is None else _answer(found.baseline),
        "model_error": found.model_error,
        "changed": [plain(change) for change in found.changed],
        "gpus_per_node": found.gpus_per_node,
        "links": [_link(link) for link in found.links],
        "predicted": _answer(found.answer),
        "speedup": plain(found.speedup),
        "speedup_low": plain(found.speedup_low),
        "speedup_high": plain(found.speedup_high),
        "curve": [_answer(point) for point in found.curve],
        "curve_ends": found.curve_ends,
        "assumptions": list(found.assumptions),
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "gpus": answer.gpus,
        "step_s": answer.step_s,
        "low_s": plain(answer.low_s) if answer.bounded else None,
        "high_s": plain(answer.high_s) if answer.bounded else None,
        "samples_per_s": answer.samples_per_s,
        "efficiency": answer.efficiency,
        "split": {f"{name}_s": seconds for name, seconds in parts_s(answer).items()},
        "binds": answer.binds,
        "binding": answer.binding,
    }


def _link(used: UsedLink) -> dict[str, Any]:
    link = used.link
    return {
        "tier": used.tier,
        "bytes_per_s": link.bytes_per_s,
        "latency_s": link.latency_s,
        "origin": link.origin,
        "source": link.source,
        "ranks": link.ranks if link.origin == "measured" else None,
        "low": link.low,
        "high": link.high,
    }
