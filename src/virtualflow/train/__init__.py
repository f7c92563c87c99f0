"""Training, with torch: the Trainer, its step over virtual nodes, the exact reduction, data, state and checkpoints.

A Trainer asks a *membership* (``core.membership``) who runs which virtual node and never knows who answers: ``solo`` in
a plain script, ``job.member`` under ``vf run``. No process is started here but loaders. Start with ``trainer``, then
``step`` and ``reduction``.
"""
