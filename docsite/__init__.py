"""The documentation as a site (`mkdocs.yml`, `make site`): what MkDocs does not do by itself."""
