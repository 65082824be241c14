"""Strategies: layer traces and message costs that could be real."""

from hypothesis import strategies as st

from stallwise.model.exchange.merge import Exchange, Gradients, Merge, message_bytes
from stallwise.workload.layers import Layer, LayerTrace

seconds = st.floats(min_value=0.0, max_value=0.05)
sizes = st.integers(min_value=1, max_value=50_000_000)
latencies = st.floats(min_value=0.0, max_value=0.02)
per_byte = st.floats(min_value=0.0, max_value=5e-9)


@st.composite
def layer_traces(draw: st.DrawFn, max_layers: int = 12, data: bool = False) -> LayerTrace:
    count = draw(st.integers(min_value=1, max_value=max_layers))
    layers = tuple(
        Layer(name=f"l{i}", forward_s=draw(seconds), backward_s=draw(seconds), gradient_bytes=draw(sizes))
        for i in range(count)
    )
    extra = {name: draw(seconds) for name in ("read_s", "copy_s", "update_s")} if data else {}
    return LayerTrace(layers=layers, source="made up", **extra)


def line(latency_s: float, s_per_byte: float) -> Exchange:
    return lambda size: latency_s + s_per_byte * size


lines = st.builds(line, latencies, per_byte)


def channel_end_s(gradients: Gradients, merge: Merge, exchange: Exchange) -> float:
    """When the last message ends, from the start of backward (the recursion of `merge`); 0 where nothing is sent."""
    end = 0.0
    for run, size in zip(merge, message_bytes(gradients, merge), strict=True):
        end = max(end, gradients.ready_s[run.stop - 1]) + exchange(size)
    return end
