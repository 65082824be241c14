"""The caches of a job's nodes serve each other over TCP.

`peers` is the client and the public class, `server` the program that serves a node's cache, `protocol` their messages,
`membership` how the nodes find each other and which one holds an object.
"""
