"""Exchange of gradients: costs of collectives on links, which messages a step sends, and how they overlap compute."""
