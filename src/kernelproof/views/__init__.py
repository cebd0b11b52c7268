"""From records to what the report shows: one small dataclass for each thing on the page.

Everything is decided here (what is said first, in which order, with which word and colour); the templates only lay it
out. Views hold plain figures where a template formats them, and positions from `charts` where a template draws them.
"""
