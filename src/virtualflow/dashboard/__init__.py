"""The page and the HTTP API of a cluster, or of one job."""
