"""`env=data_analysis`: questions about data, answered with SQL and a file reader."""
