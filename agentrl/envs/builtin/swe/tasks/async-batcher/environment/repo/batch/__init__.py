"""Many small requests made into few large ones."""

from batch.loader import Loader

__all__ = ["Loader"]
