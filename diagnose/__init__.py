"""ddp-doctor: preflight and troubleshooting for PyTorch distributed training."""

__version__ = "0.1.0"
