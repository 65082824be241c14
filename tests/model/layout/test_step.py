"""Laws of steps and memory under parallel layouts, with the shipped constants of every framework."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.analysis.layouts import framework_constants
from stallwise.hardware.coefficients import load_fitted
from stallwise.model.layout.columns import LayoutMachine, LayoutSetup, columns_of
from stallwise.model.layout.memory import memory_parts, peak_bytes, recomputed_to_fit
from stallwise.model.layout.step import gpu_weights, step_parts, step_s
from stallwise.workload.transformer import Layout, Transformer

MODEL = Transformer(name="m", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14_336, vocabulary=128_256)
MACHINE = LayoutMachine(
    flop_per_s=989e12,
    attention_flop_per_s=989e12,
    memory_bytes_per_s=3.35e12,
    memory_bytes=80e9,
    link_bytes_per_s=450e9,
    network_bytes_per_s=50e9,
)
FITTED = load_fitted("layout")
FRAMEWORKS = sorted(FITTED.known["framework"])

powers = st.sampled_from([1, 2, 4, 8])
layouts = st.builds(
    Layout,
    data=powers,
    tensor=powers,
    pipeline=powers,
    zero=st.integers(0, 3),
    micro_batch=powers,
    accumulation=st.sampled_from([1, 4, 16]),
    checkpointing=st.sampled_from(["none", "selective", "full"]),
)


def seconds(layout: Layout, framework: str, model: Transformer = MODEL, machine: LayoutMachine = MACHINE) -> float:
    setup = LayoutSetup(model=model, layout=layout, sequence=4096, machine=machine)
    return float(step_s(columns_of([setup]), framework_constants(FITTED, framework))[0])


def gigabytes(layout: Layout, model: Transformer = MODEL) -> float:
    setup = LayoutSetup(model=model, layout=layout, sequence=4096, machine=MACHINE)
    return float(peak_bytes(columns_of([setup]), framework_constants(FITTED, "nanotron"))[0]) / 1e9


@given(layout=layouts, framework=st.sampled_from(FRAMEWORKS))
def test_parts_are_not_negative_and_add_up(layout: Layout, framework: str) -> None:
    setup = LayoutSetup(model=MODEL, layout=layout, sequence=4096, machine=MACHINE)
    parts = step_parts(columns_of([setup]), framework_constants(FITTED, framework))
    values = [float(getattr(parts, name)[0]) for name in parts.__dataclass_fields__]
    assert min(values) >= -1e-12
    assert sum(values) == pytest.approx(float(parts.step_s[0]), rel=1e-12)


@given(layout=layouts, framework=st.sampled_from(FRAMEWORKS))
def test_faster_machines_and_smaller_models_are_never_slower(layout: Layout, framework: str) -> None:
    whole = seconds(layout, framework)
    for name in ("flop_per_s", "memory_bytes_per_s", "link_bytes_per_s", "network_bytes_per_s"):
        faster = replace(MACHINE, **{name: 2 * getattr(MACHINE, name)})
        assert seconds(layout, framework, machine=faster) <= whole * (1 + 1e-9), name
    assert seconds(layout, framework, model=replace(MODEL, layers=16)) <= whole
    assert whole >= seconds(replace(layout, checkpointing="none"), framework) * (1 - 1e-9)


@given(layout=layouts)
def test_sharding_and_recomputation_never_need_more_memory(layout: Layout) -> None:
    for stage in range(layout.zero, 3):
        more = gigabytes(replace(layout, zero=stage + 1))
        # ZeRO-3 gathers two layers at a time, which a model of few layers per GPU may feel.
        assert more <= gigabytes(replace(layout, zero=stage)) + (1.0 if stage == 2 else 1e-9)
    if layout.checkpointing == "none":
        layers = MODEL.layers / layout.pipeline
        assert gigabytes(replace(layout, checkpointing="full")) <= gigabytes(layout) * (1 + 1 / layers) + 1e-9


def test_one_set_up_is_a_column_of_one() -> None:
    setups = [
        LayoutSetup(model=MODEL, layout=Layout(tensor=t, data=d), sequence=4096, machine=MACHINE)
        for t in (1, 2, 8)
        for d in (1, 4)
    ]
    constants = framework_constants(FITTED, "nanotron")
    together = step_s(columns_of(setups), constants)
    alone = [float(step_s(columns_of([one]), constants)[0]) for one in setups]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)


def test_weights_and_states_of_one_gpu_by_hand() -> None:
    """8 billion parameters on 4 tensor ranks: 2 bytes of weight, 4 of gradient, 12 of states each, near the fit."""
    layout = Layout(tensor=4, data=2, zero=1)
    columns = columns_of([LayoutSetup(model=MODEL, layout=layout, sequence=4096, machine=MACHINE)])
    parameters = float(sum(gpu_weights(columns))[0])
    assert parameters == pytest.approx(MODEL.parameters / 4, rel=1e-12)
    parts = memory_parts(columns, framework_constants(FITTED, "nanotron"))
    assert float(parts.weights_bytes[0]) == pytest.approx(6 * parameters, rel=0.15)
    assert float(parts.optimizer_bytes[0]) == pytest.approx(12 * parameters / 2, rel=0.15)


def test_experts_are_sharded_over_their_own_replicas() -> None:
    """Expert groups lie within the replicas: with as many as replicas nothing of an expert is left to shard."""
    mixture = replace(MODEL, experts=8, active_experts=2)
    setups = [
        LayoutSetup(model=mixture, layout=Layout(data=8, expert=e, zero=1), sequence=4096, machine=MACHINE)
        for e in (1, 8)
    ]
    parts = memory_parts(columns_of(setups), framework_constants(FITTED, "nanotron"))
    one, eight = parts.optimizer_bytes.tolist()
    assert one == pytest.approx(eight, rel=1e-12)
    assert parts.weights_bytes[1] < parts.weights_bytes[0]


def test_context_ranks_exchange_gradients() -> None:
    setup = LayoutSetup(model=MODEL, layout=Layout(context=8), sequence=4096, machine=MACHINE)
    assert float(step_parts(columns_of([setup]), framework_constants(FITTED, "nemo")).gradients_s[0]) > 0


def test_a_bubble_is_stages_minus_one_micro_batches() -> None:
    one = Layout(pipeline=4, accumulation=8)
    setup = LayoutSetup(model=MODEL, layout=one, sequence=4096, machine=MACHINE)
    parts = step_parts(columns_of([setup]), framework_constants(FITTED, "nanotron"))
    rest = float((parts.compute_s + parts.exchange_s + parts.host_s)[0])
    assert float(parts.pipeline_s[0]) >= 3 / 8 * rest * 0.95
    interleaved = replace(setup, layout=replace(one, interleaving=4))
    shorter = step_parts(columns_of([interleaved]), framework_constants(FITTED, "nanotron"))
    assert float(shorter.pipeline_s[0]) < float(parts.pipeline_s[0])


def test_activations_that_do_not_fit_are_recomputed() -> None:
    small, large = Layout(tensor=8), Layout(tensor=1, micro_batch=8)
    setups = [LayoutSetup(model=MODEL, layout=one, sequence=4096, machine=MACHINE) for one in (small, large)]
    columns = recomputed_to_fit(columns_of(setups), framework_constants(FITTED, "nanotron"))
    assert columns.recomputed.tolist() == [0, 1]
    assert np.all(columns.take(np.array([1])).tensor == 1)


def test_no_more_is_recomputed_than_has_to_be() -> None:
    constants = framework_constants(FITTED, "nanotron")
    one = columns_of([LayoutSetup(model=MODEL, layout=Layout(tensor=8), sequence=4096, machine=MACHINE)])
    all_kept = float(peak_bytes(one, constants)[0])
    none_kept = float(peak_bytes(replace(one, recomputed=np.ones(1)), constants)[0])
    between = replace(one, memory_bytes=np.array([(all_kept + none_kept) / 2]))
    part = recomputed_to_fit(between, constants)
    assert 0 < float(part.recomputed[0]) < 1
    assert float(peak_bytes(part, constants)[0]) == pytest.approx((all_kept + none_kept) / 2, rel=1e-6)


def test_fewer_key_heads_make_the_ring_of_contexts_shorter() -> None:
    layout, constants = Layout(context=8), framework_constants(FITTED, "nemo")
    exchange = [
        float(
            step_parts(
                columns_of([LayoutSetup(model=model, layout=layout, sequence=65_536, machine=MACHINE)]), constants
            ).exchange_s[0]
        )
        for model in (MODEL, replace(MODEL, kv_heads=32))
    ]
    assert 0 < exchange[0] < exchange[1]


def test_without_sequence_parallelism_tensor_ranks_keep_more() -> None:
    setup = LayoutSetup(model=MODEL, layout=Layout(tensor=8), sequence=4096, machine=MACHINE)
    constants = framework_constants(FITTED, "nanotron")
    split, whole = (
        float(peak_bytes(columns_of([setup]), constants | {"sequence_split": part})[0]) for part in (1.0, 0.0)
    )
    assert split < whole
