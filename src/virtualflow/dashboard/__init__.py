"""The page: static files that show what ``manager.api`` serves, and a copy in one file for reports.

Start with ``static/app.js``; ``simulation`` makes the same data of a simulation.
"""
