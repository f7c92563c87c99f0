"""What this machine offers, wrapped once: processes, private files, files with a digest, TLS, a clock that never runs
backwards, Ctrl-C, ``VF_HOME``. Knows nothing of jobs or training, and imports nothing else of this project.
No module needs another one to be understood: start with ``processes``.
"""
