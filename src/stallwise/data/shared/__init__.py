"""Batches prepared once for several jobs of a node.

`_loader` is the public class. `server` runs the `_coordinator` (which job prepares what, what is kept in memory) and
speaks the `_protocol` with each job's `_client`; `_worker` prepares batches, `_memory` lays them out in shared files,
`_fingerprint` checks that jobs prepare the same data.
"""
