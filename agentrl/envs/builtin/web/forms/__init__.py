"""`env=web_forms`: fill in forms on the web as asked."""
