"""`env=document_search`: questions about a document that is far longer than the context."""
