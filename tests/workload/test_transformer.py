"""Transformers by shape and from configuration files; layouts that cannot be."""

import pytest

from stallwise.errors import InputError
from stallwise.workload.transformer import Layout, Transformer, from_config

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def test_the_parameters_of_llama_3_8b() -> None:
    assert from_config(LLAMA, "llama").parameters == pytest.approx(8.03e9, rel=0.002)


def test_the_parameters_of_gpt_2() -> None:
    config = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
    shape = from_config(config, "gpt2")
    assert (shape.gated, shape.tied, shape.ffn) == (False, True, 3072)
    assert shape.parameters == pytest.approx(124.4e6, rel=0.01)


def test_experts_and_a_llama_style_file() -> None:
    mixture = from_config(LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2}, "mixture")
    assert (mixture.experts, mixture.active_experts) == (8, 2)
    assert mixture.flop_per_token(1) < 6 * mixture.parameters
    own = from_config({"dim": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 32000, "multiple_of": 256}, "params")
    assert own.ffn == 11008
    assert own.parameters == pytest.approx(6.74e9, rel=0.01)


def test_experts_in_some_layers_only_are_refused() -> None:
    with pytest.raises(InputError, match="interleave_moe_layer_step"):
        from_config(LLAMA | {"num_local_experts": 8, "interleave_moe_layer_step": 2}, "uneven")
    assert from_config(LLAMA | {"num_local_experts": 0}, "dense").experts == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_hidden_layers": 1e9}, "num"),
    ],
)
def test_what_is_no_transformer_is_refused(change: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        from_config(LLAMA | change, "odd")


def test_a_layout_counts_its_gpus_and_sequences() -> None:
    layout = Layout(data=4, tensor=8, pipeline=2, micro_batch=2, accumulation=16)
    assert (layout.gpus, layout.global_batch) == (64, 128)
    with pytest.raises(InputError, match="tensor"):
        Layout(tensor=0)
    with pytest.raises(InputError, match="ZeRO"):
        Layout(zero=4)


def test_experts_that_cannot_all_be_active() -> None:
    with pytest.raises(InputError, match="active"):
        Transformer(name="m", layers=1, hidden=8, heads=1, kv_heads=1, ffn=8, vocabulary=8, experts=2, active_experts=3)
