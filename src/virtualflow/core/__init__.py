"""The pure part: who runs what, and which examples. Imports neither torch nor anything of ours above it."""
