"""`env=web_shop`: buy what is asked for in a shop on the web."""
