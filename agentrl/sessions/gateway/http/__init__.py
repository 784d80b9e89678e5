"""The gateway as a web application: connections, requests, addresses, errors."""
