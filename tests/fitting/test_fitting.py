"""The fit: groups stay whole, ridge finds what was put in, intervals are judged by other groups; it can be repeated."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fitting.crossval import left_out, left_out_twice, reference_pairs
from fitting.errors import Errors, by_class, chosen, coverage, spreads
from fitting.nodes import Grown, learned
from fitting.own_steps import own_steps_rows, predicted
from fitting.power import per_joule
from fitting.ridge import STRENGTHS, design, folds, robust, selected
from fitting.studies import STUDIES
from fitting.tables import measured, shipped_catalog
from fitting.transfer import GRID, Timed, fit_transfer, gridded, off_by
from stallwise.analysis.compute import device_of
from stallwise.analysis.table_forecast import forecast_rows
from stallwise.hardware.coefficients import load_fitted
from stallwise.model.compute.transfer import StepWork, gpu_effect, step_parts

# Median error on rows that were fitted, far above what is seen: a broken unit or column shows, noise does not.
FITTED_WITHIN = {
    "lambda_pytorch.csv": 0.10,
    "gavel_steps_per_s.csv": 0.20,
    "neusight_llm_latency.csv": 0.10,
    "timm_train_rtx3090.csv": 0.08,
    "timm_infer_cross_gpu.csv": 0.08,
}


def test_groups_stay_whole() -> None:
    groups = [f"g{i % 7}" for i in range(100)]
    held = folds(groups, 3)
    assert np.sum(held, axis=0).tolist() == [1] * 100
    for mask in held:
        inside = {g for g, m in zip(groups, mask, strict=True) if m}
        assert inside.isdisjoint({g for g, m in zip(groups, mask, strict=True) if not m})


def test_a_row_is_never_predicted_by_a_fit_that_saw_its_group() -> None:
    groups = [f"g{i % 5}" for i in range(50)]

    def learn(chosen: list[str], _: object) -> object:
        def predict(wanted: Sequence[str]) -> np.ndarray:
            assert set(wanted).isdisjoint(chosen)
            return np.ones(len(wanted))

        return predict

    assert left_out(groups, np.zeros(50), groups, 99, learn).tolist() == [1.0] * 50  # type: ignore[arg-type]


def test_a_reference_is_predicted_without_the_target() -> None:
    """As a user's own reference is: neither the GPU that is asked for nor the reference itself was fitted."""
    gpus = [f"g{i % 3}" for i in range(30)]
    rows = [f"r{i % 15}" for i in range(30)]
    setups = list(zip(gpus, rows, strict=True))
    seen: list[tuple[set[str], set[str]]] = []

    def learn(chosen: list[tuple[str, str]], _: object) -> object:
        seen.append(({gpu for gpu, _ in chosen}, {row for _, row in chosen}))

        def predict(wanted: Sequence[tuple[str, str]]) -> np.ndarray:
            assert {row for _, row in wanted}.isdisjoint(seen[-1][1])
            return np.full(len(wanted), float(len(seen)))

        return predict

    found = left_out_twice(setups, np.zeros(30), gpus, rows, (99, 5), learn)  # type: ignore[arg-type]
    assert sorted(found) == ["g0", "g1", "g2"]
    assert all(len(fitted) < 3 for fitted, _ in seen)
    for target, values in found.items():
        assert [bool(np.isnan(v)) for v in values] == [gpu == target for gpu in gpus]
    twice = reference_pairs(
        np.ones(4), np.zeros(4), {"x": np.zeros(4), "y": np.ones(4)}, ["a"] * 4, ["x", "x", "y", "y"]
    )
    assert twice[1].values.size == 8


