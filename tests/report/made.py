"""Profiles made by hand: one per kind of job that looks different."""

import math
from dataclasses import replace
from pathlib import Path

from stallwise.analysis.bottleneck import Bottleneck
from stallwise.analysis.observed import ObservedCause
from stallwise.analysis.profile import GradientNoise, LayerTime, OverheadEvent, Profile, Rate, Rates
from stallwise.analysis.split import Skew, Split
from stallwise.model.statistics.stalls import Share
from stallwise.run.manifest import ModelRecord, NodeRecord, WorldRecord
from stallwise.sentences import Sentence

CPU_NODE = NodeRecord(node=0, cpu_model="AMD EPYC", cores=2, memory_bytes=25 * 2**30)
NO_RATES = Rates(G=None, P=None, P_per_core=None, F=None, C=None)

MODEL = ModelRecord(
    parameters=124_439_808,
    trained_parameters=124_439_808,
    gradient_tensors=148,
    gradient_bytes=497_759_232,
    layers=99,
    precision="bf16",
    flops_per_step=2.4e13,
    activation_bytes=30 * 2**30,
    micro_batches=1,
    step_s=0.19,
    forward_s=0.06,
    backward_s=0.12,
    update_s=0.01,
    bucket_bytes=(25 * 2**20,) * 19,
)

PLAIN = Profile(
    run=Path("runs/plain"),
    run_id="20260102-030405-abcdef",
    script="train.py",
    state="complete",
    partial_reason=None,
    world=WorldRecord(),
    nodes=(CPU_NODE,),
    steps=120,
    step_s=0.050,
    step_low_s=0.049,
    step_high_s=0.052,
    samples_per_s=None,
    tokens_per_s=None,
    split=Split(compute=Share(0.050, 0.049, 0.052)),
    rates=NO_RATES,
    verdict=Bottleneck(binds="compute", sentence="The step is compute.", next_step="Make compute cheaper."),
    skew=None,
    cold_step_s=None,
    mfu=None,
    peak_memory_bytes=None,
    happenings=(),
    notes=(Sentence("recorded", "No DataLoader was seen."),),
)
"""One process on the CPU, no loader: nothing but compute could be measured."""

DDP = replace(
    PLAIN,
    script="/home/me/examples/images.py",
    world=WorldRecord(world_size=2, backend="gloo"),
    step_s=0.1339,
    step_low_s=0.1294,
    step_high_s=0.1412,
    samples_per_s=239.06,
    split=Split(
        compute=Share(0.1055, 0.1022, 0.1127),
        interconnect=Share(0.0114, 0.0045, 0.0164),
        prep=Share(0.0165, 0.0096, 0.0254),
        fetch=Share(0.0005, 0.0, 0.0012),
    ),
    rates=Rates(
        G=Rate(samples_per_s=273.8, low=268.8, high=281.7),
        P=Rate(samples_per_s=1578.5, low=1270.0, high=1697.1),
        P_per_core=Rate(samples_per_s=1388.4, low=1358.6, high=1435.6),
        F=Rate(samples_per_s=52181.3, low=46255.5, high=58831.8),
        C=None,
    ),
    verdict=Bottleneck(
        binds="prep",
        sentence="Preparing batches holds the step up for 12% of its time.",
        next_step="Set num_workers=2 in the DataLoader (now 1).",
        predicted_step_s=0.117,
        predicted_gain=0.126,
    ),
    skew=Skew(rank=1, s=0.00074),
    cold_step_s=0.127,
    peak_memory_bytes=483713024,
    happenings=(
        OverheadEvent(kind="checkpoint", count=5, mean_s=0.0032),
        OverheadEvent(kind="first_batch", count=12, mean_s=0.0177),
        OverheadEvent(kind="worker_startup", count=12, mean_s=0.0077),
    ),
    notes=(Sentence("recorded", "The profile ended because the time budget was spent."),),
)
"""Two ranks on one machine without a GPU."""

