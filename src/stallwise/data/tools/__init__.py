"""Functions behind the data commands: `warm` (fill a cache), `bench` (measure a store), `plan` (predict and price),
`metrics` (Prometheus text).
"""