def test_ridge_finds_what_was_put_in_and_shrugs_off_a_broken_row() -> None:
    rng = np.random.default_rng(0)
    rows = [{"1": 1.0, "a": float(a), "net=x": float(a > 0)} for a in rng.normal(size=300)]
    truth = np.array([0.5 + 2 * row["a"] - 0.3 * row["net=x"] for row in rows])
    truth[7] += 50
    found = design(rows, lambda name: np.inf if name == "never" else 1e-3)
    beta = dict(zip(found.names, robust(found.values, truth, found.penalties), strict=True))
    for name, value in (("1", 0.5), ("a", 2.0), ("net=x", -0.3)):
        assert beta[name] == pytest.approx(value, abs=0.05), name


def test_penalties_are_chosen_by_groups_left_out() -> None:
    """What tells single groups apart is noise here, so much of it must be held back; what they share is not."""
    rng = np.random.default_rng(3)
    names = [f"g{i % 12}" for i in range(240)]
    noise = dict(zip(sorted(set(names)), rng.normal(0, 0.5, 12), strict=True))
    rows = [{"shared": float(x), f"gpu={n}×x": float(x)} for x, n in zip(rng.normal(size=240), names, strict=True)]
    truth = np.array([2 * row["shared"] + noise[n] for row, n in zip(rows, names, strict=True)])
    found = design(rows, lambda _: 1.0)
    chosen = selected(found, truth, names, lambda name: name.startswith("gpu="), scale=1.0)
    ratios = dict(zip(found.names, chosen / found.penalties, strict=True))
    assert len({round(value, 6) for name, value in ratios.items() if name != "shared"}) == 1
    assert all(min(STRENGTHS) ** 2 <= value <= max(STRENGTHS) ** 2 for value in ratios.values())
    again = selected(found, truth, names, lambda name: name.startswith("gpu="), scale=1.0)
    assert again.tolist() == chosen.tolist()


def test_the_choice_sees_only_rows_it_is_given() -> None:
    """A fit that is judged on held rows chooses its penalties without them: whatever they hold changes nothing."""
    rng = np.random.default_rng(4)
    groups = [f"g{i % 6}" for i in range(120)]
    rows = [{"1": 1.0, "x": float(x), f"gpu={g}": 1.0} for x, g in zip(rng.normal(size=120), groups, strict=True)]
    truth = np.array([row["x"] for row in rows]) + rng.normal(0, 0.3, 120)

    def learn(chosen: list[dict[str, float]], values: np.ndarray) -> object:
        found = design(chosen, lambda _: 1.0)
        labels = [next(name for name in row if name.startswith("gpu=")) for row in chosen]
        penalties = selected(found, values, labels, lambda name: "gpu=" in name, scale=0.3)
        beta = dict(zip(found.names, robust(found.values, values, penalties), strict=True))
        return lambda wanted: np.array([sum(beta.get(k, 0.0) * v for k, v in row.items()) for row in wanted])

    held = np.array([g == "g0" for g in groups])
    once = left_out(rows, truth, groups, 99, learn)  # type: ignore[arg-type]
    twice = left_out(rows, np.where(held, 1e3, truth), groups, 99, learn)  # type: ignore[arg-type]
    assert twice[held].tolist() == once[held].tolist()


def test_a_class_with_few_groups_falls_back_on_all() -> None:
    rng = np.random.default_rng(5)
    groups = tuple(f"g{i // 2 % 30}" for i in range(3000))
    kinds = ["wide" if i % 2 else "narrow" for i in range(3000)]
    values = rng.normal(0, 0.1, 3000) * np.where(np.array(kinds) == "wide", 3.0, 1.0)
    apart = coverage(Errors("", values, groups), [kinds], [kind == "narrow" for kind in kinds])
    together = coverage(Errors("", values, groups), (), [kind == "narrow" for kind in kinds])
    assert 0.77 < apart.covered < 0.83 < together.covered
    assert apart.width < together.width
    rare = ["rare" if g == "g0" else "usual" for g in groups]
    assert coverage(Errors("", values, groups), [rare], [kind == "rare" for kind in rare]).width > apart.width


