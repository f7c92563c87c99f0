"""The outside world: processes, sockets, and who belongs to a job."""
