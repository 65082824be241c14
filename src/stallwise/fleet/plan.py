"""What a fleet is to be, and what was predicted of it: from the document of `recommend`, or from what is given."""

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stallwise.errors import InputError
from stallwise.fleet._backend import Market
from stallwise.inputs import read_bytes
from stallwise.sentences import Sentence

_MAX_BYTES = 64 << 20
_INTERVAL_S = 600.0
_PROVISION_S, _RESTART_S = 90.0, 60.0
_MOST = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Machines, limits, and the prediction; seconds count from the first order, dollars are for all machines."""

    name: str
    machines: int
    ranks: int = 1
    """Training processes on each machine."""
    market: Market = "spot"
    spot_usd_per_h: float | None = None
    on_demand_usd_per_h: float | None = None
    """None: not known, so that the fleet cannot go to on-demand."""
    work_s: float | None = None
    """Work at the full fleet's speed, without losses; None: not known."""
    samples: float | None = None
    """Of the whole job; None: how much of it is done cannot be seen."""
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    usd: float | None = None
    low_usd: float | None = None
    high_usd: float | None = None
    losses: float | None = None
    redone_s: float | None = None
    interval_s: float = _INTERVAL_S
    """Between checkpoints."""
    provision_s: float = _PROVISION_S
    restart_s: float = _RESTART_S
    """From a machine that is ready until it trains."""
    deadline_s: float | None = None
    budget_usd: float | None = None
    gpu: str | None = None
    region: str | None = None
    notes: tuple[Sentence, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", self.name):
            raise InputError(
                f"A fleet's name has up to 40 small letters, digits and hyphens, not {self.name!r}.", fields=("name",)
            )
        if not 1 <= self.machines <= _MOST:
            raise InputError(f"A fleet has 1 to {_MOST} machines, not {self.machines}.", fields=("machines",))
        for field in ("deadline_s", "budget_usd", "work_s", "samples", "interval_s"):
            value = getattr(self, field)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"The plan's {field} is {value:g}; it must be above 0.", fields=(field[:-2],))
        for field in ("spot_usd_per_h", "on_demand_usd_per_h", "provision_s", "restart_s"):
            value = getattr(self, field)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"The plan's {field} is {value:g}; it must be at least 0.", fields=(field,))

    def usd_per_h(self, market: Market) -> float | None:
        """Planned price of one machine."""
        return self.spot_usd_per_h if market == "spot" else self.on_demand_usd_per_h

    @property
    def stretch(self) -> float:
        """Predicted time over work: what boots, losses and saves add."""
        return 1.0 if not self.work_s or not self.time_s else max(1.0, self.time_s / self.work_s)

    @property
    def spread(self) -> tuple[float, float]:
        """The interval's ends over the prediction."""
        if not self.time_s or self.low_s is None or self.high_s is None:
            return 0.8, 1.5
        return min(1.0, self.low_s / self.time_s), max(1.0, self.high_s / self.time_s)


def read_plan(path: Path, name: str) -> FleetPlan:
    """Read the JSON document of `stallwise recommend`."""
    try:
        document: Any = json.loads(read_bytes(path, _MAX_BYTES))
    except OSError as error:
        raise InputError(f"The plan {path} cannot be read ({error.strerror}). Check the path.") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is no JSON: write the JSON document of stallwise recommend to it.") from None
    about = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(about, dict) or about.get("name") != "stallwise/recommend":
        raise InputError(f"{path} is no recommendation: write the JSON document of stallwise recommend to it.")
    if document.get("pick") is None:
        raise InputError(f"{path} recommends to rent nothing: {_reason(document)}")
    try:
        return _plan_of(document, name)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} lacks {error}: write it with this version of stallwise.") from None


def _reason(document: dict[str, Any]) -> str:
    sentence = document.get("verdict")
    return str(sentence.get("text", "")) if isinstance(sentence, dict) else ""


def _plan_of(document: dict[str, Any], name: str) -> FleetPlan:
    pick, spot = document["pick"], document["pick"]["spot"]
    market: Market = "spot" if pick["market"] == "spot" else "on-demand"
    plan = FleetPlan(
        name=name,
        machines=pick["machines"],
        ranks=pick["gpus_per_machine"],
        market=market,
        samples=document["samples"] * document["epochs"],
        time_s=pick["time_s"],
        low_s=pick["time_low_s"],
        high_s=pick["time_high_s"],
        usd=pick["usd"],
        low_usd=pick["usd_low"],
        high_usd=pick["usd_high"],
        provision_s=pick["time_s"] - pick["billed_s"],
        deadline_s=document["deadline_s"],
        budget_usd=document["budget_usd"],
        gpu=pick["gpu"],
        region=pick["zone"] or pick["region"],
    )
    if spot is None:
        return replace(plan, on_demand_usd_per_h=pick["usd_per_h"], work_s=pick["billed_s"])
    return replace(
        plan,
        spot_usd_per_h=pick["usd_per_h"],
        on_demand_usd_per_h=spot["on_demand_usd_per_h"],
        work_s=spot["work_s"],
        losses=spot["losses"],
        redone_s=spot["redone_s"],
        interval_s=spot["checkpoint_every_s"],
        provision_s=spot["provision_s"],
        restart_s=spot["restart_s"],
    )


def fleet_name(script: str) -> str:
    """A name for a fleet from that of its script."""
    plain = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:40].strip("-")
    return plain or "job"
