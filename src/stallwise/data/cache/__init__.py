"""A bounded cache of objects in a folder, shared by all ranks, loader workers and jobs of a node (`NodeCache`).

`cache` is the public class; `_folder` is one process's hold on the folder, `_single_flight` lets concurrent requests
share one fetch. Below them: `_index` (the shared index file) over `_table` (its hash table), `_locks` (byte-range
locks), `files` and `_packs` (where the bytes lie), `_eviction` (policies and making room). `verify` checks a cache
against the object store.
"""
