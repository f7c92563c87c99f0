"""The user's program: which files it consists of, the copy that a job keeps of them, and how a worker runs that copy.

One job is one program: a worker that joins after a thousand steps runs what ran at step 0, though the files have
changed. Starts no process, and knows nothing of training. Start with ``manifest``, then ``capture`` (before a job) and
``overlay`` (in a worker).
"""
