"""Names of the phases that a profile alternates between, and how they differ."""

AS_IS = "as is"
HOST = "replay from host"
DEVICE = "replay from device"
NODE = "node only"
ALONE = "no exchange"
COLD = "cold"
LAYERS = "layers"
NOISE = "gradient noise"
TRACE = "trace"
OBSERVE = "observe"
WARMUP = "warm-up"

DIFFERS = {
    AS_IS: "nothing",
    HOST: "the loader hands out batches of the block before again",
    DEVICE: "the same batches, already on the device",
    NODE: "gradients are exchanged inside each node only",
    ALONE: "no gradient exchange, no broadcast of buffers",
    COLD: "data files are read from storage, their cached pages dropped as they are opened",
    LAYERS: "as without exchange, with marks at every layer and gradient",
    NOISE: "no gradient exchange of the job's own, while norms of gradients are taken and averaged",
    TRACE: "nothing, while torch's profiler looks on",
    OBSERVE: "as the last phase, while the main thread's stack is sampled and, on a GPU, torch's profiler runs",
}

LADDER = (AS_IS, HOST, DEVICE, NODE, ALONE)
"""Each phase lacks what the one before has, so times fall along it; the differences are the stalls."""

REAL_LOADER = frozenset({AS_IS, COLD, TRACE})
"""Phases in which the script's own loader hands out batches."""

WITHOUT_EXCHANGE = frozenset({ALONE, LAYERS, NOISE, OBSERVE})
