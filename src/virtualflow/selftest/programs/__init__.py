"""What the jobs of ``vf selftest`` run: small networks on digits that are drawn here, so that nothing is downloaded.

Start with ``train_digits``.
"""
