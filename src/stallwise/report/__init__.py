"""One renderer per output, over results; nothing is computed here."""
