"""Physics: pure functions from measurements to times, without files, processes or frameworks. Columns where many are
needed.

    statistics/   confidence intervals, stalls from phases, conformal errors
    data/         the data path: loader, caches, object store
    compute/      compute on another GPU: roofline, transfer, fitted models; memory
    exchange/     collectives, links of a fleet, messages and how they overlap compute
    step/         the iteration graph, its steady state, set-ups as columns, what-if, epochs, traced timelines
    deflation.py  a job with less of a resource
    splitmix.py   random numbers of the compiled simulators
"""
