"""What `stallwise spot` is told, turned into facts: logs, zones, prices, other kinds of machines, times."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.spot.lifetimes.log import Log, Trace
    from stallwise.spot.lifetimes.models import Lifetime
    from stallwise.spot.plan.fleet import Kind, OnLoss
    from stallwise.spot.plan.measured import Measured
    from stallwise.spot.plan.price import PriceRule, Prices

_MIX = ("count", "on-demand", "speed", "lifetimes", "mean-life", "instance", "region", "price", "spot-price", "name")


def log(text: str) -> "Log":
    """A file, or a published table."""
    from stallwise.spot.lifetimes.published import watched_in
    from stallwise.spot.lifetimes.readers import read_log

    path = Path(text)
    gpu, slash, region = text.partition("/")
    if slash and not path.exists() and "/" not in region and "." not in region:
        return watched_in(gpu, region).log()
    return read_log(path)


def measured(path: Path) -> "Measured":
    """What the run says of the job."""
    from stallwise.record.summary import summarise
    from stallwise.run.reader import Run
    from stallwise.spot.plan.measured import measured_of

    run = Run.open(path)
    phases = [phase for phase in summarise(run).phases if phase.step_s is not None]
    if not phases:
        raise InputError(f"The run at {path} has no steps that were kept. Profile the job again, for longer.")
    chosen = next((phase for phase in phases if phase.name == "as is"), phases[0])
    if chosen.step_s is None:
        raise InputError(f"The run at {path} has no steps that were kept. Profile the job again, for longer.")
    return measured_of(run, chosen.step_s, chosen.samples_per_s.value if chosen.samples_per_s else None)


def prices(
    instance: str | None, region: str | None, price: float | None, spot_price: float | None
) -> tuple[float, float, list[str]]:
    """On-demand and spot dollars per machine-hour, and where they come from."""
    if instance is None:
        if price is None or spot_price is None:
            raise InputError(
                "Prices are needed: --price and --spot-price per machine-hour, or --instance (and --region)."
            )
        return price, spot_price, []
    from stallwise.hardware.catalog import load_catalog
    from stallwise.hardware.offer import by_price

    catalog = load_catalog()
    found, said = {}, []
    for market, given in (("on-demand", price), ("spot", spot_price)):
        if given is not None:
            found[market] = given
            continue
        offers = catalog.find(catalog.query(instance=instance, region=region, market=market, retired=True))  # type: ignore[arg-type]
        if not offers:
            where = f" in {region}" if region else ""
            option = "--price" if market == "on-demand" else "--spot-price"
            raise InputError(
                f"The catalog lists no {market} price of {instance}{where}. Give {option}, or another --region."
            )
        offer = min(offers, key=by_price)
        found[market] = offer.usd_per_h
        said.append(f"{market.capitalize()} price of {instance} in {offer.region}: ${offer.usd_per_h:.4g}/h, listed.")
    return found["on-demand"], found["spot"], said


def zones(
    lifetimes: Sequence[str], mean_life: str | None, prices: tuple[float, float], machines: int, age_s: float = 0.0
) -> "list[tuple[str, Kind, Trace | None]]":
    """The zone planned for, and others to compare with."""
    from stallwise.spot.lifetimes.models import Exponential
    from stallwise.spot.plan.fleet import Kind
    from stallwise.spot.plan.history import usable
    from stallwise.units import parse_seconds

    if bool(lifetimes) == (mean_life is not None):
        raise InputError(
            "How long do machines live? Give --lifetimes (an event log, or GPU/REGION of a published table; see "
            "stallwise spot fit published) or --mean-life 12h."
        )

    def kind(name: str, life: "Lifetime", age_s: float) -> Kind:
        return Kind(name=name, usd_per_h=prices[0], spot_usd_per_h=prices[1], life=life, age_s=age_s)

    if mean_life is not None:
        mean_s = parse_seconds(mean_life)
        if mean_s <= 0:
            raise InputError(f"--mean-life takes a time above 0, not {mean_life!r}.")
        name = f"a mean life of {mean_life}, whatever the age"
        return [(name, kind(name, Exponential(mean_s), age_s), None)]
    found: list[tuple[str, Kind, Trace | None]] = []
    for text in _with_neighbours(lifetimes):
        name, life, trace = zone(text)
        # Only the first zone has machines already.
        found.append((name, kind(name, life, 0.0 if found else age_s), usable(trace, machines)))
    return found


def _with_neighbours(lifetimes: Sequence[str]) -> list[str]:
    """One published table brings the other regions of its GPU along, to compare with."""
    from stallwise.spot.lifetimes.published import watched

    gpu, _, region = lifetimes[0].partition("/")
    others = [one for one in watched() if one.gpu.lower() == gpu.lower() and one.region.lower() != region.lower()]
    if len(lifetimes) > 1 or Path(lifetimes[0]).exists():
        return list(lifetimes)
    return [*lifetimes, *(f"{one.gpu}/{one.region}" for one in others)]


def zone(text: str) -> "tuple[str, Lifetime, Trace | None]":
    """What a log or a published table says: its name, the lifetime, and the trace where it holds one."""
    from stallwise.spot.lifetimes.fit import estimate
    from stallwise.spot.lifetimes.published import watched_in

    found_log = log(text)
    if not Path(text).exists():
        gpu, _, region = text.partition("/")
        table = watched_in(gpu, region)
        name = f"{table.gpu} in {table.region}, {table.machines} machines watched in 2019, 24 h limit"
        return name, table.life(), None
    found = estimate(found_log.lives, found_log.source)
    name = f"{found_log.source}, {found.machines:,} machines, {found.losses:,} lost"
    return name, found.curve, found_log.trace


def times(
    job: "Measured",
    checkpoint_time: str | None,
    checkpoint_size: str | None,
    provision: str | None,
    restart: str | None,
) -> tuple[float, float, float, list[str]]:
    """Seconds to save, to get a machine, to go on; with a sentence for each that was neither given nor measured."""
    from stallwise.spot.plan.regress import checkpoint_time as guess_save
    from stallwise.spot.plan.regress import machine_start, worker_start
    from stallwise.units import parse_bytes, parse_seconds

    said: list[str] = []
    size = parse_bytes(checkpoint_size) if checkpoint_size is not None else None
    if checkpoint_time is not None:
        save_s = parse_seconds(checkpoint_time)
    elif size is None and job.checkpoint_s is not None:
        save_s = job.checkpoint_s
        said.append(
            f"Saving takes {save_s:.3g} s, the mean of those in the record ({job.checkpoints}). A profile saves to a "
            "scratch folder; to storage that outlives the machine it may take longer: --checkpoint-time."
        )
    elif size is not None or job.checkpoint_bytes is not None:
        if size is None:
            said.append("A checkpoint holds 12 bytes per parameter, weights and two moments. Give --checkpoint-size.")
        guess = guess_save(size or job.checkpoint_bytes or 0)
        save_s = guess.s
        said.append(guess.said)
    else:
        raise InputError(
            f"The run {job.source} says nothing about checkpoints or the size of the model. Give --checkpoint-time."
        )
    guesses = []
    for given, guess in ((provision, machine_start()), (restart, worker_start())):
        guesses.append(guess.s if given is None else parse_seconds(given))
        if given is None:
            said.append(guess.said)
    return save_s, guesses[0], guesses[1], said


def age_s(text: str | None) -> float:
    """Of the machines the job starts on; 0 for fresh ones."""
    from stallwise.units import parse_seconds

    return 0.0 if text is None else parse_seconds(text)


def interval_s(text: str | None) -> float | None:
    """None: find the best; infinite for `none`."""
    from stallwise.units import parse_seconds

    if text is None:
        return None
    if text == "none":
        return math.inf
    found = parse_seconds(text)
    if found <= 0:
        raise InputError(f"--interval takes a time above 0, or none, not {text!r}.")
    return found


def on_loss(text: str) -> "OnLoss":
    """One of the ways to take a loss."""
    from stallwise.errors import UnknownNameError
    from stallwise.spot.plan.fleet import ON_LOSS

    for way in ON_LOSS:
        if way == text:
            return way
    raise UnknownNameError("way to take a loss (wait, shrink, carry-on)", text, ON_LOSS)


@dataclass(frozen=True)
class MovingPrices:
    """Prices over time, the rule that follows them, the base price they are measured against, and a sentence."""

    prices: "Prices | None"
    rule: "PriceRule"
    said: tuple[str, ...] = ()


def moving_prices(
    history: Path | None, instance: str | None, zone: str | None, cap: float | None, spend: float | None
) -> MovingPrices:
    """From --price-history and what goes with it."""
    from stallwise.spot.plan.price import PriceRule
    from stallwise.spot.plan.price_files import read_prices

    rule = PriceRule(cap_usd_per_h=math.inf if cap is None else cap, spend_usd_per_h=spend)
    if history is None:
        if rule.moves or zone is not None:
            raise InputError("--price-cap, --spend and --price-zone need --price-history: prices that move.")
        return MovingPrices(None, rule)
    found = read_prices(history, instance=instance, zone=zone)
    said = (
        f"Prices of {found.name}: {len(found.at_s):,} over {found.days:.3g} days, ${found.usd_per_h.min():.4g} to "
        f"${found.usd_per_h.max():.4g}/h, mean ${found.mean_usd_per_h:.4g}; between two the first holds. They say "
        "nothing of losses, which are drawn apart from them."
    )
    return MovingPrices(found, rule, (said,))


def other_kinds(mixes: Sequence[str], machines: int) -> "tuple[list[tuple[Kind, int, int]], list[str]]":
    """Machines of other kinds, each from one --mix, and where their prices come from."""
    found, said = [], []
    for text in mixes:
        given = _pairs(text)
        count, on_demand = _whole(given, "count", text), _whole(given, "on-demand", text) if "on-demand" in given else 0
        if count < 1 or not 0 <= on_demand <= count:
            raise InputError(
                f"--mix {text!r}: {on_demand} of {count} machines on-demand is no mix. Correct the counts."
            )
        rates = prices(
            given.get("instance"), given.get("region"), _number(given, "price"), _number(given, "spot-price")
        )
        lifetimes = [given["lifetimes"]] if "lifetimes" in given else []
        name, kind, _ = zones(lifetimes, given.get("mean-life"), rates[:2], machines)[0]
        speed = _number(given, "speed")
        if speed is None or speed <= 0:
            raise InputError(f"--mix {text!r} needs speed=: work per second beside one of --machines, like speed=0.4.")
        label = given.get("name") or given.get("instance") or name
        found.append((_renamed(kind, label, speed), count - on_demand, on_demand))
        said += [*rates[2], f"{label}: {count} machines, each {speed:g} times as fast as one of the others. {name}."]
    return found, said


def _pairs(text: str) -> dict[str, str]:
    """`count=3,speed=0.4,…`; a sentence for what is not known."""
    from stallwise.errors import UnknownNameError

    found = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise InputError(
                f"--mix takes name=value pairs, like count=3,speed=0.4,lifetimes=K80/us-west1; not {part!r}."
            )
        if key not in _MIX:
            raise UnknownNameError("part of --mix", key, _MIX)
        found[key] = value
    return found


def _number(given: dict[str, str], key: str) -> float | None:
    try:
        return float(given[key]) if key in given else None
    except ValueError:
        raise InputError(f"--mix: {key}={given[key]!r} is no number. Correct it.") from None


def _whole(given: dict[str, str], key: str, text: str) -> int:
    value = _number(given, key)
    if value is None or value != int(value):
        raise InputError(f"--mix {text!r} needs {key}= as a whole number.")
    return int(value)


def _renamed(kind: "Kind", name: str, speed: float) -> "Kind":
    from dataclasses import replace

    return replace(kind, name=name, speed=speed)


def equal_shares(shares: str | None, on_loss: str) -> bool:
    """Whether kinds do equal shares: as a synchronous job does unless told otherwise."""
    from stallwise.errors import UnknownNameError

    if shares not in (None, "equal", "by-speed"):
        raise UnknownNameError("way to share the batch (equal, by-speed)", shares or "", ("equal", "by-speed"))
    return shares == "equal" or (shares is None and on_loss != "carry-on")
