"""The zoo: what was counted agrees with what is known of the networks, and an unknown name finds its kin."""

import pytest

from stallwise.workload.shapes import LANGUAGE_MODELS, TOTALS
from stallwise.workload.zoo import branch, family, image_networks, similar_network


@pytest.mark.parametrize(
    ("name", "gmacs", "parameters_m"),
    [
        ("resnet50", 4.1, 25.6),
        ("vgg16", 15.5, 138),
        ("vit_base_patch16_224", 16.9, 86.6),
        ("efficientnet_b0", 0.39, 5.3),
    ],
)
def test_counts_are_the_published_ones(name: str, gmacs: float, parameters_m: float) -> None:
    network = image_networks()[name]
    assert network.all_macs / 1e9 == pytest.approx(gmacs, rel=0.03)
    assert network.parameters / 1e6 == pytest.approx(parameters_m, rel=0.01)


def test_every_network_does_something() -> None:
    for network in image_networks().values():
        assert network.all_macs > 0
        assert network.outputs > 0
        assert network.kernels > 0
        assert 0 <= network.narrow_macs <= network.all_macs + network.macs["attention"]


def test_an_unknown_name_finds_its_kin() -> None:
    assert similar_network("resnet50") is image_networks()["resnet50"]
    assert similar_network("resnet50.a1_in1k") is image_networks()["resnet50"]
    near = similar_network("convnext_nano_hnf", 2.46e9)
    assert near is not None
    assert near.name.startswith("convnext")


def test_a_strange_name_is_judged_by_its_size_or_not_at_all() -> None:
    assert similar_network("qqqq") is None
    found = similar_network("qqqq", 4.1e9, 11.1e6)
    assert found is not None
    assert found.all_macs == pytest.approx(4.1e9, rel=0.5)


def test_families_forget_where_weights_come_from() -> None:
    assert family("tf_efficientnet_b4_ns") == family("efficientnet_b0") == "efficientnet"
    assert family("swsl_resnext101_32x4d") == "resnext"
    assert branch("resnetv2_50d") == "resnetv2"


def test_language_models_have_about_as_many_parameters_as_their_names_say() -> None:
    for name, parameters in (("bert_large", 335e6), ("gpt2_large", 774e6), ("opt_13", 1.3e9), ("gpt3_27", 2.65e9)):
        assert LANGUAGE_MODELS[name].parameters == pytest.approx(parameters, rel=0.05), name


def test_every_cluster_job_is_there() -> None:
    assert {"ResNet-18", "ResNet-50", "Transformer", "LM", "Recommendation", "CycleGAN", "A3C"} == set(TOTALS)
