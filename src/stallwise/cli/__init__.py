"""The command line. A module per subject holds its commands; only here options have names.

- `main`: the `stallwise` program, its commands, and how errors become a sentence and an exit code.
- `output`: answers as text or JSON, warnings, exit codes, progress on stderr.
- `options`: options that several commands share. `recommend_inputs`, `spot_inputs`: texts of options as values.
- `profile`, `run` (report, show, compare, run join), `machine` (doctor, probe, characterize, study), `predict` (whatif,
  predict), `recommend`, `tune`, `spot`, `simulate`, `overcommit`, `slurm` (schedule, queue, submit), `deflate`, `data`,
  `catalog`, `trace`, `ui`.

Modules are imported for every `--help`, so they import only typer and the standard library at the top.
"""
