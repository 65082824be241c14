"""The contestants: each module makes an iterable of batches of (number, bytes) for a `Spec`, as its users would."""
