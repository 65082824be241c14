"""Lifetimes of spot machines.

| module    | contents                                                                             |
| --------- | ------------------------------------------------------------------------------------ |
| log       | lives of machines, availability over time                                            |
| readers   | `read_log`: SkyPilot, Bamboo and Parcae traces, CSV tables                            |
| models    | exponential, Weibull, bathtub and tabulated lifetimes; the Kaplan-Meier curve        |
| fit       | fitting them with censoring; summary of a log by GPU, region and hour of day          |
| published | published lifetimes, start-up, restart and checkpoint times                          |
"""
