"""The scheduling brain: events in, actions out. No clock, no I/O, no torch."""
