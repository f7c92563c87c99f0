"""The training part: a step over virtual nodes, its exact reduction, data, state and checkpoints. Imports torch."""
