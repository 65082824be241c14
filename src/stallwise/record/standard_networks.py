"""Standard networks in plain torch, so that a machine is measured by the same ones with and without torchvision.

ResNet-18 and -50 (He et al. 2016, with the stride in the 3 × 3), VGG-11 (Simonyan & Zisserman 2015) and an encoder of
BERT-base's size (12 blocks of 768, 12 heads; Devlin et al. 2019). Parameters are those of the published networks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_VOCABULARY, _LENGTH = 30_522, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """One network: how it is made, its batch on a GPU and on processors, and one batch of its data."""

    name: str
    make: Callable[[], nn.Module]
    gpu_batch: int
    cpu_batch: int
    tokens: bool = False

    def batch(self, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Random data of the right shape, on the device."""
        if self.tokens:
            tokens = torch.randint(0, _VOCABULARY, (size, _LENGTH), device=device)
            return tokens, torch.randint(0, 2, (size,), device=device)
        images = torch.randn(size, 3, 224, 224, device=device)
        return images, torch.randint(0, 1000, (size,), device=device)


class _Block(nn.Module):
    """A residual block: 3 × 3 twice, or 1 × 1, 3 × 3, 1 × 1 with four times the channels (`expansion` 4)."""

    def __init__(self, inside: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        out = width * expansion
        if expansion == 1:
            layers = [*_convolution(inside, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, out, 3, 1)]
        else:
            layers = [*_convolution(inside, width, 1, 1), nn.ReLU(inplace=True)]
            layers += [*_convolution(width, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, out, 1, 1)]
        self.body = nn.Sequential(*layers)
        same = stride == 1 and inside == out
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inside, out, 1, stride))
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Body and shortcut, added."""
        found: Tensor = self.last(self.body(x) + self.shortcut(x))
        return found


class _Encoder(nn.Module):
    """Tokens to two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_VOCABULARY, 768)
        self.places = nn.Embedding(_LENGTH, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """The class of each sequence, read at its first token."""
        found: Tensor = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.blocks(found)[:, 0])
        return logits


def _convolution(inside: int, out: int, size: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inside, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out)]


def _resnet(blocks: tuple[int, ...], expansion: int) -> nn.Module:
    layers: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for number in range(count):
            layers.append(_Block(inside, width, 2 if stage and not number else 1, expansion))
            inside = width * expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def _vgg11() -> nn.Module:
    layers: list[nn.Module] = []
    inside = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if width:
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU(inplace=True)]
            inside = width
        else:
            layers.append(nn.MaxPool2d(2, 2))
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 4096), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head, nn.Linear(4096, 1000))


STANDARD = (
    Standard(name="resnet18", make=lambda: _resnet((2, 2, 2, 2), 1), gpu_batch=256, cpu_batch=4),
    Standard(name="resnet50", make=lambda: _resnet((3, 4, 6, 3), 4), gpu_batch=128, cpu_batch=4),
    Standard(name="vgg11", make=_vgg11, gpu_batch=128, cpu_batch=4),
    Standard(name="bert-base", make=_Encoder, gpu_batch=16, cpu_batch=1, tokens=True),
)
