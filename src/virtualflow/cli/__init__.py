"""The ``vf`` command: one file per verb. A verb parses, calls and prints."""
