"""Policies that compute who gets how much of the cluster, and realise it round by round.

`programs` are Gavel's linear programs, `gavel` realises their shares, `themis` holds the auction, `links` shares one
link between jobs; `gangs` simulates those on fixed gangs. `optimus`, `pollux` and `sia` choose how many GPUs a job
gets, from measured `goodput`; `elastic` simulates them. `policy.Rounds` holds the facts of one.
"""
