"""The one training loop, checkpoints, resume, devices, distributed launch."""
