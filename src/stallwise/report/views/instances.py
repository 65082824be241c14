"""Listed instance types under networks: their view. The JSON is the result itself."""

from collections.abc import Sequence

from stallwise.cloud.instances import InstanceStudy, NaiveChoice, NetworkStudy, StudiedInstance
from stallwise.report.format import plural, show_bytes, show_count, show_number, show_percent, show_seconds, show_usd
from stallwise.report.html import page as html_page
from stallwise.report.view import Notes, PartColumn, Section, TablePart, View, number, section, table, words
from stallwise.units import show_factor

_SHOWN = 12
_TRAITS = {
    "cheapest_epoch": "cheapest epoch of all",
    "near_cheapest": "within 10 % of the cheapest epoch",
    "fastest_epoch": "fastest epoch of all",
    "fast_gpu": "each GPU is more than twice as fast as the median of the others",
    "no_stall": "no stall of 1 % or more",
    "interconnect_stall": "waits {interconnect} of the step for the exchange inside the machine",
    "through_host": "its GPUs exchange through the memory of the host and share it",
    "prep_stall": "too few vCPUs: waits {prep} of the step for preparation",
    "fetch_stall": "memory and storage are too small: waits {fetch} of the step for reading",
    "network_stall": "a step on two of them takes {network} the time of one",
    "dear": "an epoch costs more than twice the cheapest",
    "dear_and_slow": "others cost less an hour and are faster",
}
_RULES = {
    "cheapest_per_hour": "cheapest per hour",
    "newest_gpu": "newest GPU",
    "most_gpus": "most GPUs",
}


def draw(study: InstanceStudy) -> View:
    """Network by network: the cheapest epochs, sentences, and what rules of thumb would have cost."""
    size = "" if study.dataset_bytes is None else f" of {show_bytes(study.dataset_bytes)}"
    return View(
        "Instance types",
        f"an epoch of {show_count(study.samples)} samples{size}, on all GPUs of one machine, on demand",
        (),
        (*(_section(one) for one in study.networks), _notes(study)),
        key="instances",
    )


def page(study: InstanceStudy) -> str:
    """The study as one self-contained HTML page."""
    return html_page(draw(study))


def _section(study: NetworkStudy) -> Section:
    return section(
        f"{study.network}: cheapest with {study.pick.instance}, {show_usd(study.pick.usd)} an epoch",
        f"network-{study.network}",
        _table(study.rows),
        _sentences(study.rows[:_SHOWN]),
        _naive(study.naive, study.pick),
    )


def _table(rows: Sequence[StudiedInstance]) -> TablePart:
    columns = (
        PartColumn("instance"),
        PartColumn("GPUs", priority=2),
        number("samples/s", 1),
        number("interconnect", 3),
        number("prep", 4),
        number("fetch", 5),
        number("2 machines", 7),
        number("epoch"),
        number("$/h", 6),
        number("$/epoch"),
    )
    cells = (
        (
            row.instance,
            f"{row.gpus} × {row.gpu}",
            show_number(row.samples_per_s),
            *(_share(share) for share in (row.interconnect, row.prep, row.fetch)),
            "?" if row.network_stall is None else f"+{show_percent(row.network_stall)}",
            show_seconds(row.epoch_s),
            f"{row.usd_per_h:,.2f}",
            show_usd(row.usd),
        )
        for row in rows[:_SHOWN]
    )
    more = f"the cheapest {_SHOWN} of {plural(len(rows), 'instance type')}; " if len(rows) > _SHOWN else ""
    note = f"{more}stalls by Stash's denominators; 2 machines: time that a step on two of them takes longer"
    return table(columns, cells, note=note)


def _sentences(rows: Sequence[StudiedInstance]) -> TablePart:
    rows_with_traits = ((row.instance, show_traits(row)) for row in rows if row.traits)
    return table((PartColumn("instance"), words("advantages and shortcomings")), rows_with_traits)


def show_traits(row: StudiedInstance) -> str:
    """What speaks for and against a type, as one sentence."""
    values = {
        "interconnect": _share(row.interconnect),
        "prep": _share(row.prep),
        "fetch": _share(row.fetch),
        "network": "?" if row.network_stall is None else show_factor(1 + row.network_stall),
    }
    text = "; ".join(_TRAITS[code].format(**values) for code in row.traits)
    return f"{text[:1].upper()}{text[1:]}."


def _naive(choices: Sequence[NaiveChoice], pick: StudiedInstance) -> TablePart:
    columns = (
        PartColumn("chosen by"),
        PartColumn("instance"),
        number("$/epoch"),
        number("epoch", 1),
        PartColumn("beside the pick", wrap=True),
    )
    rows = (
        (
            _RULES[one.rule],
            one.instance,
            show_usd(one.usd),
            show_seconds(one.epoch_s),
            "the pick itself" if (one.cloud, one.instance) == pick.key else _beside(one),
        )
        for one in choices
    )
    return table(columns, rows, "what rules of thumb cost")


def _beside(one: NaiveChoice) -> str:
    return f"{show_percent(one.extra_cost)} more expensive, {show_factor(one.time_ratio)} the time"


def _notes(study: InstanceStudy) -> Section:
    notes = [
        "Prices are the cheapest listed on demand; a region of its own may not have every type.",
        "Links, cores, memory and storage are listed, not measured: characterize on a rented machine says what it has.",
    ]
    notes += [f"{name} is left out. {why}" for name, why in list(study.unanswered.items())[:_SHOWN]]
    return section("Notes", "notes", Notes("notes", tuple(notes)))


def _share(share: float | None) -> str:
    return "?" if share is None else show_percent(share)
