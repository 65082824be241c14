"""What runs the simulations of a sweep: this machine's cores (`local`), or a Ray cluster (`on_ray`).

Every engine answers alike, to the last bit: a simulation depends on its case alone, and `run_sweep` puts the answers
in order. Engines differ in where the work is done and in what happens when a worker is lost.
"""
