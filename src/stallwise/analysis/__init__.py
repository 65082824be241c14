"""What a run says: its split and bottleneck, comparisons, and predictions of other set-ups. No torch.

`open_run` gives an `Analysis`; `Analysis.on` is the only way from a run and a target to a step time.

    analysis        `Analysis`: a run that was opened, with everything that follows from it
    split           the step taken apart into compute and stalls, with intervals
    observed        what was not ablated, by cause: host, the script's own data code
    _remedies       what to do about a part that was observed
    bottleneck      the part that limits the step, and what would remove it
    profile         everything a profile shows, with each rank's own times
    compare         summaries of runs, and two of them compared
    object_store    loading from an object store
    job             the job as predictions take it: trace, loader's work, `JobModel`
    target          the set-up a prediction is asked for, its nodes and links
    compute         compute on another GPU or machine
    fleets          many set-ups at once, in columns
    prediction      one set-up: step, split, memory, assumptions, curve over GPUs
    tables          tables of set-ups, and `table_forecast`, which answers them row by row
    traces/         traces of other profilers as runs
"""

from stallwise.lazy import loader

__getattr__ = loader(
    __name__,
    {
        "Analysis": "analysis",
        "JobModel": "job",
        "Prediction": "prediction",
        "Target": "target",
        "analysis_of": "analysis",
        "open_run": "analysis",
    },
)
