"""The version of the package, apart from `stallwise` itself so that any module may import it."""

__version__ = "0.1.0"
