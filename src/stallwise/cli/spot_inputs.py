"""Options of `stallwise spot` as values: logs, zones, prices, other kinds of machines, times."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.errors import InputError
from stallwise.sentences import Sentence

if TYPE_CHECKING:
    from stallwise.analysis.analysis import Analysis
    from stallwise.spot.lifetimes.log import AvailabilityTrace, LifetimeLog
    from stallwise.spot.lifetimes.models import Lifetime
    from stallwise.spot.plan.fleet import MachineKind, OnLoss
    from stallwise.spot.plan.prices import PriceRule, SpotPrices
    from stallwise.spot.plan.times import RecordedJob, TimeEstimate

_MIX = ("count", "on-demand", "speed", "lifetimes", "mean-life", "instance", "region", "price", "spot-price", "name")


def log(text: str) -> "LifetimeLog":
    """A file, or a published table."""
    from stallwise.spot.lifetimes.published import published_lifetimes_in
    from stallwise.spot.lifetimes.readers import read_log

    path = Path(text)
    gpu, slash, region = text.partition("/")
    if slash and not path.exists() and "/" not in region and "." not in region:
        return published_lifetimes_in(gpu, region).log()
    return read_log(path)


def measured(job: "Analysis") -> "RecordedJob":
    """What the run says of the job."""
    from stallwise.spot.plan.times import recorded_job

    chosen = job.as_is
    if chosen is None or chosen.step_s is None:
        raise InputError(f"The run at {job.source} has no steps that were kept. Profile the job again, for longer.")
    return recorded_job(job.run, chosen.step_s, chosen.samples_per_s.value if chosen.samples_per_s else None)


def speed_on(job: "Analysis", machines: int, instance: str | None) -> tuple[float, list[Sentence]]:
    """Samples per second of the job on `machines` machines over those as recorded, and what had to be assumed.

    The step is that of `Analysis.on`. Where it cannot be predicted, machines are taken to add up.
    """
    recorded = max(1, job.run.manifest.world.nnodes)
    if machines == recorded and instance is None:
        return 1.0, []
    try:
        prediction = job.on(instance=instance, nodes=machines)
    except InputError as error:
        linear = machines / recorded
        words = f"{machines} machines are taken to do {linear:.3g} times the work of {recorded}: {error}"
        return linear, [Sentence("speed.linear", words, machines=machines, factor=linear)]
    if prediction.speedup is None:
        return machines / recorded, [
            Sentence("speed.unknown-links", "The links of the run are not known: machines are taken to add up.")
        ]
    setup = prediction.setup
    fleet = f"{machines} machines with {setup.gpus} × {setup.device}"
    times = f"do {prediction.speedup:.3g} times the work of the recorded {recorded}"
    return prediction.speedup, [
        Sentence(
            "speed.predicted",
            f"{fleet} {times}, as predicted by stallwise whatif.",
            machines=machines,
            speedup=prediction.speedup,
        ),
        *prediction.assumptions,
    ]


def prices(
    instance: str | None, region: str | None, price: float | None, spot_price: float | None
) -> tuple[float, float, list[Sentence]]:
    """On-demand and spot dollars per machine-hour, and where they come from."""
    if instance is None:
        if price is None or spot_price is None:
            raise InputError(
                "Prices are needed: --price and --spot-price per machine-hour, or --instance (and --region)."
            )
        return price, spot_price, []
    from stallwise.hardware.catalog import load_catalog
    from stallwise.hardware.instance import by_price

    catalog = load_catalog()
    usd_per_h: dict[str, float] = {}
    notes: list[Sentence] = []
    for market, value in (("on-demand", price), ("spot", spot_price)):
        if value is not None:
            usd_per_h[market] = value
            continue
        offers = catalog.find(catalog.query(instance=instance, region=region, market=market, retired=True))  # type: ignore[arg-type]
        if not offers:
            where = f" in {region}" if region else ""
            option = "--price" if market == "on-demand" else "--spot-price"
            raise InputError(
                f"The catalog lists no {market} price of {instance}{where}. Give {option}, or another --region."
            )
        offer = min(offers, key=by_price)
        usd_per_h[market] = offer.usd_per_h
        listed = f"{market.capitalize()} price of {instance} in {offer.region}: ${offer.usd_per_h:.4g}/h, listed."
        notes.append(Sentence("prices.listed", listed, usd_per_h=offer.usd_per_h))
    return usd_per_h["on-demand"], usd_per_h["spot"], notes


def zones(
    lifetimes: Sequence[str], mean_life: str | None, prices: tuple[float, float], machines: int, age_s: float = 0.0
) -> "list[tuple[str, MachineKind, AvailabilityTrace | None]]":
    """The zone planned for, and others to compare with."""
    from stallwise.spot.lifetimes.models import Exponential
    from stallwise.spot.plan.fleet import MachineKind
    from stallwise.spot.plan.history import usable_trace
    from stallwise.units import parse_seconds

    if bool(lifetimes) == (mean_life is not None):
        raise InputError(
            "How long do machines live? Give --lifetimes (an event log, or GPU/REGION of a published table; see "
            "stallwise spot fit published) or --mean-life 12h."
        )

    def kind(name: str, life: "Lifetime", age_s: float) -> MachineKind:
        return MachineKind(name=name, usd_per_h=prices[0], spot_usd_per_h=prices[1], life=life, age_s=age_s)

    if mean_life is not None:
        mean_s = parse_seconds(mean_life)
        if mean_s <= 0:
            raise InputError(f"--mean-life takes a time above 0, not {mean_life!r}.")
        name = f"a mean life of {mean_life}, whatever the age"
        return [(name, kind(name, Exponential(mean_s), age_s), None)]
    choices: list[tuple[str, MachineKind, AvailabilityTrace | None]] = []
    for text in _with_neighbours(lifetimes):
        name, life, trace = zone(text)
        # Only the first zone has machines already.
        choices.append((name, kind(name, life, 0.0 if choices else age_s), usable_trace(trace, machines)))
    return choices


def _with_neighbours(lifetimes: Sequence[str]) -> list[str]:
    """One published table brings the other regions of its GPU along, to compare with."""
    from stallwise.spot.lifetimes.published import published_lifetimes

    gpu, _, region = lifetimes[0].partition("/")
    others = [
        one for one in published_lifetimes() if one.gpu.lower() == gpu.lower() and one.region.lower() != region.lower()
    ]
    if len(lifetimes) > 1 or Path(lifetimes[0]).exists():
        return list(lifetimes)
    return [*lifetimes, *(f"{one.gpu}/{one.region}" for one in others)]


def zone(text: str) -> "tuple[str, Lifetime, AvailabilityTrace | None]":
    """What a log or a published table says: its name, the lifetime, and the trace where it holds one."""
    from stallwise.spot.lifetimes.fit import estimate_lifetime
    from stallwise.spot.lifetimes.published import published_lifetimes_in

    life_log = log(text)
    if not Path(text).exists():
        gpu, _, region = text.partition("/")
        table = published_lifetimes_in(gpu, region)
        name = f"{table.gpu} in {table.region}, {table.machines} machines watched in 2019, 24 h limit"
        return name, table.life(), None
    lifetimes = estimate_lifetime(life_log.lives, life_log.source)
    name = f"{life_log.source}, {lifetimes.machines:,} machines, {lifetimes.losses:,} lost"
    return name, lifetimes.curve, life_log.trace


def times(
    job: "RecordedJob",
    checkpoint_time: str | None,
    checkpoint_size: str | None,
    provision: str | None,
    restart: str | None,
) -> tuple[float, float, float, list[Sentence]]:
    """Seconds to save, to get a machine, to go on; with a sentence for each that was neither given nor measured."""
    from stallwise.spot.plan.times import machine_start, worker_start
    from stallwise.units import parse_seconds

    save_s, notes = save_time(job, checkpoint_time, checkpoint_size)
    guesses = []
    for option, text, guess in (("--provision", provision, machine_start()), ("--restart", restart, worker_start())):
        guesses.append(guess.s if text is None else parse_seconds(text))
        if text is None:
            notes.append(_with_option(guess, f"Give {option}."))
    return save_s, guesses[0], guesses[1], notes


def save_time(
    job: "RecordedJob",
    time: str | None,
    size: str | None,
    *,
    time_option: str = "--checkpoint-time",
    size_option: str = "--checkpoint-size",
) -> tuple[float, list[Sentence]]:
    """Seconds of one checkpoint, as given, recorded or by its size; with what was assumed, by the caller's options."""
    from stallwise.spot.plan.times import checkpoint_time
    from stallwise.units import parse_bytes, parse_seconds

    size_bytes = parse_bytes(size) if size is not None else None
    if time is not None:
        return parse_seconds(time), []
    if size_bytes is None and job.checkpoint_s is not None:
        return job.checkpoint_s, [
            Sentence(
                "checkpoint.as-recorded",
                f"Saving takes {job.checkpoint_s:.3g} s, the mean of those in the record ({job.checkpoints}). A "
                f"profile saves to a scratch folder; to storage that outlives the machine it may take longer: "
                f"{time_option}.",
                checkpoint_s=job.checkpoint_s,
            )
        ]
    if size_bytes is None and job.checkpoint_bytes is None:
        raise InputError(
            f"The run {job.source} says nothing about checkpoints or the size of the model. Give {time_option}."
        )
    notes = []
    if size_bytes is None:
        notes.append(
            Sentence(
                "checkpoint.by-parameters",
                f"A checkpoint holds 12 bytes per parameter, weights and two moments. Give {size_option}.",
            )
        )
    guess = checkpoint_time(size_bytes or job.checkpoint_bytes or 0)
    return guess.s, [*notes, _with_option(guess, f"Measure yours and give {time_option}.")]


