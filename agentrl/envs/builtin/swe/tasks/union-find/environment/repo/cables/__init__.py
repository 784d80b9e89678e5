"""Which machines are connected."""

from cables.networks import Networks

__all__ = ["Networks"]
