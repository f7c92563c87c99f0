"""The page: static files that show what ``manager.api`` serves, and a copy in one file for reports."""