def _with_option(guess: "TimeEstimate", advice: str) -> Sentence:
    return Sentence(guess.note.code, f"{guess.note} {advice}", **guess.note.facts)


def age_s(text: str | None) -> float:
    """Age of the machines the job starts on, in seconds; 0 for fresh ones."""
    from stallwise.units import parse_seconds

    return 0.0 if text is None else parse_seconds(text)


def interval_s(text: str | None) -> float | None:
    """Seconds between checkpoints; None: find the best; infinite for `none`."""
    from stallwise.units import parse_seconds

    if text is None:
        return None
    if text == "none":
        return math.inf
    value_s = parse_seconds(text)
    if value_s <= 0:
        raise InputError(f"--interval takes a time above 0, or none, not {text!r}.")
    return value_s


def on_loss(text: str) -> "OnLoss":
    """One of the ways to take a loss."""
    from stallwise.errors import UnknownNameError
    from stallwise.spot.plan.fleet import ON_LOSS

    for way in ON_LOSS:
        if way == text:
            return way
    raise UnknownNameError("way to take a loss (wait, shrink, carry-on)", text, ON_LOSS)


@dataclass(frozen=True)
class SpotPriceHistory:
    """Prices over time, the rule that follows them, the base price they are measured against, and a sentence."""

    prices: "SpotPrices | None"
    rule: "PriceRule"
    notes: tuple[Sentence, ...] = ()


