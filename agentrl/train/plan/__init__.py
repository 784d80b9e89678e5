"""What a run will take, before anything is started: who is where, memory, traffic, time, and which layout is best."""
