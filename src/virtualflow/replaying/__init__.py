"""Steps of runs that are over, run again: ``vf replay`` and ``vf bisect``.

A replay is a job of its own: the program of the run, from the run's last checkpoint before the step, on any devices,
to the end of the step. ``step_replay`` runs one and compares it with the run's certificate; ``starting_points`` says
which checkpoints there are. What a worker notes meanwhile is in ``train.node_notes``. ``bisection`` replays two runs
that differ, ``parting`` compares what they noted. Start with ``step_replay``.
"""
