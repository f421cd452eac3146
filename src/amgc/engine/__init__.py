"""Run a method: the training loop, checkpoints, devices, several processes, and the cost estimate."""
