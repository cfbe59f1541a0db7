"""The papers' figures and tables, run again: one module each."""
