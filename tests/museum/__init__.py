"""Planted defects, each to be caught by its own class: see README.md."""
