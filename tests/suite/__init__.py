"""How the suite runs: in which order, beside how much other work, in how much memory, and what each test takes."""