def test_a_split_is_taken_only_where_it_helps() -> None:
    """Two kinds of rows: one split tells them apart, another is drawn by lot."""
    rng = np.random.default_rng(6)
    groups = tuple(f"g{i // 10 % 30}" for i in range(3000))
    kinds = ["wide" if i % 2 else "narrow" for i in range(3000)]
    lots = [str(lot) for lot in rng.integers(0, 12, 3000)]
    values = rng.normal(0, 0.1, 3000) * np.where(np.array(kinds) == "wide", 3.0, 1.0)
    assert chosen(Errors("", values, groups), [lots, kinds]) == 1
    assert chosen(Errors("", rng.normal(0, 0.1, 3000), groups), [lots]) is None
    assert {one.case for one in by_class(Errors("c", values, groups), [lots, kinds])} == {"c|narrow", "c|wide"}
    assert by_class(Errors("c", rng.normal(0, 0.1, 3000), groups), [lots]) == []


def test_the_group_that_is_judged_has_no_say_in_its_split() -> None:
    """Whatever the last group holds, its own intervals stay as they were."""
    rng = np.random.default_rng(7)
    groups = tuple(f"g{i // 10 % 25:02}" for i in range(2500))
    kinds = ["wide" if i % 2 else "narrow" for i in range(2500)]
    values = rng.normal(0, 0.1, 2500) * np.where(np.array(kinds) == "wide", 1.05, 1.0)
    last = np.array(groups) == "g24"
    widths = {
        coverage(Errors("", np.where(last, other, values), groups), [kinds], last.tolist()).width
        for other in (values, values * 50, np.where(np.array(kinds) == "wide", 9.0, 0.0))
    }
    assert len(widths) == 1


def test_intervals_are_judged_by_other_groups() -> None:
    rng = np.random.default_rng(1)
    groups = tuple(f"g{i % 30}" for i in range(3000))
    same = coverage(Errors("", rng.normal(0, 0.1, 3000), groups))
    assert 0.77 < same.covered < 0.83
    assert same.groups_above == 1.0
    # A group unlike the others is not covered by them.
    odd = np.where(np.array(groups) == "g0", 1.0, rng.normal(0, 0.1, 3000))
    assert coverage(Errors("", odd, groups)).groups_above < 1.0


def test_a_reference_that_shares_the_error_removes_it() -> None:
    truth = np.array([0.3, 0.3, -0.2, -0.2])
    fitted = {"x": np.zeros(4), "y": np.zeros(4)}
    weight, left = reference_pairs(truth, np.zeros(4), fitted, ["a", "a", "b", "b"], ["x", "y", "x", "y"])
    assert weight == pytest.approx(1.0)  # least squares of pairs that agree
    assert np.abs(left.values).max() < 1e-9


def test_few_rows_have_no_spread_of_their_own() -> None:
    groups = tuple(f"g{i % 5}" for i in range(50))
    many = Errors("many", np.linspace(-0.1, 0.1, 50), groups)
    few = Errors("few", np.array([0.1]), ("g",))
    one_group = Errors("one group", np.linspace(-0.1, 0.1, 50), ("g",) * 50)
    assert set(spreads([many, few, one_group])) == {"many", ""}