FULL = replace(
    DDP,
    script="pretrain.py",
    world=WorldRecord(world_size=16, nnodes=2, backend="nccl"),
    nodes=tuple(
        NodeRecord(node=n, cpu_model="Xeon", cores=96, memory_bytes=2**40, gpus=("NVIDIA H100",) * 8, host=f"gpu-{n}")
        for n in range(2)
    ),
    step_s=0.400,
    step_low_s=0.390,
    step_high_s=0.410,
    samples_per_s=5120.0,
    tokens_per_s=1_310_720.0,
    split=Split(
        compute=Share(0.160, 0.155, 0.165),
        host=Share(0.040, 0.038, 0.043, observed=True),
        copy=Share(0.010, 0.008, 0.012),
        interconnect=Share(0.020, 0.015, 0.025),
        network=Share(0.100, 0.090, 0.110),
        prep=Share(0.030, 0.020, 0.040),
        fetch=Share(0.040, 0.030, 0.050),
    ),
    rates=Rates(
        G=Rate(samples_per_s=6206.1, low=6000.0, high=6400.0),
        P=Rate(samples_per_s=5800.0, low=5500.0, high=6100.0),
        P_per_core=Rate(samples_per_s=60.0, low=58.0, high=62.0),
        F=Rate(samples_per_s=5300.0, low=5000.0, high=5600.0),
        C=Rate(samples_per_s=90000.0, low=80000.0, high=math.inf),
    ),
    observed=(
        ObservedCause(cause="launch", part="host", s=0.031, calls=2400.0, where=None),
        ObservedCause(cause="synchronise", part="host", s=0.009, calls=1.0, where="pretrain.py:88 main"),
    ),
    verdict=Bottleneck(
        binds="network",
        sentence="Machines wait for the exchange of gradients.",
        next_step="Exchange less often.",
        predicted_step_s=0.300,
        predicted_gain=0.25,
    ),
    skew=Skew(rank=11, s=0.004),
    cold_step_s=0.500,
    mfu=0.41,
    noise=GradientNoise(samples=1800.0, low=1500.0, high=2200.0, batch=256.0),
    model=MODEL,
    layers=(
        LayerTime(name="lm_head", kind="Linear", forward_s=0.012, backward_s=0.024),
        *(LayerTime(name=f"h.{n}.mlp", kind="MLP", forward_s=0.002, backward_s=0.0041) for n in range(23)),
        LayerTime(name="wpe", kind="Embedding", forward_s=0.0001, backward_s=None),
    ),
    peak_memory_bytes=70 * 2**30,
    happenings=(*DDP.happenings, OverheadEvent(kind="validation", count=1, mean_s=12.5)),
)
"""Two nodes of eight GPUs, everything measured."""

PARTIAL = replace(
    DDP,
    state="partial",
    partial_reason=Sentence("recorded", "Rank 1 was killed by signal 9."),
    step_low_s=-math.inf,
    step_high_s=math.inf,
    split=Split(compute=Share(0.100, 0.0, math.inf), prep=Share(0.0339, 0.0, math.inf)),
    rates=replace(NO_RATES, G=Rate(samples_per_s=320.0, low=0.0, high=math.inf)),
    skew=None,
    cold_step_s=None,
)
"""A run that lost a rank after a single block: nothing has bounds."""

HOSTILE = replace(
    FULL,
    script="<script>alert(1)</script>.py",
    run_id='"><b>',
    partial_reason=Sentence("recorded", "[bold]<i>&"),
    notes=(Sentence("recorded", "<img src=x> [red]note[/red]"),),
    layers=(LayerTime(name="<u>layer", kind="[bold]<u>", forward_s=0.0, backward_s=None),),
    verdict=replace(FULL.verdict, next_step="</style><p>[link]", binds="[x]"),
    nodes=(NodeRecord(node=0, cpu_model="<cpu>", gpus=("<gpu>",)),),
)
"""Names that mean something to HTML and to rich."""

ALL = {"plain": PLAIN, "ddp": DDP, "full": FULL, "partial": PARTIAL, "hostile": HOSTILE}
