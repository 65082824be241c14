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
    "fsdp": {"head": (1.0, 0.3), "attention": (0.5, 0.7), "host_pipeline_s": (6e-3, _FIXED)},
    "deepspeed": _WHOLE | {"host_pipeline_s": (6e-3, 0.5), "start_flop": (1.0, 0.5)},
    "nemo": {
        "attained": (0.65, 0.15),
        "experts": (2.0, 0.7),
        "expert_link": (0.5, 0.7),
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
    return _fit(_MEMORY, peak_bytes, known.columns, known.memory_bytes)


def _held_out(
    table: _Table, fit: Callable[[_Table], dict[str, float]], formula: Callable[..., Vector], groups: Sequence[str]
) -> Vector:
    """Every row by a fit that saw no row of its group."""
    out = np.zeros(len(groups))
    for group in sorted(set(groups)):
        chosen = np.array(groups) == group
        out[chosen] = formula(table.columns.take(chosen), fit(table.where(~chosen)))
    return out


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
    for name, files in _FILES.items():
        table = read_measured(folder / "parallel" / files[0])
        for what, groups in (("models", table.models), ("numbers of GPUs", table.counts)):
            held = _held_out(table, fit_step, step_s, groups)
            errors = Errors(name, np.log(table.step_s) - np.log(held), tuple(groups))
            study.say(f"layouts, {name}: {what} left out", errors)
            if what == "models":
                cases.append(errors)
        fitted = fit_step(table)
        constants |= {f"{name}:{key}": value for key, value in fitted.items()}
        for other in files[1:]:
            many = read_measured(folder / "parallel" / other)
            truth = np.log(many.step_s) - np.log(step_s(many.columns, fitted))
            more = Errors(f"{name}|nodes", truth, tuple(many.counts))
            for gpus in sorted(set(many.columns.gpus.tolist())):
                at = (many.columns.gpus == gpus).tolist()
                study.say(f"layouts, {name}: {int(gpus)} GPUs, fitted on one node", more, judged=at)
            cases.append(more)
        if (table.memory_bytes > 0).any():
            known = table.where(table.memory_bytes > 0)
            for what, groups in (("models", known.models), ("numbers of GPUs", known.counts)):
                held = _held_out(known, fit_memory, peak_bytes, groups)
                memory = Errors(f"memory|{name}", np.log(known.memory_bytes) - np.log(held), tuple(groups))
                study.say(f"layouts, {name}: peak memory, {what} left out", memory)
                if what == "models":
                    cases.append(memory)
            constants |= {f"{name}:{key}": value for key, value in fit_memory(table).items()}
    fitted_all = FittedCoefficients(
        name="layout",
        source="1,788 rows of vTrain, the Ultra-Scale Playbook, llm-foundry, Sailor and NeMo's performance tables",
        method="least squares of logarithms near priors; intervals from models and numbers of GPUs left out",
        constants=constants,
        spreads=spreads(cases),
        known={"framework": frozenset(_FILES)},
    )
    study.fitted.append(fitted_all)
    return study
