"""Search-R1 (Jin et al., arXiv:2503.09516): questions answered by reasoning and searching in turns."""
