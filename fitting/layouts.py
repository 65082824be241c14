"""Large-model training under parallel layouts: constants per framework, by least squares of logarithms near priors.

A fit sees rows of one kind of table, and its constants hold for that framework on those GPUs. Cross-validation leaves
out whole models, and whole numbers of GPUs, never single rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from fitting.errors import Errors, spreads
from fitting.ridge import Vector
from fitting.study import Study
from fitting.tables import shipped_catalog
from stallwise.analysis._layout_tables import LAYOUT_FORMATS, LayoutRow, layout_row
from stallwise.analysis.tables import read_table
from stallwise.errors import InputError
from stallwise.hardware.coefficients import FittedCoefficients
from stallwise.model.layout.columns import LayoutColumns, columns_of
from stallwise.model.layout.memory import peak_bytes, recomputed_to_fit
from stallwise.model.layout.step import step_s
from stallwise.model.statistics.conformal import LEVEL, spread_of

Priors = Mapping[str, tuple[float, float]]
"""Constant: plausible value, and by what part (of its logarithm) it may differ."""

_FIXED = 1e-3
_STEP: Priors = {
    "start_s": (1e-3, 2.0),
    "attained": (0.6, 0.5),
    "start_flop": (1.0, 2.0),
    "attention": (0.3, 1.0),
    "moved": (1.0, 1.0),
    "sequence_split": (1.0, _FIXED),
    "tensor_link": (0.5, 0.4),
    "tensor_start_s": (1e-5, 2.0),
    "tensor_network": (0.4, 0.7),
    "tensor_network_start_s": (1e-4, 1.5),
    "host_s": (3e-3, 1.0),
    "host_tensor_s": (1e-4, 2.0),
    "host_tensor_power": (1.0, 0.4),
    "host_pipeline_s": (6e-3, 1.0),
    "host_pipeline_power": (0.6, 0.5),
    "host_network_power": (1.0, 0.5),
    "shard_link": (0.5, 1.0),
    "shard_network": (0.5, 1.0),
    "head": (1.0, 0.7),
    "send_link": (0.5, 1.0),
    "send_network": (0.6, 0.5),
    "send_start_s": (1e-4, 2.0),
    "gradient_bytes": (2.0, _FIXED),
    "data_link": (0.5, 1.0),
    "data_network": (0.6, 1.0),
    "data_start_s": (1e-3, 2.0),
    "update": (1.0, 1.0),
    "experts": (1.0, _FIXED),
    "expert_link": (0.5, _FIXED),
    "context_link": (0.5, _FIXED),
}
_MEMORY: Priors = {
    "weight_bytes": (2.0, 0.05),
    "gradient_state_bytes": (4.0, 0.05),
    "optimizer_bytes": (12.0, 0.05),
    "bucket_bytes": (1.0, 1.0),
    "hidden_bytes": (16.0, 0.3),
    "inner_bytes": (12.0, 0.3),
    "score_bytes": (5.0, 0.5),
    "logit_bytes": (10.0, 0.7),
    "fixed_bytes": (1e9, 1.0),
}
# Megatron of 2022 kept hidden states whole on every tensor rank.
_WHOLE = {"sequence_split": (0.01, _FIXED)}
_OWN: Mapping[str, Priors] = {
    "vtrain": _WHOLE,
    "nanotron": {},
    "fsdp": {"head": (1.0, 0.3), "attention": (0.3, 0.3), "host_pipeline_s": (6e-3, _FIXED)},
    # Only nanotron's pipelines across nodes were seen to launch more slowly.
    "deepspeed": _WHOLE | {"host_pipeline_s": (1e-3, 0.5), "start_flop": (1.0, 0.5)},
    "nemo": {
        "attained": (0.65, 0.15),
        "experts": (1.5, 0.4),
        "expert_link": (0.5, 0.5),
        "routed": (1.0, 1.0),
        "host_experts_s": (4e-3, 0.7),
        "host_s": (1e-3, 1.0),
        "host_tensor_s": (1e-5, 0.5),
        "host_pipeline_s": (1e-3, 0.5),
        "start_flop": (5.0, 1.0),
        "head": (1.0, 0.2),
        "attention": (0.5, 0.3),
        "moved": (1.0, 0.4),
        "send_start_s": (1e-4, 1.0),
        "update": (1.0, 0.3),
        "data_network": (0.6, 0.3),
        "data_start_s": (1e-3, 0.5),
    },
}
_NOISE = 0.07


@dataclass(frozen=True)
class _Table:
    """Rows of one kind, with what was measured."""

    name: str
    columns: LayoutColumns
    step_s: Vector
    memory_bytes: Vector
    """0 where it was not measured."""
    models: Sequence[str]

    def where(self, chosen: Vector) -> "_Table":
        keep = np.asarray(chosen, dtype=bool)
        models = [model for model, kept in zip(self.models, keep, strict=True) if kept]
        return _Table(self.name, self.columns.take(keep), self.step_s[keep], self.memory_bytes[keep], models)

    @property
    def counts(self) -> list[str]:
        """Numbers of GPUs as groups."""
        return [f"{count} GPUs" for count in self.columns.gpus.astype(int)]


def _fit(
    priors: Priors, formula: Callable[[LayoutColumns, Mapping[str, float]], Vector], c: LayoutColumns, truth: Vector
) -> dict[str, float]:
    start = np.log([value for value, _ in priors.values()])
    wide = np.array([spread for _, spread in priors.values()])

    def constants(logs: Vector) -> dict[str, float]:
        return dict(zip(priors, np.exp(logs).tolist(), strict=True))

    def off(logs: Vector) -> Vector:
        return np.r_[(np.log(formula(c, constants(logs))) - np.log(truth)) / _NOISE, (logs - start) / wide]

    bounds = (start - 6 * wide, start + 6 * wide)
    return constants(least_squares(off, start, loss="soft_l1", max_nfev=60, bounds=bounds).x)


def fit_step(table: _Table) -> dict[str, float]:
    """Constants of the time of a step."""
    return _fit({**_STEP, **_OWN[table.name]}, step_s, table.columns, table.step_s)


def fit_memory(table: _Table) -> dict[str, float]:
    """Constants of the peak memory, from rows where it was measured."""
    known = table.where(table.memory_bytes > 0)
    split = {name: prior for name, prior in _OWN[table.name].items() if name == "sequence_split"}
    return _fit({**_MEMORY, **split}, peak_bytes, known.columns, known.memory_bytes)


def _held_out(
    table: _Table, fit: Callable[[_Table], dict[str, float]], formula: Callable[..., Vector], groups: Sequence[str]
) -> Vector:
    """Every row by a fit that saw no row of its group."""
    out = np.zeros(len(groups))
    for group in sorted(set(groups)):
        chosen = np.array(groups) == group
        out[chosen] = formula(table.columns.take(chosen), fit(table.where(~chosen)))
    return out


@dataclass(frozen=True)
class _Quantity:
    """What is fitted of a table: steps, or peak memory where it was measured."""

    case: str
    name: str
    table: _Table
    truth: Vector
    fit: Callable[[_Table], dict[str, float]]
    formula: Callable[..., Vector]

    def errors(self, groups: Sequence[str]) -> Errors:
        """Errors of fits that saw no row of the group."""
        held = _held_out(self.table, self.fit, self.formula, groups)
        return Errors(self.case, np.log(self.truth) - np.log(held), tuple(groups))

    def nested(self, groups: Sequence[str]) -> Vector:
        """Every row's error over the end of an interval whose making saw no row of its fold: inside below 1.

        The interval comes from the errors of the other folds, each by a fit that saw neither that fold nor the judged
        one. Groups are dealt to at most eight folds.
        """
        names = sorted(set(groups))
        folds = np.array([names.index(group) % _FOLDS for group in groups])
        fits: dict[frozenset[int], dict[str, float]] = {}

        def errors_without(judged: int, other: int) -> Vector:
            pair = frozenset((judged, other))
            if pair not in fits:
                fits[pair] = self.fit(self.table.where(~np.isin(folds, list(pair))))
            here = folds == other
            return np.log(self.truth[here]) - np.log(self.formula(self.table.columns.take(here), fits[pair]))

        scores = np.zeros(len(groups))
        labels = np.array(groups)
        for judged in range(int(folds.max()) + 1):
            others = [fold for fold in range(int(folds.max()) + 1) if fold != judged]
            values = np.concatenate([errors_without(judged, other) for other in others])
            spread = spread_of(values, np.concatenate([labels[folds == other] for other in others]).tolist())
            here = folds == judged
            error = errors_without(judged, judged)
            ends = np.where(error < 0, min(spread.low, -_LEAST), max(spread.high, _LEAST))
            scores[here] = error / ends
        return scores


_FOLDS = 8
_FEWEST_FOLDS = 4
_LEAST = 0.01


def _quantities(table: _Table) -> list[_Quantity]:
    quantities = [_Quantity(table.name, table.name, table, table.step_s, fit_step, step_s)]
    if (table.memory_bytes > 0).any():
        known = table.where(table.memory_bytes > 0)
        name = f"{table.name}: peak memory"
        quantities.append(_Quantity(f"memory|{table.name}", name, known, known.memory_bytes, fit_memory, peak_bytes))
    return quantities


def _together(case: str, held: Sequence[Errors]) -> Errors:
    """Errors of several ways to leave groups out, as groups of one case."""
    return Errors(case, np.concatenate([one.values for one in held]), tuple(g for one in held for g in one.groups))


def _narrowed(study: Study, scores: Mapping[str, Sequence[Vector]]) -> float:
    """By what factor intervals are to be widened to hold 80 % of all rows; what it gives is said table by table.

    A table is judged with the factor of the other tables alone.
    """
    covered, rows = 0.0, 0
    for name, mine in scores.items():
        factor = _factor([one for other, theirs in scores.items() if other != name for one in theirs])
        own = np.concatenate(mine)
        covered, rows = covered + float((own <= factor).sum()), rows + len(own)
        part = float((own <= factor).mean())
        study.lines.append(f"layouts, {name}: nested folds, 80 % intervals hold {part:4.0%} of {len(own)} rows")
    every = _factor([one for theirs in scores.values() for one in theirs])
    study.lines.append(
        f"layouts, all tables together: nested folds, 80 % intervals hold {covered / rows:4.0%} of {rows} rows; "
        f"intervals are those of the folds times {every:.2f}"
    )
    return every


def _factor(scores: Sequence[Vector]) -> float:
    return float(np.quantile(np.concatenate(scores), LEVEL))


def _blackwell_line(table: _Table) -> str:
    """B200 and GB200 by a fit that saw H100 alone."""
    hopper = table.columns.link_bytes_per_s < _NVLINK_5
    off = np.abs(step_s(table.columns.take(~hopper), fit_step(table.where(hopper))) / table.step_s[~hopper] - 1)
    return (
        f"layouts, {table.name}: B200 and GB200, fitted on H100 {len(off)} rows  median {np.median(off):.1%}  "
        f"mean {off.mean():.1%}"
    )


_NVLINK_5 = 5e11
_FILES = {
    "vtrain": ("vtrain_a100_single_node.csv", "vtrain_a100_multi_node.csv"),
    "nanotron": ("ultrascale_h100.csv",),
    "fsdp": ("llm_foundry_fsdp.csv",),
    "deepspeed": ("sailor.csv",),
    "nemo": ("megatron_bridge.csv",),
}


def read_measured(path: Path) -> _Table:
    """The answered rows of a published table and what was measured of them."""
    table_format, _, rows = read_table(path, LAYOUT_FORMATS)
    catalog = shipped_catalog()
    chosen: list[LayoutRow] = []
    steps, memory = [], []
    for row in rows:
        try:
            described = layout_row(table_format.name, row, catalog)
            value = float(row.text(table_format.predicts).split()[0])
        except (InputError, IndexError, ValueError):
            continue
        if value <= 0 or float(row.text("mfu_pct") or 100) <= 2 or row.text("status", "ok") != "ok":
            continue
        chosen.append(described)
        layout = described.setup.layout
        tokens = layout.global_batch * described.setup.sequence / layout.gpus
        steps.append(tokens / value if described.tokens_per_s else value * described.unit_s)
        memory.append(float(row.text("mem_gb") or 0) * 1e9 or float(row.text("max_mem_bytes") or 0))
    columns = columns_of([one.setup for one in chosen])
    if chosen and not chosen[0].says_recomputation:
        columns = recomputed_to_fit(columns, {name: value for name, (value, _) in _MEMORY.items()})
    models = [one.setup.model.name for one in chosen]
    return _Table(table_format.name, columns, np.array(steps), np.array(memory), models)


def layout_study(folder: Path) -> Study:
    """Cross-validate, then fit on everything; several nodes of vTrain are predicted from one node alone."""
    study = Study()
    constants: dict[str, float] = {}
    cases: list[Errors] = []
    scores: dict[str, list[Vector]] = {}
    for name, files in _FILES.items():
        table = read_measured(folder / "parallel" / files[0])
        for one in _quantities(table):
            kinds = {"models": one.table.models, "numbers of GPUs": one.table.counts}
            held = {what: one.errors(groups) for what, groups in kinds.items()}
            for what, errors in held.items():
                study.say(f"layouts, {one.name}: {what} left out", errors)
            cases.append(_together(one.case, list(held.values())))
            scores[one.name] = [one.nested(groups) for groups in kinds.values() if len(set(groups)) >= _FEWEST_FOLDS]
            constants |= {f"{name}:{key}": value for key, value in one.fit(one.table).items()}
        if name == "nemo":
            study.lines.append(_blackwell_line(table))
        for other in files[1:]:
            many = read_measured(folder / "parallel" / other)
            fitted = {key.partition(":")[2]: value for key, value in constants.items() if key.startswith(f"{name}:")}
            truth = np.log(many.step_s) - np.log(step_s(many.columns, fitted))
            more = Errors(f"{name}|nodes", truth, tuple(many.counts))
            for gpus in sorted(set(many.columns.gpus.tolist())):
                at = (many.columns.gpus == gpus).tolist()
                study.say(f"layouts, {name}: {int(gpus)} GPUs, fitted on one node", more, judged=at)
            cases.append(more)
    factor = _narrowed(study, scores)
    wide = spreads(cases)
    # What nobody measured keeps the widest interval as it is.
    scaled = {case: (factor * low, factor * high, rows) for case, (low, high, rows) in wide.items()} | {"": wide[""]}
    fitted_all = FittedCoefficients(
        name="layout",
        source="1,788 rows of vTrain, the Ultra-Scale Playbook, llm-foundry, Sailor and NeMo's performance tables",
        method="least squares of logarithms near priors; intervals from models and numbers of GPUs left out",
        constants=constants,
        spreads=scaled,
        known={"framework": frozenset(_FILES)},
    )
    study.fitted.append(fitted_all)
    return study
