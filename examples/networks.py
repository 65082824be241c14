"""Small networks for the examples; torchvision is not needed."""

import torch
from torch import nn


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.around = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        return torch.relu(self.body(x) + self.around(x))


def small_resnet(classes: int = 10, width: int = 16) -> nn.Module:
    """A residual network with eight convolutions for small images."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        ResidualBlock(width, width, 1),
        ResidualBlock(width, 2 * width, 2),
        ResidualBlock(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


class SmallTransformer(nn.Module):
    """A decoder-only language model in the shape of GPT-2, a few million parameters."""

    def __init__(self, vocabulary: int, context: int, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token at every position."""
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.layers(self.token(tokens) + self.position(positions), mask=mask, is_causal=True)
        scores: torch.Tensor = self.head(x)
        return scores