@pytest.mark.parametrize("file", FITTED_WITHIN)
def test_the_shipped_coefficients_know_the_rows_they_were_fitted_on(shared_data: Path, file: str) -> None:
    table = measured(shared_data, file)
    chosen = range(0, len(table.rows), max(1, len(table.rows) // 300))
    found = forecast_rows(table.format, [table.rows[i] for i in chosen], shipped_catalog())
    off = [abs(forecast.predicted / table.truth[i] - 1) for i, forecast in zip(chosen, found, strict=True)]
    assert np.median(off) < FITTED_WITHIN[file]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["llm", "gavel"])
def test_fitting_again_gives_what_is_shipped(shared_data: Path, name: str) -> None:
    again = STUDIES[name](shared_data).fitted[0]
    shipped = load_fitted(name)
    for key, (low, high, rows) in shipped.spreads.items():
        assert again.spreads[key][2] == rows
        assert again.spreads[key][:2] == (pytest.approx(low, abs=0.02), pytest.approx(high, abs=0.02)), key


def test_many_nodes_find_what_an_update_takes() -> None:
    """A job that keeps the batch of an update: 100 s of work and 0.2 s whatever the fleet, 1 % lost per doubling."""

    def pair(few: int, many: int, job: str) -> Grown:
        update_s = {n: 100 / n + 0.2 for n in (few, many)}
        efficiency = update_s[few] * few / (update_s[many] * many)
        return Grown(job, "A100", 2, float(np.log2(many / few)), few / many, update_s[few], float(np.log(efficiency)))

    rows = [pair(16, 64, "a"), pair(16, 256, "a"), pair(64, 256, "a")]
    found = learned(rows)
    assert found.update_s["a"] == pytest.approx(0.2)
    assert found.per_doubling == pytest.approx(0.0, abs=1e-9)
    wanted = pair(32, 512, "never seen")
    assert found.log_efficiency(wanted) == pytest.approx(wanted.log_efficiency)
    assert wanted.log_efficiency < np.log(0.6)


def test_a_fit_of_steps_finds_a_gpu_that_is_slower_than_its_figures() -> None:
    """Made steps by physics, one GPU a fifth slower: its effect is found, and a GPU left out is as physics says."""
    catalog = shipped_catalog()
    names = ("A10", "L4", "A100-40GB-SXM", "H100-SXM", "RTX4090", "T4", "V100-SXM2", "RTX3090")
    constants = {**per_joule(catalog), **{name: values[0] for name, values in GRID.items()}}
    rows = []
    for name in names:
        device = device_of(catalog.gpus[name], "amp")
        for batch in (8, 64, 256):
            for k, flop in enumerate((4e9, 3e10)):
                work = StepWork(flop=batch * flop, activation_bytes=batch * 5e7, parameters=3e7, kernels=400)
                log_s = np.log(step_parts(work, device, constants).whole_s) + (0.2 if name == "A10" else 0.0)
                rows.append(Timed(device, str(k), f"{k}|{batch}", work, float(log_s)))
    found = fit_transfer(rows, gridded(rows))
    a10, others = (gpu_effect(device_of(catalog.gpus[n], "amp"), found) for n in ("A10", "RTX3090"))
    assert 0.1 < a10 - others < 0.25
    keep = np.array([row.device.name != "L4" for row in rows])
    left = fit_transfer([row for row, k in zip(rows, keep, strict=True) if k], gridded(rows).of(keep))
    assert np.abs(off_by([row for row in rows if row.device.name == "L4"], left)).max() < 0.15


def test_our_own_steps_are_predicted_as_well_as_their_constants_allow() -> None:
    found = own_steps_rows()
    assert len(found) >= 31
    off = sorted(abs(one.forecast.predicted / one.step_ms - 1) for one in found)
    assert off[len(off) // 2] <= 0.15
    assert sum(one.forecast.low <= one.step_ms <= one.forecast.high for one in found) >= 0.75 * len(found)


def test_a_cpu_that_nobody_knows_makes_a_small_batch_uncertain_and_a_large_one_not() -> None:
    row = {"network": "resnet50", "precision": "bf16", "mode": "eager"}
    width = {}
    for cpu in ("Intel(R) Xeon(R) Platinum 8480+", "Elbrus"):
        for batch in ("16", "1024"):
            forecast = predicted({**row, "batch": batch}, shipped_catalog(), cpu=cpu)
            width[cpu, batch] = forecast.high / forecast.low
    assert width["Elbrus", "16"] > 1.2 * width["Intel(R) Xeon(R) Platinum 8480+", "16"]
    assert width["Elbrus", "1024"] == pytest.approx(width["Intel(R) Xeon(R) Platinum 8480+", "1024"])
