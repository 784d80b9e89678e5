"""Teachers: policies that `algo=distill` asks of a student's samples, and the divergence of a student from them."""
