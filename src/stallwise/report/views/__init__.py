"""One module per subject: `profile` and `profile_page`, `run`, `machine`, `whatif`, `predict`, `recommend`, `spot`,
`spot_plan`, `simulate`, `overcommit`, `study`, `tune`, `catalog`, `data`, `trace`, `deflate`, `slurm`.

`draw…` functions return a view, which a terminal, a page and a notebook draw; `…document` plain values for JSON; and
`show_…` functions the sentences that these share.
"""
