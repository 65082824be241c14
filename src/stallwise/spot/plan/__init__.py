"""Plans for a job on a fleet that loses machines.

| module   | contents                                                                             |
| -------- | ------------------------------------------------------------------------------------ |
| request  | `SpotRequest` and `SpotPlan`: what is asked and answered                             |
| planner  | `make_plan`: interval, outcomes, levers, verdict                                     |
| closed   | expected time and losses in closed form                                              |
| interval | how often to save: Young-Daly and a dynamic programme                                |
| simulate | Monte Carlo, and replays of an availability trace; `_kernels` has the compiled loops |
| history  | forecasts from replays of a zone's own past                                          |
| fleet    | machines of several kinds, zones                                                     |
| prices   | spot prices over time, rules that follow them, price files                           |
| times    | times from a run record, estimates of the others from published measurements         |
"""
