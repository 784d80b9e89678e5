"""Google's `generateContent`, as gemini-cli, google-genai and the native ADK speak it."""
