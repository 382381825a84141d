"""Model + text → picture."""
