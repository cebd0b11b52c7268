"""A benchmark's rooms, each of which may know those before it: entrants, measurement, outputs, summary."""
