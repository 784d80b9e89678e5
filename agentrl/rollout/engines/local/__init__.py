"""`engine=local`: the embedded engine, in this process or in one of its own."""
