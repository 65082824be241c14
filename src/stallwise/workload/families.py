"""Families of image networks by their structure: every gradient tensor, in forward order, with the work behind it.

The networks of the Stash study (Sharma et al., *Stash*, ICDCS 2023: ResNet-10 … 152, VGG-11 … 19 and smaller ones) and
their kin, as torchvision builds them for 224 × 224 pixels and 1,000 classes, counted from the papers' block structure:

    resnet      He et al., arXiv 1512.03385; 10, 12, 16 by fewer basic blocks, `nobn_` without the batch norms of
                stem and basic blocks
    vgg         Simonyan & Zisserman, arXiv 1409.1556; `_bn` with batch norm
    densenet    Huang et al., arXiv 1608.06993
    mobilenet   Sandler et al., *MobileNetV2*, arXiv 1801.04381
    shufflenet  Ma et al., *ShuffleNetV2*, arXiv 1807.11164
    squeezenet  Iandola et al., arXiv 1602.07360
    alexnet     Krizhevsky, arXiv 1404.5997
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from stallwise.errors import UnknownNameError

BACKWARD = 2.0
"""Backward computes two products where forward computes one."""
_CLASSES = 1000


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter: its elements, and the multiply-accumulates of one image in the operator it belongs to."""

    name: str
    elements: int
    macs: float
    layer: int
    """Number of the convolution or product it belongs to, or follows; from 0."""

    def scaled(self, scale: int) -> int:
        """Elements of the tensor shrunk by `scale`, at least one."""
        return max(1, self.elements // scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """An image network: its parameter tensors in forward order."""

    name: str
    family: str
    tensors: tuple[Tensor, ...]

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def layers(self) -> int:
        """Number of convolutions and matrix products."""
        return self.tensors[-1].layer + 1

    @property
    def macs(self) -> float:
        """Multiply-accumulates of one image, forward."""
        return sum(tensor.macs for tensor in self.tensors)

    def forward_s(self, s_per_mac: float, least_s: float = 0.0) -> tuple[float, ...]:
        """Forward seconds of every layer on a device with this time per operation, at least `least_s` each."""
        macs = [0.0] * self.layers
        for tensor in self.tensors:
            macs[tensor.layer] += tensor.macs
        return tuple(max(least_s, s_per_mac * of) for of in macs)


@dataclass(slots=True)
class _Builder:
    """Tensors being listed; `side` is the picture's width where the next operator reads it."""

    side: int = 224
    tensors: list[Tensor] = field(default_factory=list)
    layer: int = -1

    def conv(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1, bias: bool = False,
        pad: int | None = None, side: int | None = None,
    ) -> int:  # fmt: skip
        """A convolution; returns the side of what it writes, and continues from there unless `side` is given."""
        begin = self.side if side is None else side
        padding = kernel // 2 if pad is None else pad
        out = (begin + 2 * padding - kernel) // stride + 1
        elements = outputs * inputs // groups * kernel * kernel
        self._add("conv", elements, float(elements) * out * out, outputs if bias else 0)
        if side is None:
            self.side = out
        return out

    def dense(self, inputs: int, outputs: int) -> None:
        self._add("fc", inputs * outputs, float(inputs * outputs), outputs)

    def norm(self, channels: int) -> None:
        for part in ("weight", "bias"):
            self.tensors.append(Tensor(f"norm{len(self.tensors)}.{part}", channels, 0.0, max(self.layer, 0)))

    def pool(self, kernel: int, stride: int, pad: int = 0, *, up: bool = False) -> None:
        rest = self.side + 2 * pad - kernel
        self.side = (-(-rest // stride) if up else rest // stride) + 1

    def _add(self, kind: str, elements: int, macs: float, bias: int) -> None:
        self.layer += 1
        self.tensors.append(Tensor(f"{kind}{self.layer}.weight", elements, macs, self.layer))
        if bias:
            self.tensors.append(Tensor(f"{kind}{self.layer}.bias", bias, 0.0, self.layer))


def _resnet(counts: tuple[int, ...], build: _Builder, *, bottleneck: bool, norms: bool = True) -> None:
    build.conv(3, 64, 7, stride=2)
    if norms:
        build.norm(64)
    build.pool(3, 2, 1)
    width = 64
    for stage, count in enumerate(counts):
        planes = 64 * 2**stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            width = (_bottleneck if bottleneck else partial(_basic, norms=norms))(build, width, planes, stride)
    build.dense(width, _CLASSES)


def _basic(build: _Builder, inputs: int, planes: int, stride: int, *, norms: bool) -> int:
    begin = build.side
    for first, step in ((inputs, stride), (planes, 1)):
        build.conv(first, planes, 3, stride=step)
        if norms:
            build.norm(planes)
    _shortcut(build, inputs, planes, stride, begin)
    return planes


def _bottleneck(build: _Builder, inputs: int, planes: int, stride: int) -> int:
    begin, outputs = build.side, 4 * planes
    for first, last, kernel, step in ((inputs, planes, 1, 1), (planes, planes, 3, stride), (planes, outputs, 1, 1)):
        build.conv(first, last, kernel, stride=step)
        build.norm(last)
    _shortcut(build, inputs, outputs, stride, begin)
    return outputs


def _shortcut(build: _Builder, inputs: int, outputs: int, stride: int, side: int) -> None:
    if stride == 1 and inputs == outputs:
        return
    build.conv(inputs, outputs, 1, stride=stride, side=side)
    build.norm(outputs)


_VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def _vgg(depth: int, build: _Builder, *, norms: bool) -> None:
    inputs = 3
    for stage, count in enumerate(_VGG[depth]):
        outputs = min(512, 64 * 2**stage)
        for _ in range(count):
            build.conv(inputs, outputs, 3, bias=True)
            if norms:
                build.norm(outputs)
            inputs = outputs
        build.pool(2, 2)
    for width, wide in ((512 * 49, 4096), (4096, 4096), (4096, _CLASSES)):
        build.dense(width, wide)


def _densenet(growth: int, begin: int, counts: tuple[int, ...], build: _Builder) -> None:
    build.conv(3, begin, 7, stride=2)
    build.norm(begin)
    build.pool(3, 2, 1)
    width = begin
    for stage, count in enumerate(counts):
        for _ in range(count):
            build.norm(width)
            build.conv(width, 4 * growth, 1)
            build.norm(4 * growth)
            build.conv(4 * growth, growth, 3)
            width += growth
        build.norm(width)
        if stage < len(counts) - 1:
            build.conv(width, width // 2, 1)
            build.pool(2, 2)
            width //= 2
    build.dense(width, _CLASSES)


_INVERTED = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _mobilenet(build: _Builder) -> None:
    build.conv(3, 32, 3, stride=2)
    build.norm(32)
    width = 32
    for expand, outputs, count, stride in _INVERTED:
        for number in range(count):
            inner = width * expand
            if expand > 1:
                build.conv(width, inner, 1)
                build.norm(inner)
            build.conv(inner, inner, 3, stride=1 if number else stride, groups=inner)
            build.norm(inner)
            build.conv(inner, outputs, 1)
            build.norm(outputs)
            width = outputs
    build.conv(width, 1280, 1)
    build.norm(1280)
    build.dense(1280, _CLASSES)


_SHUFFLES = (4, 8, 4)


def _shufflenet(widths: tuple[int, ...], last: int, build: _Builder) -> None:
    build.conv(3, 24, 3, stride=2)
    build.norm(24)
    build.pool(3, 2, 1)
    inputs = 24
    for outputs, count in zip(widths, _SHUFFLES, strict=True):
        for number in range(count):
            _shuffle(build, inputs, outputs // 2, stride=1 if number else 2)
            inputs = outputs
    build.conv(inputs, last, 1)
    build.norm(last)
    build.dense(last, _CLASSES)


def _shuffle(build: _Builder, inputs: int, width: int, *, stride: int) -> None:
    """Two branches where the picture shrinks; else one, on half of the channels."""
    if stride > 1:
        side = build.conv(inputs, inputs, 3, stride=stride, groups=inputs, side=build.side)
        build.norm(inputs)
        build.conv(inputs, width, 1, side=side)
        build.norm(width)
    build.conv(inputs if stride > 1 else width, width, 1)
    build.norm(width)
    build.conv(width, width, 3, stride=stride, groups=width)
    build.norm(width)
    build.conv(width, width, 1)
    build.norm(width)


_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))


def _squeezenet(build: _Builder) -> None:
    build.conv(3, 96, 7, stride=2, bias=True, pad=0)
    build.pool(3, 2, up=True)
    width = 96
    for number, (squeeze, expand) in enumerate(_FIRES):
        build.conv(width, squeeze, 1, bias=True)
        build.conv(squeeze, expand, 1, bias=True)
        build.conv(squeeze, expand, 3, bias=True)
        width = 2 * expand
        if number in (2, 6):
            build.pool(3, 2, up=True)
    build.conv(width, _CLASSES, 1, bias=True)


def _alexnet(build: _Builder) -> None:
    build.conv(3, 64, 11, stride=4, pad=2, bias=True)
    build.pool(3, 2)
    build.conv(64, 192, 5, bias=True)
    build.pool(3, 2)
    for inputs, outputs in ((192, 384), (384, 256), (256, 256)):
        build.conv(inputs, outputs, 3, bias=True)
    for width, wide in ((256 * 36, 4096), (4096, 4096), (4096, _CLASSES)):
        build.dense(width, wide)


_BASIC = {10: (1, 1, 1, 1), 12: (1, 1, 1, 2), 16: (1, 2, 2, 2), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
_BOTTLENECK = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_DENSE = {
    121: (32, 64, (6, 12, 24, 16)),
    161: (48, 96, (6, 12, 36, 24)),
    169: (32, 64, (6, 12, 32, 32)),
    201: (32, 64, (6, 12, 48, 32)),
}

_SHUFFLED = {
    "x0_5": ((48, 96, 192), 1024),
    "x1_0": ((116, 232, 464), 1024),
    "x1_5": ((176, 352, 704), 1024),
    "x2_0": ((244, 488, 976), 2048),
}

_BUILDERS: Mapping[str, tuple[str, Callable[[_Builder], None]]] = {
    **{f"resnet{d}": ("resnet", partial(_resnet, c, bottleneck=False)) for d, c in _BASIC.items()},
    **{f"resnet{d}": ("resnet", partial(_resnet, c, bottleneck=True)) for d, c in _BOTTLENECK.items()},
    **{f"nobn_resnet{d}": ("resnet", partial(_resnet, c, bottleneck=False, norms=False)) for d, c in _BASIC.items()},
    **{f"vgg{d}": ("vgg", partial(_vgg, d, norms=False)) for d in _VGG},
    **{f"vgg{d}_bn": ("vgg", partial(_vgg, d, norms=True)) for d in _VGG},
    **{f"densenet{d}": ("densenet", partial(_densenet, g, b, c)) for d, (g, b, c) in _DENSE.items()},
    "mobilenet_v2": ("mobilenet", _mobilenet),
    **{f"shufflenet_v2_{x}": ("shufflenet", partial(_shufflenet, w, last)) for x, (w, last) in _SHUFFLED.items()},
    "squeezenet1_0": ("squeezenet", _squeezenet),
    "alexnet": ("alexnet", _alexnet),
}
NETWORKS: tuple[str, ...] = tuple(_BUILDERS)


@cache
def network(name: str) -> Network:
    """A network by name; an error that names the nearest where there is none."""
    if name not in _BUILDERS:
        raise UnknownNameError("network", name, NETWORKS)
    family, make = _BUILDERS[name]
    build = _Builder()
    make(build)
    return Network(name=name, family=family, tensors=tuple(build.tensors))
