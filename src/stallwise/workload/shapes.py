"""Networks by shape or by totals: transformers, and the jobs that schedulers are tested with."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A transformer by its shape."""

    name: str
    layers: int
    width: int
    heads: int
    inner: int
    """Width inside the feed-forward block."""
    vocabulary: int
    predicts_words: bool
    """Whether a step ends in a product with the whole vocabulary."""
    decoder_layers: int = 0
    """Of an encoder-decoder, with a second attention each."""
    experts: int = 1
    drops_attention: bool = True
    """Whether training drops some of the attention at random, which reads and writes all of it once more."""
    drops_hidden: bool = True
    inner_products: int = 2
    """Matrices of a feed-forward block: three where it is gated."""
    key_value_fraction: float = 1.0
    """Heads of keys and values over those of queries."""

    @property
    def parameters(self) -> float:
        """Parameters of blocks and vocabulary."""
        attention = (2 + 2 * self.key_value_fraction) * self.width**2
        block = attention + self.inner_products * self.width * self.inner * self.experts
        cross = 4 * self.width**2 * self.decoder_layers
        return (self.layers + self.decoder_layers) * block + cross + self.vocabulary * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTotals:
    """A training job that is known by totals per sample, at its usual input."""

    name: str
    macs: float
    """Multiply-accumulates of a forward pass."""
    elements: float
    """Elements read and written in a forward pass."""
    parameters: float
    usual_batch: float
    passes: float = 3.0
    """Work of a training step relative to a forward pass."""
    kernels: int = 200
    """Kernels of a forward pass."""


LANGUAGE_MODELS: Mapping[str, LanguageModel] = {
    model.name: model
    for model in (
        LanguageModel(
            name="bert_large", layers=24, width=1024, heads=16, inner=4096, vocabulary=30522, predicts_words=False
        ),
        LanguageModel(
            name="bert_base", layers=12, width=768, heads=12, inner=3072, vocabulary=30522, predicts_words=False
        ),
        LanguageModel(name="gpt2", layers=12, width=768, heads=12, inner=3072, vocabulary=50257, predicts_words=True),
        LanguageModel(
            name="gpt2_medium", layers=24, width=1024, heads=16, inner=4096, vocabulary=50257, predicts_words=True
        ),
        LanguageModel(
            name="gpt2_large", layers=36, width=1280, heads=20, inner=5120, vocabulary=50257, predicts_words=True
        ),
        LanguageModel(
            name="gpt2_xl", layers=48, width=1600, heads=25, inner=6400, vocabulary=50257, predicts_words=True
        ),
        # 24 heads of 128, as the table of the GPT-3 paper has it.
        LanguageModel(
            name="gpt3_xl", layers=24, width=3072, heads=24, inner=12288, vocabulary=50257, predicts_words=True
        ),
        LanguageModel(
            name="gpt3_27", layers=32, width=2560, heads=32, inner=10240, vocabulary=50257, predicts_words=True
        ),
        LanguageModel(
            name="gpt3_67", layers=32, width=4096, heads=32, inner=16384, vocabulary=50257, predicts_words=True
        ),
        LanguageModel(
            name="gpt3_13", layers=40, width=5120, heads=40, inner=20480, vocabulary=50257, predicts_words=True
        ),
        LanguageModel(
            name="opt_125",
            layers=12,
            width=768,
            heads=12,
            inner=3072,
            vocabulary=50272,
            predicts_words=True,
            drops_attention=False,
        ),
        LanguageModel(
            name="opt_13",
            layers=24,
            width=2048,
            heads=32,
            inner=8192,
            vocabulary=50272,
            predicts_words=True,
            drops_attention=False,
        ),
        LanguageModel(
            name="opt_27",
            layers=32,
            width=2560,
            heads=32,
            inner=10240,
            vocabulary=50272,
            predicts_words=True,
            drops_attention=False,
        ),
        LanguageModel(
            name="opt_67",
            layers=32,
            width=4096,
            heads=32,
            inner=16384,
            vocabulary=50272,
            predicts_words=True,
            drops_attention=False,
        ),
        LanguageModel(
            name="llama_7b",
            layers=32,
            width=4096,
            heads=32,
            inner=16512,
            vocabulary=32000,
            predicts_words=True,
            drops_attention=False,
        ),
        # Llama 3.2's 1B: 32 heads, 8 of keys and values, gated feed-forward blocks, tied embeddings.
        LanguageModel(
            name="llama_1b",
            layers=16,
            width=2048,
            heads=32,
            inner=8192,
            vocabulary=128256,
            predicts_words=True,
            drops_attention=False,
            drops_hidden=False,
            inner_products=3,
            key_value_fraction=0.25,
        ),
        LanguageModel(
            name="switchxl4",
            layers=24,
            width=2048,
            heads=32,
            inner=5120,
            vocabulary=32128,
            predicts_words=True,
            decoder_layers=24,
            experts=4,
        ),
        LanguageModel(
            name="switchxl8",
            layers=24,
            width=2048,
            heads=32,
            inner=5120,
            vocabulary=32128,
            predicts_words=True,
            decoder_layers=24,
            experts=8,
        ),
    )
}

TOTALS: Mapping[str, JobTotals] = {
    job.name: job
    for job in (
        # Of 32 × 32 pixels (CIFAR-10).
        JobTotals(name="ResNet-18", macs=0.56e9, elements=9e6, parameters=11.2e6, usual_batch=64, kernels=62),
        JobTotals(name="ResNet-50", macs=4.1e9, elements=80e6, parameters=25.6e6, usual_batch=64, kernels=174),
        # Multi30k, sentences of about 30 words, the base size of Vaswani et al.
        JobTotals(name="Transformer", macs=2.0e9, elements=15e6, parameters=64e6, usual_batch=64, kernels=400),
        # Two LSTM layers of 200 over 35 words of WikiText-2, and a product with 33,278 words.
        JobTotals(name="LM", macs=0.26e9, elements=3e6, parameters=13.9e6, usual_batch=20, kernels=300),
        # An autoencoder over 20,000 films.
        JobTotals(name="Recommendation", macs=25e6, elements=0.1e6, parameters=24e6, usual_batch=2048, kernels=20),
        # Two generators of nine blocks, each passed three times, at 256 × 256 pixels.
        JobTotals(name="CycleGAN", macs=360e9, elements=900e6, parameters=28e6, usual_batch=1, kernels=700),
        # Bound by the environment, not by the GPU.
        JobTotals(name="A3C", macs=10e6, elements=1e6, parameters=2e6, usual_batch=4, kernels=2000),
    )
}
"""The jobs of Gavel's tables (Narayanan et al., OSDI 2020), sizes from their public scripts."""
