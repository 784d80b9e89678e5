"""`env=retail`: a customer-service world with a database, a policy and a simulated customer."""
