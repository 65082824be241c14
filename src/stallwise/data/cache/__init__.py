"""A bounded cache of objects in a folder, shared by all ranks, loader workers and jobs of a node (`NodeCache`).

`cache` is the public class; `folder` is one process's hold on the folder, `single_flight` lets concurrent requests
share one fetch. Below them: `index` (the shared index file) over `table` (its hash table), `locks` (byte-range locks),
`files` and `packs` (where the bytes lie), `eviction` (policies and making room). `verify` checks a cache against the
object store.
"""
