"""A cluster in virtual time: the same scheduler as live ones have, driven by a trace."""
