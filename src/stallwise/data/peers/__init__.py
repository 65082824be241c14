"""The caches of a job's nodes serve each other over TCP.

`_peers` is the client and the public class, `server` the program that serves a node's cache, `_protocol` their
messages, `_membership` how the nodes find each other and which one holds an object.
"""
