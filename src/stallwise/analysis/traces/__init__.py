"""Traces of other profilers as runs, and what such a run says beyond a profile.

    import_   writes the run of some device traces
    layers    writes the run of a layer file, and the layer file of a run
    _ranks    several ranks on one clock, with their steps, passes and shared collectives
    _steps    what each step waits for, the split of each rank, the critical path
    _model    gradients, passes and gradient buckets of the traced model
    view      what `stallwise trace show` prints

`run.traces` reads the files.
"""
