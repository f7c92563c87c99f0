"""How fast a job would run on given devices, which the simulator and many policies ask.

``model`` has the interface and the profiled speeds; ``table`` speeds from a table of measured ones, such as Gavel's;
``free_sizes`` the paper's setting, in which node sizes may be chosen anew. Start with ``model``.
"""
