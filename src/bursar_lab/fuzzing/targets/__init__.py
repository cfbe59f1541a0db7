"""The parsers, by area; each module lists its `TARGETS`."""