def spot_price_history(
    history: Path | None, instance: str | None, zone: str | None, cap: float | None, spend: float | None
) -> SpotPriceHistory:
    """Prices over time and the rule that follows them, from --price-history and its options."""
    from stallwise.spot.plan.prices import PriceRule, read_prices

    rule = PriceRule(cap_usd_per_h=math.inf if cap is None else cap, spend_usd_per_h=spend)
    if history is None:
        if rule.moves or zone is not None:
            raise InputError("--price-cap, --spend and --price-zone need --price-history: prices that move.")
        return SpotPriceHistory(None, rule)
    moved = read_prices(history, instance=instance, zone=zone)
    sentence = Sentence(
        "prices.history",
        f"Prices of {moved.name}: {len(moved.at_s):,} over {moved.days:.3g} days, ${moved.usd_per_h.min():.4g} to "
        f"${moved.usd_per_h.max():.4g}/h, mean ${moved.mean_usd_per_h:.4g}; between two the first holds. They say "
        "nothing of losses, which are drawn apart from them.",
    )
    return SpotPriceHistory(moved, rule, (sentence,))


def other_kinds(mixes: Sequence[str], machines: int) -> "tuple[list[tuple[MachineKind, int, int]], list[Sentence]]":
    """Machines of other kinds, each from one --mix, and where their prices come from."""
    kinds: list[tuple[MachineKind, int, int]] = []
    notes: list[Sentence] = []
    for text in mixes:
        values = _pairs(text)
        count, on_demand = (
            _whole(values, "count", text),
            _whole(values, "on-demand", text) if "on-demand" in values else 0,
        )
        if count < 1 or not 0 <= on_demand <= count:
            raise InputError(
                f"--mix {text!r}: {on_demand} of {count} machines on-demand is no mix. Correct the counts."
            )
        rates = prices(
            values.get("instance"), values.get("region"), _number(values, "price"), _number(values, "spot-price")
        )
        lifetimes = [values["lifetimes"]] if "lifetimes" in values else []
        name, kind, _ = zones(lifetimes, values.get("mean-life"), rates[:2], machines)[0]
        speed = _number(values, "speed")
        if speed is None or speed <= 0:
            raise InputError(f"--mix {text!r} needs speed=: work per second beside one of --nodes, like speed=0.4.")
        label = values.get("name") or values.get("instance") or name
        kinds.append((_renamed(kind, label, speed), count - on_demand, on_demand))
        as_fast = f"{label}: {count} machines, each {speed:g} times as fast as one of the others. {name}."
        notes += [*rates[2], Sentence("spot.kind", as_fast, machines=count, speed=speed)]
    return kinds, notes


def _pairs(text: str) -> dict[str, str]:
    """`count=3,speed=0.4,…`; a sentence for what is not known."""
    from stallwise.errors import UnknownNameError

    pairs = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise InputError(
                f"--mix takes name=value pairs, like count=3,speed=0.4,lifetimes=K80/us-west1; not {part!r}."
            )
        if key not in _MIX:
            raise UnknownNameError("part of --mix", key, _MIX)
        pairs[key] = value
    return pairs


def _number(values: dict[str, str], key: str) -> float | None:
    try:
        return float(values[key]) if key in values else None
    except ValueError:
        raise InputError(f"--mix: {key}={values[key]!r} is no number. Correct it.") from None


def _whole(values: dict[str, str], key: str, text: str) -> int:
    value = _number(values, key)
    if value is None or value != int(value):
        raise InputError(f"--mix {text!r} needs {key}= as a whole number.")
    return int(value)


def _renamed(kind: "MachineKind", name: str, speed: float) -> "MachineKind":
    from dataclasses import replace

    return replace(kind, name=name, speed=speed)


def equal_shares(shares: str | None, on_loss: str) -> bool:
    """Whether kinds do equal shares: as a synchronous job does by default."""
    from stallwise.errors import UnknownNameError

    if shares not in (None, "equal", "by-speed"):
        raise UnknownNameError("way to share the batch (equal, by-speed)", shares or "", ("equal", "by-speed"))
    return shares == "equal" or (shares is None and on_loss != "carry-on")
