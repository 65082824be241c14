"""What to rent: a measured job on every fleet that can be had, priced, and the one that meets a deadline or a budget.

`recommend` is the whole of it. Seconds come from `model/` (the same graph that `whatif` and `predict` ask), losing
machines from `spot/`, prices from `hardware/`; nothing here measures or guesses a speed of its own.
"""
