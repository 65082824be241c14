"""Batches prepared once for several jobs of a node.

`loader` is the public class. `server` runs the `coordinator` (which job prepares what, what is kept in memory) and
speaks the `protocol` with each job's `client`; `worker` prepares batches, `memory` lays them out in shared files,
`fingerprint` checks that jobs prepare the same data.
"""
