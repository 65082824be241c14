"""The data path: loader workers, caches and the object store."""
